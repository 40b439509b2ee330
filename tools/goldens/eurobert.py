"""EuroBERT: Llama's block with attention in both directions, and its heads."""

from pathlib import Path

from transformers import (
    EuroBertForMaskedLM,
    EuroBertForSequenceClassification,
    EuroBertForTokenClassification,
    EuroBertModel,
)

from absolute import LABELS, changed
from bidirectional import MILD, WIDE_LENGTHS, Encoder, write

# As in EuroBERT-210m on the hub.
CONFIG = {
    "architectures": ["EuroBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token": "<|begin_of_text|>",
    "bos_token_id": 3,
    "clf_pooling": "late",
    "eos_token": "<|end_of_text|>",
    "eos_token_id": 1,
    "head_dim": 12,
    "hidden_act": "silu",
    "hidden_dropout": 0.0,
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 80,
    "mask_token": "<|mask|>",
    "mask_token_id": 2,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "eurobert",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "pad_token_id": 1,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 250000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.40.0.dev0",
    "use_cache": False,
    "vocab_size": 101,
}


def sequence(name: str, seed: int, **changes: str) -> Encoder:
    config = changed(CONFIG, "EuroBertForSequenceClassification", **LABELS, **changes)
    if changes:
        del config["clf_pooling"]
    return Encoder(name, seed, EuroBertForSequenceClassification, config, whole=True)


ENCODERS = [
    # Grouped queries, as in the larger models, and biases.
    Encoder(
        "eurobert",
        771,
        EuroBertModel,
        changed(
            CONFIG,
            "EuroBertModel",
            num_key_value_heads=2,
            attention_bias=True,
            mlp_bias=True,
            rms_norm_eps=0.01,
        ),
        [{"rope_theta": 100}, {"rms_norm_eps": 1e-5}],
    ),
    Encoder(
        "eurobert-wide",
        772,
        EuroBertModel,
        changed(
            CONFIG,
            "EuroBertModel",
            hidden_size=768,
            intermediate_size=3072,
            head_dim=64,
            num_attention_heads=12,
            num_hidden_layers=1,
            num_key_value_heads=12,
            vocab_size=300,
        ),
        lengths=WIDE_LENGTHS,
    ),
    Encoder("eurobert-mlm", 773, EuroBertForMaskedLM, CONFIG, whole=True),
    sequence("eurobert-sequence-late", 774),
    sequence("eurobert-sequence-mean", 775, classifier_pooling="mean"),
    sequence("eurobert-sequence-bos", 776, classifier_pooling="bos"),
    Encoder(
        "eurobert-token",
        777,
        EuroBertForTokenClassification,
        changed(CONFIG, "EuroBertForTokenClassification", **LABELS),
        whole=True,
    ),
]
for variant in ENCODERS:
    variant.rules = MILD


def make(out: Path, _work: Path) -> None:
    for variant in ENCODERS:
        write(out, variant)
