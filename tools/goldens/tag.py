"""Tiny token classifiers with each kind of tokenizer, tagged and aggregated by transformers'
pipeline."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertForTokenClassification,
    RobertaConfig,
    RobertaForTokenClassification,
    TokenClassificationPipeline,
    XLMRobertaConfig,
    XLMRobertaForTokenClassification,
)

import formula
import tiny
from files import empty_dir, write_json_sections

STRATEGIES = ["none", "simple", "first", "average", "max"]

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PLAIN = ["NOUN", "VERB", "O", "ADP-X"]

TEXTS = [
    "",
    "   ",
    "Anna lives in Paris.",
    "  leading and trailing spaces  ",
    "Jos\u00e9 was eating in S\u00e3o Paulo",
    # The same accents as combining marks: one letter, two characters.
    "Jose\u0301 Sa\u0303o cafe\u0301s",
    "\u6771\u4eac is \u65e5\u672c, not \u4eac\u90fd",
    "man \U0001f469\u200d\U0001f52c eating \U0001f600 food \U0001f1eb\U0001f1f7!",
    "\u041c\u043e\u0441\u043a\u0432\u0430 \u0130stanbul Stra\u00dfe \ufb01rst",
    "tabs\tand\nnew lines  twice",
    "words that are catsing, dogser-matly",
    "a\u00a0hard\u3000space\u200band none",
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard at all.",
]


# Texts of several windows, and strides: the tokens that windows share.
LONG = [
    " ".join(TEXTS[2:7]),
    "Anna lives in Paris and Jos\u00e9 lives in S\u00e3o Paulo. " * 2,
    # One word that is longer than a window.
    "a" * 40 + " cat, the man was eating \u65e5\u672c food in \u6771\u4eac " + "na\u00efve" * 4,
    # One window.
    "Anna lives in Paris.",
]
STRIDES = [0, 4, 11]


@dataclass
class Variant:
    name: str
    seed: int
    kind: str
    labels: list[str] = field(default_factory=lambda: BIO)


# Attention is weakened, or all tokens would get the same label.
GAINS = {"attention.output.dense": 0.4, "classifier.weight": 2}


VARIANTS = [
    Variant("task-tag", 1214, "uncased"),
    Variant("task-tag-cased", 1275, "cased"),
    Variant("task-tag-bpe", 1265, "bpe"),
    Variant("task-tag-unigram", 1265, "unigram"),
    Variant("task-tag-plain", 1300, "cased", PLAIN),
]


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        directory = empty_dir(out / variant.name)
        model, tokenizer = build(variant)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        formula.replace_weights(directory, variant.seed, GAINS)
        with formula.materialised(directory) as copy:
            write_golden(directory, copy)


def build(variant: Variant):
    labels = {
        "id2label": dict(enumerate(variant.labels)),
        "label2id": {label: number for number, label in enumerate(variant.labels)},
    }
    if variant.kind == "bpe":
        tokenizer = tiny.byte_level(add_prefix_space=True)
        config = RobertaConfig(vocab_size=len(tokenizer), **tiny.ROBERTA, **labels)
        return RobertaForTokenClassification(config), tokenizer
    if variant.kind == "unigram":
        tokenizer = tiny.unigram()
        config = XLMRobertaConfig(vocab_size=len(tokenizer), **tiny.ROBERTA, **labels)
        return XLMRobertaForTokenClassification(config), tokenizer
    # Cased, so that accents stay; the vocabulary has some of these letters as whole words, some as
    # pieces, and some not.
    more = "Anna Paris Jos J T S A P W Sa ##\u00e9 ##e ##\u0301 \u65e5 \u672c \u4eac ##\u00df \U0001f600".split()
    cased = variant.kind == "cased"
    tokenizer = tiny.wordpiece(lower_case=not cased, more=more)
    config = BertConfig(vocab_size=len(tokenizer), **tiny.BERT, **labels)
    return BertForTokenClassification(config), tokenizer


@torch.inference_mode()
def write_golden(directory: Path, copy: Path) -> None:
    model = AutoModelForTokenClassification.from_pretrained(copy)
    tokenizer = AutoTokenizer.from_pretrained(copy)
    pipeline = TokenClassificationPipeline(model=model, tokenizer=tokenizer)
    # The pipeline warns that it guesses words of byte-level and Unigram tokenizers from spaces; the
    # golden records the guess.
    warnings.filterwarnings("ignore", message="Tokenizer does not support real words")
    cases, logits = [], []
    for text in TEXTS:
        features = tokenizer(
            text, truncation=True, return_offsets_mapping=True, return_tensors="pt"
        )
        offsets = features.pop("offset_mapping")[0].tolist()
        scores = model(**features).logits[0].numpy()
        case = {
            "text": text,
            "ids": features["input_ids"][0].tolist(),
            "offsets": offsets,
        }
        for strategy in STRATEGIES:
            found = pipeline(text, aggregation_strategy=strategy)
            case[strategy] = [plain(entity) for entity in found]
        cases.append(case)
        logits.append(scores)
    strided = [
        strided_case(pipeline, text, stride) for text in LONG for stride in STRIDES
    ]
    # The numbers of the windows must matter: another stride gives another result.
    assert strided[0]["simple"] != strided[1]["simple"] != strided[2]["simple"]
    packed = np.concatenate(logits)
    require_spread(directory.name, packed)
    write_json_sections(
        directory / "golden.json",
        {
            "labels": list(model.config.id2label.values()),
            "cases": cases,
            "strided": strided,
        },
    )
    save_file({"logits": packed}, directory / "golden.safetensors")


def strided_case(
    pipeline: TokenClassificationPipeline, text: str, stride: int
) -> dict:
    """A text in windows that share `stride` tokens; every strategy that the pipeline allows."""
    windows = pipeline.tokenizer(
        text,
        truncation=True,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    last = windows["offset_mapping"][-1]
    assert max(end for _, end in last) >= len(text.rstrip()), (text, stride)
    found = {
        strategy: [
            plain(entity)
            for entity in pipeline(text, aggregation_strategy=strategy, stride=stride)
        ]
        for strategy in STRATEGIES
        if strategy != "none"
    }
    return {
        "text": text,
        "stride": stride,
        "windows": windows["input_ids"],
    } | found


def require_spread(name: str, logits: np.ndarray) -> None:
    """Checks that no label dominates and that rounding decides no choice."""
    top = np.sort(logits, axis=1)
    share = np.bincount(logits.argmax(axis=1), minlength=logits.shape[1]) / len(logits)
    margin = (top[:, -1] - top[:, -2]).min()
    assert share.max() < 0.6 and share.min() > 0.03 and margin > 1e-3, (
        name,
        share.round(2),
        margin,
    )


def plain(entity: dict) -> dict:
    return {
        key: float(value) if key == "score" else value for key, value in entity.items()
    }
