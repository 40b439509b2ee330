"""BERT's heads, DistilBERT, RoBERTa and its relatives, MPNet, ELECTRA: encoders with absolute
position embeddings."""

from pathlib import Path
from typing import Any

from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    CamembertForMaskedLM,
    DistilBertForMaskedLM,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
    MPNetForMaskedLM,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
    MPNetModel,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from synthetic import HEAD_LENGTHS, LONG_LENGTHS, WIDE_LENGTHS, Variant, write

LABELS = {
    "id2label": {"0": "O", "1": "PER", "2": "LOC"},
    "label2id": {"O": 0, "PER": 1, "LOC": 2},
}

BERT = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "model_type": "bert",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 99,
}

BASE_WIDTH = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "vocab_size": 500,
}


def changed(
    config: dict[str, Any], architecture: str, **changes: Any
) -> dict[str, Any]:
    return config | {"architectures": [architecture]} | changes


def legacy(name: str) -> str:
    """The tensor names of bert-base-uncased and of other checkpoints converted from TensorFlow."""
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


BERTS = [
    Variant(
        "bert-sequence",
        101,
        BertForSequenceClassification,
        changed(BERT, "BertForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    # One label, as in rerankers.
    Variant(
        "bert-reranker",
        102,
        BertForSequenceClassification,
        changed(
            BERT,
            "BertForSequenceClassification",
            id2label={"0": "LABEL_0"},
            label2id={"LABEL_0": 0},
        ),
        HEAD_LENGTHS,
    ),
    Variant(
        "bert-token",
        103,
        BertForTokenClassification,
        changed(BERT, "BertForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "bert-mlm", 104, BertForMaskedLM, changed(BERT, "BertForMaskedLM"), HEAD_LENGTHS
    ),
    # Old files also have the pooler and the next-sentence head, which the masked LM ignores.
    Variant(
        "bert-mlm-legacy",
        105,
        BertForMaskedLM,
        changed(BERT, "BertForMaskedLM"),
        HEAD_LENGTHS,
        hub_name=legacy,
        extra={
            "bert.pooler.dense.weight": [36, 36],
            "bert.pooler.dense.bias": [36],
            "cls.seq_relationship.weight": [2, 36],
            "cls.seq_relationship.bias": [2],
        },
    ),
    Variant(
        "bert-base",
        106,
        BertModel,
        changed(BERT, "BertModel", **BASE_WIDTH),
        WIDE_LENGTHS,
    ),
]

DISTILBERT = {
    "activation": "gelu",
    "architectures": ["DistilBertModel"],
    "attention_dropout": 0.1,
    "dim": 36,
    "dropout": 0.1,
    "hidden_dim": 50,
    "initializer_range": 0.02,
    "max_position_embeddings": 40,
    "model_type": "distilbert",
    "n_heads": 3,
    "n_layers": 2,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "transformers_version": "4.10.0.dev0",
    "vocab_size": 99,
}

DISTILBERTS = [
    Variant(
        "distilbert-tiny",
        111,
        DistilBertModel,
        changed(DISTILBERT, "DistilBertModel", n_layers=3),
        [7, 1, 17, 2, 40],
    ),
    Variant(
        "distilbert-sequence",
        112,
        DistilBertForSequenceClassification,
        changed(DISTILBERT, "DistilBertForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "distilbert-token",
        113,
        DistilBertForTokenClassification,
        changed(DISTILBERT, "DistilBertForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "distilbert-mlm",
        114,
        DistilBertForMaskedLM,
        changed(DISTILBERT, "DistilBertForMaskedLM"),
        HEAD_LENGTHS,
    ),
    Variant(
        "distilbert-base",
        115,
        DistilBertModel,
        changed(
            DISTILBERT,
            "DistilBertModel",
            dim=768,
            n_heads=12,
            hidden_dim=3072,
            max_position_embeddings=512,
            vocab_size=500,
        ),
        WIDE_LENGTHS,
    ),
]

ROBERTA = {
    "architectures": ["RobertaModel"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 42,
    "model_type": "roberta",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 99,
}
XLM_ROBERTA = ROBERTA | {
    "model_type": "xlm-roberta",
    "output_past": True,
    "position_embedding_type": "absolute",
    "transformers_version": "4.17.0.dev0",
    "use_cache": True,
}
CAMEMBERT = ROBERTA | {
    "bos_token_id": 5,
    "eos_token_id": 6,
    "model_type": "camembert",
    "output_past": True,
}
# Positions keep counting after a padding token (1) in the middle, and the padding token itself has
# position 1.
PADS = [[0, 17, 1, 44, 1, 1, 63, 2], [1, 1, 30], [1]]
# The last sequence reaches the end of the position table; two of its rows are used by no token
# outside `PADS`.
FULL = [7, 1, 17, 2, 40]

ROBERTAS = [
    Variant(
        "roberta-tiny",
        121,
        RobertaModel,
        changed(ROBERTA, "RobertaModel", num_hidden_layers=3),
        FULL,
        PADS,
    ),
    Variant(
        "roberta-sequence",
        122,
        RobertaForSequenceClassification,
        changed(ROBERTA, "RobertaForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "roberta-token",
        123,
        RobertaForTokenClassification,
        changed(ROBERTA, "RobertaForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "roberta-mlm",
        124,
        RobertaForMaskedLM,
        changed(ROBERTA, "RobertaForMaskedLM"),
        HEAD_LENGTHS,
    ),
    Variant(
        "roberta-base",
        125,
        RobertaModel,
        changed(
            ROBERTA, "RobertaModel", **BASE_WIDTH | {"max_position_embeddings": 514}
        ),
        WIDE_LENGTHS,
    ),
    # A padding id and a number of types that a reader which assumes 1 gets wrong.
    Variant(
        "xlm-roberta-tiny",
        126,
        XLMRobertaModel,
        changed(
            XLM_ROBERTA,
            "XLMRobertaModel",
            pad_token_id=3,
            type_vocab_size=2,
            max_position_embeddings=44,
        ),
        FULL,
        [[0, 17, 3, 44, 1, 3, 63, 2]],
    ),
    Variant(
        "xlm-roberta-sequence",
        127,
        XLMRobertaForSequenceClassification,
        changed(
            XLM_ROBERTA,
            "XLMRobertaForSequenceClassification",
            id2label={"0": "LABEL_0"},
            label2id={"LABEL_0": 0},
        ),
        HEAD_LENGTHS,
        PADS,
    ),
    Variant(
        "xlm-roberta-large",
        128,
        XLMRobertaModel,
        changed(
            XLM_ROBERTA,
            "XLMRobertaModel",
            hidden_size=1024,
            num_attention_heads=16,
            intermediate_size=4096,
            max_position_embeddings=514,
            vocab_size=500,
        ),
        WIDE_LENGTHS,
    ),
    Variant(
        "camembert-mlm",
        129,
        CamembertForMaskedLM,
        changed(CAMEMBERT, "CamembertForMaskedLM"),
        HEAD_LENGTHS,
        PADS,
    ),
]

MPNET = {
    "architectures": ["MPNetModel"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 322,
    "model_type": "mpnet",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 1,
    "relative_attention_num_buckets": 32,
    "transformers_version": "4.8.2",
    "vocab_size": 99,
}
RELATIVE = [("relative_attention_bias", -1.5, 0.0)]

MPNETS = [
    Variant(
        "mpnet-tiny",
        131,
        MPNetModel,
        changed(MPNET, "MPNetModel"),
        LONG_LENGTHS,
        PADS,
        rules=RELATIVE,
    ),
    Variant(
        "mpnet-sequence",
        132,
        MPNetForSequenceClassification,
        changed(MPNET, "MPNetForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
        rules=RELATIVE,
    ),
    Variant(
        "mpnet-token",
        133,
        MPNetForTokenClassification,
        changed(MPNET, "MPNetForTokenClassification", **LABELS),
        HEAD_LENGTHS,
        rules=RELATIVE,
    ),
    Variant(
        "mpnet-mlm",
        134,
        MPNetForMaskedLM,
        changed(MPNET, "MPNetForMaskedLM"),
        HEAD_LENGTHS,
        rules=RELATIVE,
    ),
    Variant(
        "mpnet-base",
        135,
        MPNetModel,
        changed(MPNET, "MPNetModel", **BASE_WIDTH | {"max_position_embeddings": 514}),
        WIDE_LENGTHS,
        rules=RELATIVE,
    ),
]

ELECTRA = {
    "architectures": ["ElectraModel"],
    "attention_probs_dropout_prob": 0.1,
    "embedding_size": 20,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "model_type": "electra",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
    "summary_type": "first",
    "summary_use_proj": True,
    "type_vocab_size": 2,
    "vocab_size": 99,
}

ELECTRAS = [
    Variant(
        "electra-tiny",
        141,
        ElectraModel,
        changed(ELECTRA, "ElectraModel", num_hidden_layers=3),
        [7, 1, 17, 2, 40],
    ),
    # The architecture that published discriminators declare: the same encoder, and a head that an
    # embedder ignores.
    Variant(
        "electra-discriminator",
        142,
        ElectraForPreTraining,
        changed(ELECTRA, "ElectraForPreTraining", embedding_size=36),
        HEAD_LENGTHS,
        logits=False,
    ),
    Variant(
        "electra-sequence",
        143,
        ElectraForSequenceClassification,
        changed(ELECTRA, "ElectraForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "electra-token",
        144,
        ElectraForTokenClassification,
        changed(ELECTRA, "ElectraForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "electra-mlm",
        145,
        ElectraForMaskedLM,
        changed(ELECTRA, "ElectraForMaskedLM"),
        HEAD_LENGTHS,
    ),
    # Hidden size equal to the embedding size, so without a projection; the small one has it.
    Variant(
        "electra-base",
        146,
        ElectraModel,
        changed(ELECTRA, "ElectraModel", **BASE_WIDTH, embedding_size=768),
        WIDE_LENGTHS,
    ),
    Variant(
        "electra-small",
        147,
        ElectraModel,
        changed(
            ELECTRA,
            "ElectraModel",
            vocab_size=500,
            embedding_size=128,
            hidden_size=256,
            intermediate_size=1024,
            num_attention_heads=4,
            max_position_embeddings=512,
        ),
        WIDE_LENGTHS,
    ),
]


def make(out: Path, _work: Path) -> None:
    for variant in BERTS + DISTILBERTS + ROBERTAS + MPNETS + ELECTRAS:
        write(out, variant)
