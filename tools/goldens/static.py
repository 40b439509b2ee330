"""Static embeddings: sentence-transformers' StaticEmbedding and model2vec, in the file layouts of
both packages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from model2vec import StaticModel
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

import formula
import tiny
from files import empty_dir, write_json, write_json_sections
from sentence import TEXTS

DIM = 12

# The config of a potion model on the hub, except the sizes.
CONFIG = {
    "model_type": "model2vec",
    "architectures": ["StaticModel"],
    "tokenizer_name": "tiny",
    "apply_pca": DIM,
    "apply_zipf": True,
    "hidden_dim": DIM,
    "seq_length": 1000000,
}

# A text and its number of repetitions. The limit is 512 tokens, of a text that was first cut to 512
# times the median token length in characters: the first three texts reach one limit or the other,
# with and without unknown tokens.
LONG = [
    ("a b c d e f g h i j ", 90),
    ("hello world cat ", 120),
    ("\u65e5 a \U0001f600 b c ", 150),
    ("caf\u00e9 the man ", 30),
]


def make(out: Path, _work: Path) -> None:
    sentence_transformers(out / "task-static", 151, [])
    sentence_transformers(out / "task-static-normalize", 152, [Normalize()])

    wordpiece = tiny.wordpiece().backend_tokenizer
    unigram = tiny.unigram().backend_tokenizer
    # Before 0.10 the config had no max_length; 512 was the default of `encode`.
    model2vec(
        out / "task-static-model2vec", 153, wordpiece, True, drop=["max_length"]
    )
    model2vec(out / "task-static-model2vec-raw", 154, unigram, False, max_length=10)
    model2vec(
        out / "task-static-model2vec-unlimited", 155, wordpiece, True, max_length=None
    )
    # A vocabulary quantized to few rows, with integers as indexes: no formula describes those, so
    # the weights are a file.
    quantized(
        out / "task-static-model2vec-mapping", 156, unigram, (np.float32, np.int32)
    )
    quantized(out / "task-static-model2vec-int8", 157, wordpiece, (np.int8, np.int64))


def sentence_transformers(directory: Path, seed: int, then: list) -> None:
    empty_dir(directory)
    tokenizer = tiny.wordpiece().backend_tokenizer
    static = StaticEmbedding(tokenizer, embedding_dim=DIM)
    model = SentenceTransformer(modules=[static, *then], device="cpu")
    model.save(str(directory), create_model_card=False)
    formula.replace_weights(directory, seed)
    if then:
        move_to_folder(directory)
    with formula.materialised(directory) as copy:
        model = SentenceTransformer(str(copy), device="cpu", local_files_only=True)
        cases, arrays = [], {"embeddings": []}
        for case in all_cases():
            text = case["text"] * case.get("times", 1)
            ids = model[0].preprocess([text])["input_ids"].tolist()
            cases.append(case | {"tokens": len(ids)} | ids_if_few(ids))
            arrays["embeddings"].append(model.encode(text))
    write(directory, cases, arrays)


def move_to_folder(directory: Path) -> None:
    """As sentence-transformers 3 and 4 saved it: the first module in its own folder."""
    folder = directory / "0_StaticEmbedding"
    folder.mkdir()
    for name in (formula.FORMULA, "tokenizer.json"):
        (directory / name).rename(folder / name)
    modules = json.loads((directory / "modules.json").read_text())
    modules[0]["path"] = folder.name
    for module in modules:
        kind = module["type"].rsplit(".", 1)[1]
        module["type"] = f"sentence_transformers.models.{kind}"
    write_json(directory / "modules.json", modules)


def model2vec(
    directory: Path,
    seed: int,
    tokenizer: Tokenizer,
    normalize: bool,
    drop: list[str] | None = None,
    **options: Any,
) -> None:
    size = tokenizer.get_vocab_size()
    vectors = formula.values(seed, "embeddings", [size, DIM], 1.0, 0.0)
    model = StaticModel(vectors, tokenizer, CONFIG, normalize=normalize, **options)
    save(model, directory, drop or [])
    formula.replace_weights(directory, seed)
    golden(directory)


def quantized(
    directory: Path, seed: int, tokenizer: Tokenizer, dtypes: tuple[type, type]
) -> None:
    size, rows = tokenizer.get_vocab_size(), 40
    vector_type, mapping_type = dtypes
    scale = 127.0 if vector_type is np.int8 else 1.0
    vectors = formula.values(seed, "embeddings", [rows, DIM], scale, 0.0)
    weights = formula.values(seed, "weights", [size], 0.9, 1.0)
    mapping = formula.values(seed, "mapping", [size], rows / 2, rows / 2)
    model = StaticModel(
        vectors.astype(vector_type),
        tokenizer,
        CONFIG,
        normalize=vector_type is not np.int8,
        weights=weights.astype(np.float64) if vector_type is np.int8 else weights,
        token_mapping=mapping.astype(mapping_type),
    )
    save(model, directory, [])
    golden(directory)


def save(model: StaticModel, directory: Path, drop: list[str]) -> None:
    empty_dir(directory)
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    kept = {key: value for key, value in config.items() if key not in drop}
    write_json(path, kept)
    if "max_length" in drop:
        # The tokenizer's file did not have the limit then either.
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.save(str(directory / "tokenizer.json"), pretty=False)


def golden(directory: Path) -> None:
    with formula.materialised(directory) as copy:
        model = StaticModel.from_pretrained(copy)
        # The same files read by sentence-transformers through modules.json: unknown tokens count,
        # texts are not cut by characters, and the only limit is one in tokenizer.json.
        other = SentenceTransformer(str(copy), device="cpu", local_files_only=True)
        cases = []
        arrays = {"embeddings": [], "sentence_transformers": []}
        for case in all_cases():
            text = case["text"] * case.get("times", 1)
            cut = text
            if model.max_length is not None:
                cut = text[: model.max_length * model.median_token_length]
            [ids] = model.tokenize([cut])
            cases.append(case | {"tokens": len(ids)} | ids_if_few(ids))
            arrays["embeddings"].append(model.encode(text))
            if model.weights is None:
                arrays["sentence_transformers"].append(other.encode(text))
            else:
                arrays.pop("sentence_transformers", None)
    extra = {"median_token_length": model.median_token_length}
    write(directory, cases, arrays, extra)


def all_cases() -> list[dict]:
    return [
        *({"text": text} for text in TEXTS),
        {"text": "\u65e5 \u672c \U0001f600"},
        *({"text": text, "times": times} for text, times in LONG),
    ]


def ids_if_few(ids: list[int]) -> dict[str, list[int]]:
    return {"ids": ids} if len(ids) <= 64 else {}


def write(
    directory: Path, cases: list[dict], arrays: dict, extra: dict | None = None
) -> None:
    write_json_sections(directory / "golden.json", (extra or {}) | {"cases": cases})
    save_file(
        {name: np.stack(rows).astype(np.float32) for name, rows in arrays.items()},
        directory / "golden.safetensors",
    )
