"""Tiny cross-encoders, scored by sentence-transformers' CrossEncoder, and with the head on other
poolings."""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import CrossEncoder
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)

import formula
import tiny
from files import empty_dir, write_json_sections

QUERIES = [
    "where is the cat?",
    "Hello, World!",
    "",
    "caf\u00e9 d\u00e9j\u00e0 vu \u65e5\u672c",
    "what is the time the man said he would have been eating",
    "  query   with\tspaces ",
]
DOCUMENTS = [
    "The cat sat on the mat.",
    "",
    "A man is eating food.",
    "\u65e5\u672c\u8a9e and caf\u00e9 \U0001f469\u200d\U0001f52c are not all in the vocabulary",
    # Longer than the limit on its own, and so with every query.
    "This text has many more tokens than the model may read, and what comes after the limit should not be heard at all.",
    "[SEP] and </s> are said, not meant: [CLS] <s>",
    # A copy of the first: equal scores must keep their order.
    "The cat sat on the mat.",
]


def make(out: Path, _work: Path) -> None:
    tokenizer = tiny.wordpiece()
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, **tiny.BERT)
    make_one(
        out / "task-rerank", BertForSequenceClassification(config), tokenizer, seed=101
    )
    tokenizer = tiny.unigram()
    config = XLMRobertaConfig(vocab_size=len(tokenizer), num_labels=1, **tiny.ROBERTA)
    # As in the MS MARCO cross-encoders: the default score is the raw logit.
    config.sentence_transformers = {
        "activation_fn": "torch.nn.modules.linear.Identity",
        "version": "4.0.1",
    }
    make_one(
        out / "task-rerank-roberta",
        XLMRobertaForSequenceClassification(config),
        tokenizer,
        seed=102,
    )


def make_one(directory: Path, model, tokenizer, seed: int) -> None:
    empty_dir(directory)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    formula.replace_weights(
        directory, seed, {"classifier.weight": 3, "out_proj": 4}
    )
    with formula.materialised(directory) as copy:
        encoder = CrossEncoder(str(copy), device="cpu", local_files_only=True)
        write_golden(directory, encoder)


@torch.inference_mode()
def write_golden(directory: Path, encoder: CrossEncoder) -> None:
    assert encoder.max_seq_length == tiny.MAX_TOKENS
    pairs, arrays = [], {"logits": [], "sigmoid": [], "scores": []}
    for q, query in enumerate(QUERIES):
        for d, document in enumerate(DOCUMENTS):
            features = encoder.preprocess([(query, document)])
            ids = features["input_ids"]
            type_ids = features.get("token_type_ids", torch.zeros_like(ids))
            pairs.append(
                {
                    "query": q,
                    "document": d,
                    "ids": ids[0].tolist(),
                    "type_ids": type_ids[0].tolist(),
                }
            )
            # One pair per call, so without padding.
            raw = encoder.predict((query, document), activation_fn=torch.nn.Identity())
            sigmoid = encoder.predict((query, document), activation_fn=torch.nn.Sigmoid())
            arrays["logits"].append(raw)
            arrays["sigmoid"].append(sigmoid)
            arrays["scores"].append(encoder.predict((query, document)))
            if isinstance(encoder.model, BertForSequenceClassification):
                for name, score in other_heads(encoder.model, ids, type_ids).items():
                    arrays.setdefault(name, []).append(score)
    if "pooler" in arrays:
        np.testing.assert_array_equal(arrays["pooler"], arrays["logits"])
    assert np.std(arrays["logits"]) > 0.3, np.std(arrays["logits"])

    # A stable descending sort, as in `rank`.
    ranking = [
        [hit["corpus_id"] for hit in encoder.rank(query, DOCUMENTS, batch_size=1)]
        for query in QUERIES
    ]
    write_json_sections(
        directory / "golden.json",
        {
            "queries": QUERIES,
            "documents": DOCUMENTS,
            "ranking": ranking,
            "pairs": pairs,
        },
    )
    save_file(
        {name: np.array(value, np.float32) for name, value in arrays.items()},
        directory / "golden.safetensors",
    )


def other_heads(
    model: BertForSequenceClassification, ids: torch.Tensor, type_ids: torch.Tensor
) -> dict[str, float]:
    result = model.bert(input_ids=ids, token_type_ids=type_ids)
    pooled = {
        "pooler": result.pooler_output[0],
        "cls": result.last_hidden_state[0, 0],
        "mean": result.last_hidden_state[0].mean(dim=0),
    }
    return {name: model.classifier(vector).item() for name, vector in pooled.items()}
