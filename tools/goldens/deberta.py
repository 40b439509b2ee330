"""DeBERTa and DeBERTa v2/v3: disentangled attention between content and relative positions (c2p,
p2c)."""

from pathlib import Path

from transformers import (
    DebertaForMaskedLM,
    DebertaForSequenceClassification,
    DebertaForTokenClassification,
    DebertaModel,
    DebertaV2ForMaskedLM,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
    DebertaV2Model,
)

from absolute import LABELS, changed
from synthetic import HEAD_LENGTHS, LONG_LENGTHS, WIDE_LENGTHS, Variant, write

V1 = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-07,
    "max_position_embeddings": 40,
    "max_relative_positions": -1,
    "model_type": "deberta",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "padding_idx": 0,
    "pos_att_type": "c2p|p2c",
    "position_biased_input": False,
    "relative_attention": True,
    "type_vocab_size": 0,
    "vocab_size": 99,
}
# As in deberta-v3-base, with so few buckets that 300 tokens reach the logarithmic ones and the
# last.
V3 = V1 | {
    "model_type": "deberta-v2",
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": "p2c|c2p",
    "position_buckets": 16,
    "max_position_embeddings": 200,
    "share_att_key": True,
}
BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "vocab_size": 500,
}
# Absolute positions, token types, narrow embeddings and only one of c2p and p2c: what the base
# models do not have.
UNUSUAL = {
    "embedding_size": 20,
    "max_position_embeddings": 310,
    "max_relative_positions": 25,
    "pos_att_type": ["p2c"],
    "position_biased_input": True,
    "type_vocab_size": 2,
}
RULES = [("in_proj|pos_proj", 1.4, 0.0)]

VARIANTS = [
    # Sequences longer than the largest relative distance: farther ones are clamped.
    Variant(
        "deberta-tiny",
        221,
        DebertaModel,
        changed(V1, "DebertaModel", max_relative_positions=40),
        LONG_LENGTHS,
    ),
    Variant(
        "deberta-unusual",
        222,
        DebertaModel,
        changed(V1, "DebertaModel", **UNUSUAL | {"num_hidden_layers": 1}),
        LONG_LENGTHS,
    ),
    Variant(
        "deberta-sequence",
        223,
        DebertaForSequenceClassification,
        changed(
            V1,
            "DebertaForSequenceClassification",
            pooler_dropout=0,
            pooler_hidden_act="gelu",
            pooler_hidden_size=36,
            **LABELS,
        ),
        HEAD_LENGTHS,
    ),
    Variant(
        "deberta-token",
        224,
        DebertaForTokenClassification,
        changed(V1, "DebertaForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    # Without `legacy` in the config, transformers uses the head `cls`; with false, the head
    # `lm_predictions`.
    Variant(
        "deberta-mlm-legacy",
        225,
        DebertaForMaskedLM,
        changed(V1, "DebertaForMaskedLM"),
        HEAD_LENGTHS,
    ),
    Variant(
        "deberta-mlm",
        226,
        DebertaForMaskedLM,
        changed(V1, "DebertaForMaskedLM", legacy=False),
        HEAD_LENGTHS,
    ),
    Variant("deberta-base", 227, DebertaModel, V1 | BASE, WIDE_LENGTHS),
    Variant(
        "deberta-v2-tiny",
        231,
        DebertaV2Model,
        changed(V3, "DebertaV2Model"),
        LONG_LENGTHS,
    ),
    Variant(
        "deberta-v2-conv",
        232,
        DebertaV2Model,
        changed(
            V3,
            "DebertaV2Model",
            conv_kernel_size=3,
            conv_act="gelu",
            attention_head_size=12,
            position_buckets=48,
        ),
        LONG_LENGTHS,
    ),
    # Separate projections for positions; no buckets, so that the largest relative distance is 25
    # tokens.
    Variant(
        "deberta-v2-unshared",
        233,
        DebertaV2Model,
        changed(
            V3,
            "DebertaV2Model",
            share_att_key=False,
            norm_rel_ebd="none",
            position_buckets=-1,
            max_relative_positions=25,
        ),
        LONG_LENGTHS,
    ),
    Variant(
        "deberta-v2-unusual",
        234,
        DebertaV2Model,
        changed(
            V3,
            "DebertaV2Model",
            **UNUSUAL | {"pos_att_type": ["c2p"], "num_hidden_layers": 1},
            share_att_key=False,
            conv_kernel_size=5,
        ),
        LONG_LENGTHS,
    ),
    Variant(
        "deberta-v2-sequence",
        235,
        DebertaV2ForSequenceClassification,
        changed(
            V3,
            "DebertaV2ForSequenceClassification",
            pooler_dropout=0,
            pooler_hidden_act="gelu",
            pooler_hidden_size=36,
            **LABELS,
        ),
        HEAD_LENGTHS,
    ),
    Variant(
        "deberta-v2-token",
        236,
        DebertaV2ForTokenClassification,
        changed(V3, "DebertaV2ForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "deberta-v2-mlm-legacy",
        237,
        DebertaV2ForMaskedLM,
        changed(V3, "DebertaV2ForMaskedLM"),
        HEAD_LENGTHS,
    ),
    Variant(
        "deberta-v2-mlm",
        238,
        DebertaV2ForMaskedLM,
        changed(V3, "DebertaV2ForMaskedLM", legacy=False),
        HEAD_LENGTHS,
    ),
    # The published base models declare no architecture, and name their tensors as if there were a
    # head.
    Variant(
        "deberta-v3-base",
        239,
        DebertaV2Model,
        V3 | BASE | {"position_buckets": 256},
        WIDE_LENGTHS,
        hub_name=lambda name: f"deberta.{name}",
        extra={
            "lm_predictions.lm_head.bias": [500],
            "lm_predictions.lm_head.dense.weight": [768, 768],
            "lm_predictions.lm_head.dense.bias": [768],
            "lm_predictions.lm_head.LayerNorm.weight": [768],
            "lm_predictions.lm_head.LayerNorm.bias": [768],
        },
    ),
]
for variant in VARIANTS:
    variant.rules = RULES


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
