"""Tiny sequence classifiers, one for each way to compute scores, with the outputs of transformers'
pipeline."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    TextClassificationPipeline,
)

import formula
import tiny
from files import empty_dir, write_json_sections

TEXTS = [
    "",
    "hello world",
    "The cat sat on the mat.",
    "Caf\u00e9 d\u00e9j\u00e0 vu \u65e5\u672c \U0001f600",
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard at all.",
]
PAIRS = [
    ("The cat sat.", "The dog sat on the mat."),
    ("", "only the second"),
    # Not ("first", ""): the pipeline treats an empty second text as no pair, which is its quirk,
    # not the model's.
    (
        "a first text that is also rather long, for it to be cut",
        "and a second one, longer than the first, of which more must be taken away than of the other",
    ),
]


@dataclass
class Variant:
    name: str
    seed: int
    kind: str
    labels: list[str]
    problem_type: str | None = None
    gains: dict[str, float] = field(default_factory=dict)


VARIANTS = [
    # No problem_type: several labels mean softmax.
    Variant("task-classify", 111, "bert", ["negative", "neutral", "positive"]),
    Variant(
        "task-classify-multi",
        112,
        "roberta",
        ["toxic", "insult", "threat", "ok"],
        "multi_label_classification",
    ),
    Variant("task-classify-regression", 113, "bert", ["LABEL_0"], "regression"),
    # One label without problem_type means sigmoid. DistilBERT has its own head (pre_classifier,
    # ReLU) and no token types.
    Variant("task-classify-one", 114, "distilbert", ["relevant"]),
    Variant(
        "task-classify-single",
        115,
        "distilbert",
        ["entailment", "contradiction"],
        "single_label_classification",
    ),
    # Logits so far apart that exp overflows float32.
    Variant(
        "task-classify-extreme",
        116,
        "bert",
        ["a", "b", "c"],
        gains={"classifier.weight": 400},
    ),
    Variant(
        "task-classify-extreme-multi",
        117,
        "bert",
        ["a", "b", "c"],
        "multi_label_classification",
        gains={"classifier.weight": 400},
    ),
]


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        directory = empty_dir(out / variant.name)
        model, tokenizer = build(variant)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        gains = {"classifier.weight": 2, "out_proj": 2} | variant.gains
        formula.replace_weights(directory, variant.seed, gains)
        with formula.materialised(directory) as copy:
            write_golden(directory, copy)


def build(variant: Variant):
    labels: dict[str, Any] = {
        "id2label": dict(enumerate(variant.labels)),
        "label2id": {label: number for number, label in enumerate(variant.labels)},
        "problem_type": variant.problem_type,
    }
    if variant.kind == "roberta":
        tokenizer = tiny.byte_level(add_prefix_space=False)
        config = RobertaConfig(vocab_size=len(tokenizer), **tiny.ROBERTA, **labels)
        return RobertaForSequenceClassification(config), tokenizer
    tokenizer = tiny.wordpiece()
    if variant.kind == "distilbert":
        tokenizer = tiny.distilbert()
        config = DistilBertConfig(
            vocab_size=len(tokenizer), **tiny.DISTILBERT, **labels
        )
        return DistilBertForSequenceClassification(config), tokenizer
    config = BertConfig(vocab_size=len(tokenizer), **tiny.BERT, **labels)
    return BertForSequenceClassification(config), tokenizer


@torch.inference_mode()
def write_golden(directory: Path, copy: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(copy)
    tokenizer = AutoTokenizer.from_pretrained(copy)
    pipeline = TextClassificationPipeline(model=model, tokenizer=tokenizer)
    cases, logits = [], []
    for text, pair in [*((text, None) for text in TEXTS), *PAIRS]:
        inputs = {"text": text} if pair is None else {"text": text, "text_pair": pair}
        features = tokenizer(**inputs, truncation=True, return_tensors="pt")
        ids = features["input_ids"][0].tolist()
        assert len(ids) <= tiny.MAX_TOKENS
        scores = pipeline(inputs, top_k=None, truncation=True)
        cases.append(inputs | {"ids": ids, "scores": scores})
        logits.append(model(**features).logits[0].numpy())
    best = {case["scores"][0]["label"] for case in cases}
    assert len(best) > 1 or model.config.num_labels == 1, directory.name
    write_json_sections(directory / "golden.json", {"cases": cases})
    save_file({"logits": np.stack(logits)}, directory / "golden.safetensors")
