"""Tiny sentence-transformers models, one for each pooling and each file layout."""

import json
import shutil
import string
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertModel, BertTokenizer

import chunks
from bert import randomize
from files import empty_dir, write_json, write_json_lines

HIDDEN = 32
MAX_TOKENS = 24  # Fewer than max_position_embeddings, to detect a reader that ignores the limit.
MAX_POSITIONS = 32

WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were her all she there would their we him been has when who will more no if out so said what up its about "
    "into than them can only other new some could time these two may then do first any my now such like our over man me "
    "even most made after also did many before must through back years where much your way well down should because cat "
    "dog sat mat food eating query passage hello world"
).split()
PIECES = "##ing ##ed ##er ##s ##ly ##tion ##est ##al ##en ##re ##on ##an ##es".split()

TEXTS = [
    "",
    "hello",
    "Hello, World!",
    "The cat sat on the mat.",
    "A man is eating food.",
    "Caf\u00e9 d\u00e9j\u00e0 vu",
    "numbers 12345 and 6.78",
    "\u65e5\u672c is not in the vocabulary",
    "   spaces   around\tand\nwithin   ",
    "[MASK] me [SEP] twice",
    "query: the text begins as a prompt does",
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard at all.",
]


@dataclass
class Variant:
    """One golden directory. `prompt_names` are passed to `encode`; None means the model's
    default."""

    name: str
    seed: int
    pooling: str | list[str]
    then: list[torch.nn.Module] = field(default_factory=list)
    include_prompt: bool = True
    prompts: dict[str, str] | None = None
    default_prompt: str | None = None
    prompt_names: list[str | None] = field(default_factory=lambda: [None])
    lower_case: bool = True
    legacy: dict[str, Any] | None = None


PROMPTS = {"query": "query: ", "document": "passage: "}


def variants() -> list[Variant]:
    return [
        Variant("st-cls-dense", 11, "cls", then=[Dense(HIDDEN, 24), Normalize()]),
        Variant(
            "st-mean-dense",
            12,
            "mean",
            then=[Dense(HIDDEN, 16, bias=False, activation_function=None)],
        ),
        Variant("st-weightedmean", 13, "weightedmean"),
        Variant("st-max", 14, "max"),
        Variant("st-mean-sqrt-len", 15, "mean_sqrt_len_tokens"),
        Variant("st-lasttoken", 16, "lasttoken", then=[Normalize()]),
        Variant(
            "st-prompts",
            17,
            "mean",
            then=[Normalize()],
            include_prompt=False,
            prompts=PROMPTS,
            # Not the first, and not "query", to detect a loader that guesses.
            default_prompt="document",
            prompt_names=["query", "document", None],
        ),
        # Every pooling, skipping the prompt, in an order that is neither alphabetical nor the
        # legacy one.
        Variant(
            "st-concat-prompts",
            18,
            ["lasttoken", "mean", "cls", "weightedmean", "max", "mean_sqrt_len_tokens"],
            include_prompt=False,
            prompts=PROMPTS,
            prompt_names=["query", None],
        ),
        # The layout of all-MiniLM-L6-v2 and its time. Two poolings: the code defines their order,
        # not the file.
        Variant(
            "st-legacy",
            19,
            ["max", "mean"],
            then=[
                Dense(2 * HIDDEN, 20, activation_function=torch.nn.GELU()),
                Normalize(),
            ],
            legacy={"max_seq_length": MAX_TOKENS, "do_lower_case": False},
        ),
        # A cased tokenizer that only the legacy file makes lower-case.
        Variant(
            "st-legacy-lower",
            20,
            "mean",
            lower_case=False,
            legacy={"max_seq_length": MAX_TOKENS, "do_lower_case": True},
        ),
    ]


def make(out: Path, _work: Path) -> None:
    for variant in variants():
        directory = empty_dir(out / variant.name)
        save_model(variant, directory)
        if variant.legacy:
            rewrite_as_legacy(directory, variant.legacy)
        write_golden(variant, directory)


def vocabulary() -> dict[str, int]:
    letters = string.ascii_lowercase + string.digits
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [
        *special,
        *letters,
        *("##" + letter for letter in letters),
        *".,:;!?'-()",
        *PIECES,
        *WORDS,
    ]
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}


