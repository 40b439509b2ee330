"""Tiny SPLADE models in their published layouts, encoded by sentence-transformers'
SparseEncoder."""

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import (
    SparseStaticEmbedding,
    SpladePooling,
)
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
)

import formula
import tiny
from files import empty_dir, write_json, write_json_sections
from sentence import TEXTS


@dataclass
class Variant:
    """One golden directory. Without `pooling` there is no modules.json either, and the loader must
    default to max pooling and one log."""

    name: str
    seed: int
    kind: str
    pooling: tuple[str, str] | None
    legacy: bool = False


VARIANTS = [
    Variant("task-sparse", 131, "bert", ("max", "relu")),
    # sentence-transformers 5.0 to 5.3 named the module MLMTransformer.
    Variant("task-sparse-legacy", 132, "distilbert", ("sum", "relu"), legacy=True),
    # "log1p_relu" is log1p twice: the activation's and the pooling's own.
    Variant("task-sparse-log1p", 133, "distilbert", ("max", "log1p_relu")),
    Variant("task-sparse-log1p-sum", 134, "bert", ("sum", "log1p_relu")),
    Variant("task-sparse-plain", 135, "bert", None),
    Variant("task-sparse-plain-distilbert", 136, "distilbert", None),
]


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        directory = empty_dir(out / variant.name)
        save_model(variant, directory)
        # Half of the logits are negative and the bias is lower still, for sparse vectors.
        formula.replace_weights(directory, variant.seed)
        lower_decoder_bias(directory)
        with formula.materialised(directory) as copy:
            write_golden(variant, directory, copy)
    write_router(out)


def write_router(out: Path) -> None:
    """Queries without inference: each token has a fixed weight. Documents by a masked LM."""
    directory = empty_dir(out / "task-sparse-router")
    seed = 137
    tokenizer = tiny.distilbert()
    config = DistilBertConfig(vocab_size=len(tokenizer), **tiny.DISTILBERT)
    with TemporaryDirectory() as base:
        DistilBertForMaskedLM(config).save_pretrained(base)
        tokenizer.save_pretrained(base)
        router = Router.for_query_document(
            query_modules=[SparseStaticEmbedding(tokenizer, frozen=True)],
            document_modules=[
                Transformer(base, transformer_task="fill-mask"),
                SpladePooling(pooling_strategy="max", activation_function="log1p_relu"),
            ],
        )
        encoder = SparseEncoder(modules=[router], device="cpu")
        encoder.save(str(directory), create_model_card=False)
    formula.replace_weights(directory, seed)
    for path in directory.rglob(formula.FORMULA):
        described = json.loads(path.read_text())
        tensors = described["tensors"]
        if "weight" in tensors:
            # As an inverse document frequency; some are below zero, and count as such.
            tensors["weight"] |= {"scale": 4.0, "shift": 3.0}
        else:
            tensors["vocab_projector.bias"]["shift"] = -6.0
        formula.write(path.parent, described["seed"], tensors)
    with formula.materialised(directory) as copy:
        encoder = SparseEncoder(str(copy), device="cpu", local_files_only=True)
        cases = []
        for route, encode in [
            (None, encoder.encode),
            ("query", encoder.encode_query),
            ("document", encoder.encode_document),
        ]:
            for text in TEXTS:
                row = encode(text, convert_to_sparse_tensor=False).numpy()
                weights = {str(t): float(row[t]) for t in np.flatnonzero(row)}
                cases.append({"text": text, "route": route, "weights": weights})
    write_json_sections(directory / "golden.json", {"cases": cases})


def save_model(variant: Variant, directory: Path) -> None:
    if variant.kind == "bert":
        tokenizer = tiny.wordpiece()
        model = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **tiny.BERT))
    else:
        tokenizer = tiny.distilbert()
        config = DistilBertConfig(vocab_size=len(tokenizer), **tiny.DISTILBERT)
        model = DistilBertForMaskedLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if variant.pooling is None:
        return
    transformer = Transformer(str(directory), transformer_task="fill-mask")
    strategy, activation = variant.pooling
    pooling = SpladePooling(pooling_strategy=strategy, activation_function=activation)
    encoder = SparseEncoder(modules=[transformer, pooling], device="cpu")
    empty_dir(directory)
    encoder.save(str(directory), create_model_card=False)
    if variant.legacy:
        rewrite_as_legacy(directory)


def rewrite_as_legacy(directory: Path) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    names = ["MLMTransformer", "SpladePooling"]
    for module, name in zip(modules, names, strict=True):
        module["type"] = f"sentence_transformers.sparse_encoder.models.{name}"
    write_json(directory / "modules.json", modules)
    config = {"max_seq_length": tiny.MAX_TOKENS, "do_lower_case": False}
    write_json(directory / "sentence_bert_config.json", config)
    path = directory / modules[1]["path"] / "config.json"
    pooling = json.loads(path.read_text())
    pooling["word_embedding_dimension"] = pooling.pop("embedding_dimension")
    write_json(path, pooling)


def lower_decoder_bias(directory: Path) -> None:
    described = json.loads((directory / formula.FORMULA).read_text())
    tensors = described["tensors"]
    name = next(
        name
        for name in ("cls.predictions.bias", "vocab_projector.bias")
        if name in tensors
    )
    tensors[name]["shift"] = -6.0
    formula.write(directory, described["seed"], tensors)


def write_golden(variant: Variant, directory: Path, copy: Path) -> None:
    encoder = SparseEncoder(str(copy), device="cpu", local_files_only=True)
    assert encoder.max_seq_length == tiny.MAX_TOKENS
    cases, rows = [], []
    for text in TEXTS:
        features = encoder.preprocess([text])
        row = encoder.encode(text, convert_to_sparse_tensor=False).numpy()
        weights = {str(token): float(row[token]) for token in np.flatnonzero(row)}
        cases.append(
            {
                "text": text,
                "ids": features["input_ids"][0].tolist(),
                "weights": weights,
            }
        )
        rows.append(row)
    rows = np.stack(rows)
    share = (rows > 0).mean()
    assert 0.02 < share < 0.5, (variant.name, share)
    write_json_sections(directory / "golden.json", {"cases": cases})
    save_file({"embeddings": rows}, directory / "golden.safetensors")
