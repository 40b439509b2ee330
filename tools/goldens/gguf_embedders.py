"""Embedders and rerankers as llama.cpp converts them, with vocabulary and pooling: small goldens,
and any folder.

    python gguf_embedders.py --llama-cpp DIR --out DIR [FOLDER ...]

DIR of llama.cpp is a source tree with `conversion/` and `gguf-py/`. Each output folder has the
original model and its `model.gguf`; `converted_embedders_equal_their_folders` of
crates/engine/tests/gguf_tasks.rs reads them. Committed are the files of `st-prompts`, and with `--outtype MOSTLY_Q8_0` the two of
Qwen3: crates/testkit/goldens/gguf-*.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from formula import materialised

GOLDENS = Path(__file__).parents[2] / "crates/testkit/goldens"
# The converter recognizes a pre-tokenizer by the ids of a full vocabulary; these vocabularies are
# too small for that.
SMALL = {
    "st-prompts": "jina-v2-en",
    "task-embed-qwen3": "qwen2",
    "task-rerank-qwen3": "qwen2",
    # A vocabulary like SentencePiece's.
    "task-embed-gemma": None,
}


def convert(folder: Path, pre: str | None, outtype: str) -> None:
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    found = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    if pre is not None:
        patch = {"model_arch": found.model_arch, "get_vocab_base_pre": lambda self, tokenizer: pre}
        found = type(found.__name__, (found,), patch)
    elif not (folder / "tokenizer.model").exists():
        patch = {"model_arch": found.model_arch, "set_vocab": lambda self: self._set_vocab_llama_hf()}
        found = type(found.__name__, (found,), patch)
    # Without this, the converter leaves Dense layers out.
    options = {"sentence_transformers_dense_modules": True} if (folder / "2_Dense").exists() else {}
    found(folder, getattr(gguf.LlamaFileType, outtype), folder / "model.gguf", **options).write()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--llama-cpp", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--outtype", default="ALL_F32")
    arguments.add_argument("folders", nargs="*", type=Path)
    arguments = arguments.parse_args()
    sys.path[:0] = [str(arguments.llama_cpp), str(arguments.llama_cpp / "gguf-py")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, pre in SMALL.items():
        # The converter recognizes a reranker by its folder's name.
        where = arguments.out / name.replace("task-rerank-qwen3", "qwen3-reranker")
        shutil.rmtree(where, ignore_errors=True)
        with materialised(GOLDENS / name) as whole:
            shutil.copytree(whole, where)
        if name == "task-embed-gemma":
            # What the format cannot say, as EmbeddingGemma has it: it takes the scale from the size of a
            # head, and every sixth layer sees the whole text.
            config = json.loads((where / "config.json").read_text())
            config |= {"query_pre_attn_scalar": config["head_dim"], "layer_types": ["sliding_attention"] * 2}
            (where / "config.json").write_text(json.dumps(config))
        convert(where, pre, arguments.outtype)
    for folder in arguments.folders:
        where = arguments.out / folder.name
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(folder, where)
        convert(where, None, arguments.outtype)


if __name__ == "__main__":
    main()