def save_model(variant: Variant, directory: Path) -> None:
    vocab = vocabulary()
    config = BertConfig(
        vocab_size=len(vocab),
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=MAX_POSITIONS,
    )
    encoder = BertModel(config)
    dense = [module for module in variant.then if isinstance(module, Dense)]
    chance = torch.Generator().manual_seed(variant.seed)
    for module in [encoder, *dense]:
        randomize(module, chance)

    with tempfile.TemporaryDirectory() as base:
        encoder.save_pretrained(base)
        BertTokenizer(
            vocab=vocab, do_lower_case=variant.lower_case, model_max_length=MAX_TOKENS
        ).save_pretrained(base)
        pooling = Pooling(
            HIDDEN, variant.pooling, include_prompt=variant.include_prompt
        )
        model = SentenceTransformer(
            modules=[Transformer(base), pooling, *variant.then],
            prompts=variant.prompts,
            default_prompt_name=variant.default_prompt,
            device="cpu",
        )
        model.save(str(directory), create_model_card=False)


def rewrite_as_legacy(directory: Path, transformer_config: dict[str, Any]) -> None:
    """Rewrites the same settings into the files of sentence-transformers 2."""
    write_json(directory / "sentence_bert_config.json", transformer_config)
    versions = {
        "sentence_transformers": "2.0.0",
        "transformers": "4.6.1",
        "pytorch": "1.8.1",
    }
    write_json(
        directory / "config_sentence_transformers.json", {"__version__": versions}
    )
    # The tokenizer's own limit was that of the architecture, and had no effect.
    update_json(directory / "tokenizer_config.json", {"model_max_length": 512})

    modules = json.loads((directory / "modules.json").read_text())
    for module in modules:
        kind = module["type"].rsplit(".", 1)[1]
        module["type"] = f"sentence_transformers.models.{kind}"
        path = directory / module["path"]
        if kind == "Pooling":
            rewrite_pooling(path / "config.json")
        elif kind == "Dense":
            update_json(
                path / "config.json",
                {},
                drop=["module_input_name", "module_output_name"],
            )
        elif kind == "Normalize":
            # The module had no file, and git keeps no empty directory: the path did not exist.
            shutil.rmtree(path)
    write_json(directory / "modules.json", modules)


def rewrite_pooling(path: Path) -> None:
    config = json.loads(path.read_text())
    modes = (
        [config["pooling_mode"]]
        if isinstance(config["pooling_mode"], str)
        else config["pooling_mode"]
    )
    flags = {
        "cls_token": "cls",
        "mean_tokens": "mean",
        "max_tokens": "max",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    }
    legacy = {f"pooling_mode_{flag}": mode in modes for flag, mode in flags.items()}
    write_json(
        path, {"word_embedding_dimension": config["embedding_dimension"], **legacy}
    )


def update_json(
    path: Path, changes: dict[str, Any], drop: list[str] | None = None
) -> None:
    config = json.loads(path.read_text()) | changes
    write_json(
        path, {key: value for key, value in config.items() if key not in (drop or [])}
    )


def write_golden(variant: Variant, directory: Path) -> None:
    # Loaded from the saved files, so that the golden matches them.
    model = SentenceTransformer(str(directory), device="cpu", local_files_only=True)
    assert model.max_seq_length == MAX_TOKENS
    cases, embeddings = [], []
    for prompt_name in variant.prompt_names:
        prompt = model.prompts.get(prompt_name or model.default_prompt_name, "")
        for text in TEXTS:
            features = model.preprocess([text], prompt=prompt)
            cases.append(
                {
                    "text": text,
                    "prompt_name": prompt_name,
                    "prompt": prompt,
                    "ids": features["input_ids"][0].tolist(),
                    "prompt_tokens": features.get("prompt_length", 0),
                }
            )
            embeddings.append(model.encode(text, prompt_name=prompt_name))
    write_json_lines(directory / "golden.json", cases)
    save_file({"embeddings": np.stack(embeddings)}, directory / "golden.safetensors")
    if variant.name in ["st-prompts", "st-mean-dense"]:
        chunks.write(model, directory)
