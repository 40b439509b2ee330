"""Encoders as llama.cpp converts them, with vocabulary and pooling: tiny models of the families
that other goldens compare layer by layer.

    python gguf_encoders.py --llama-cpp DIR [--out DIR] [--outtype MOSTLY_Q8_0]

DIR of llama.cpp is a source tree with `conversion/` and `gguf-py/`. Each output folder has the
original model and its `model.gguf`, which give the same embeddings. Committed are
crates/testkit/goldens/gguf-*, in F32.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

import formula
import jina
import modernbert
import nomic
import tiny
import xlm_roberta_flash
from files import empty_dir, write_json
from synthetic import Variant, saved_shapes, spread, write_tensors

GOLDENS = Path(__file__).parents[2] / "crates/testkit/goldens"
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
}
NOMIC_SIZES = {
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 64,
    "n_layer": 2,
    "num_experts": 4,
    "pad_vocab_size_multiple": 1,
}
MODERN = modernbert.CONFIG | {
    **SIZES,
    "architectures": ["ModernBertModel"],
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
    "num_hidden_layers": 3,
}
RANK = {
    "architectures": ["ModernBertForSequenceClassification"],
    "classifier_pooling": "mean",
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}


@dataclass
class Encoder:
    config: dict[str, Any]
    shapes: dict[str, list[int]]
    tokenizer: PreTrainedTokenizerBase
    # The pre-tokenizer. The converter recognizes it by the ids of a full vocabulary, and these are
    # too small for that.
    pre: str | None = None


def encoders() -> dict[str, Encoder]:
    wordpiece, unigram, bpe = tiny.wordpiece(), tiny.unigram(), tiny.byte_level(False)
    jina_v2 = jina.JINA | SIZES | {"vocab_size": len(wordpiece)}
    code = jina_v2 | {"_name_or_path": jina.CODE["_name_or_path"]}
    moe = nomic.MOE | NOMIC_SIZES | {"vocab_size": len(unigram)}
    flash = xlm_roberta_flash
    jina_v3 = flash.ROTARY | flash.TASKS | SIZES | {"vocab_size": len(unigram)}
    jina_v3 = {key: jina_v3[key] for key in jina_v3 if "label" not in key}
    modern = MODERN | {"vocab_size": len(bpe)}
    rank = modern | RANK
    return {
        "modern-bert": Encoder(modern, modern_shapes(modern), bpe, "modern-bert"),
        "modern-bert-rank": Encoder(rank, modern_shapes(rank), bpe, "modern-bert"),
        "jina-bert-v2": Encoder(
            jina_v2, jina.shapes(jina_v2, ""), wordpiece, "jina-v2-en"
        ),
        "jina-bert-v2-code": Encoder(
            code, jina.shapes(code, ""), wordpiece, "jina-v2-code"
        ),
        "nomic-bert-moe": Encoder(moe, nomic.shapes(moe), unigram),
        "jina-bert-v3": Encoder(jina_v3, flash.shapes(jina_v3), unigram),
    }


def modern_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    model = getattr(modernbert, config["architectures"][0])
    return saved_shapes(Variant("", 0, model, config), model.config_class(**config))


def save(encoder: Encoder, seed: int, directory: Path) -> None:
    encoder.tokenizer.save_pretrained(directory)
    write_json(directory / "config.json", encoder.config)
    if not encoder.config["architectures"][0].endswith("Classification"):
        folders = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(folders.items())
        ]
        write_json(directory / "modules.json", modules)
        (directory / "1_Pooling").mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
        write_json(directory / "1_Pooling" / "config.json", pooling)
    specs = {name: spread(name, shape) for name, shape in encoder.shapes.items()}
    for name, spec in specs.items():
        if name.endswith("experts.bias"):
            # The converter drops it.
            spec["scale"] = 0.0
    write_tensors(directory / "tensors.json", seed, specs)


def convert(folder: Path, encoder: Encoder, outtype: str) -> None:
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    give_charsmap(folder / "tokenizer.json")
    architecture = get_model_architecture(
        ModelBase.load_hparams(folder, False), ModelType.TEXT
    )
    found = get_model_class(architecture)
    if encoder.pre is not None:
        pre = {"get_vocab_base_pre": lambda self, tokenizer: encoder.pre}
        found = type(found.__name__, (found,), {"model_arch": found.model_arch} | pre)
    options = {}
    if architecture == "NomicBertModel":
        # transformers would replace the hub's fields by its own, with other defaults.
        options["hparams"] = dict(encoder.config)
    file_type = getattr(gguf.LlamaFileType, outtype)
    with loaded(encoder.tokenizer):
        found(folder, file_type, folder / "model.gguf", **options).write()


def give_charsmap(path: Path) -> None:
    """The converter expects the normalizer of SentencePiece. An empty one stands for none."""
    tokenizer = json.loads(path.read_text())
    if tokenizer["model"]["type"] == "Unigram":
        tokenizer["normalizer"] = {"precompiled_charsmap": ""}
        path.write_text(json.dumps(tokenizer))


@contextmanager
def loaded(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Gives the converter the tokenizer as it was before `give_charsmap`."""
    kept = AutoTokenizer.from_pretrained
    AutoTokenizer.from_pretrained = lambda *_arguments, **_options: tokenizer
    try:
        yield
    finally:
        AutoTokenizer.from_pretrained = kept


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("--out", type=Path, default=GOLDENS)
    arguments.add_argument("--outtype", default="ALL_F32")
    arguments = arguments.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    for seed, (name, encoder) in enumerate(encoders().items(), 371):
        directory = empty_dir(arguments.out / f"gguf-{name}")
        save(encoder, seed, directory)
        with formula.materialised(directory) as whole:
            convert(whole, encoder, arguments.outtype)
            shutil.copy(whole / "model.gguf", directory)


if __name__ == "__main__":
    main()
