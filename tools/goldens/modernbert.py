"""ModernBERT: alternating sliding-window and full attention, with a RoPE base for each."""

from pathlib import Path
from types import MethodType

import torch
from torch import nn
from transformers import (
    ModernBertForMaskedLM,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
)

from absolute import LABELS, changed
from synthetic import (
    HEAD_LENGTHS,
    LONG_LENGTHS,
    WIDE_LENGTHS,
    Variant,
    frequencies,
    write,
)

# As in ModernBERT-base on the hub; a local attention of 16 covers 8 tokens on either side and the
# token itself.
CONFIG = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 1,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 2,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 36,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 26,
    "layer_norm_eps": 1e-05,
    "local_attention": 16,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 3,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "sep_token_id": 2,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
    "vocab_size": 99,
}
OLD = ["global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"]
SAVED_BY_5 = {name: value for name, value in CONFIG.items() if name not in OLD} | {
    "dtype": "float32",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "num_hidden_layers": 3,
    "rope_parameters": {
        "full_attention": {"rope_theta": 20000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
    },
    "transformers_version": "5.0.0",
}
RULES = [("Wqkv.weight", 1.4, 0.0)]
BIASES = {
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
    "classifier_bias": True,
}

VARIANTS = [
    Variant(
        "modernbert-tiny",
        201,
        ModernBertModel,
        changed(CONFIG, "ModernBertModel"),
        LONG_LENGTHS,
    ),
    # Layer types and RoPE bases that the old fields cannot express.
    Variant(
        "modernbert-layer-types",
        202,
        ModernBertModel,
        changed(SAVED_BY_5, "ModernBertModel"),
        LONG_LENGTHS,
    ),
    Variant(
        "modernbert-mlm",
        203,
        ModernBertForMaskedLM,
        CONFIG | {"num_hidden_layers": 2},
        HEAD_LENGTHS,
    ),
    Variant(
        "modernbert-sequence-mean",
        204,
        ModernBertForSequenceClassification,
        changed(
            CONFIG, "ModernBertForSequenceClassification", num_hidden_layers=2, **LABELS
        ),
        HEAD_LENGTHS,
    ),
    Variant(
        "modernbert-sequence-cls",
        205,
        ModernBertForSequenceClassification,
        changed(
            CONFIG,
            "ModernBertForSequenceClassification",
            num_hidden_layers=2,
            classifier_pooling="cls",
            **LABELS,
        ),
        HEAD_LENGTHS,
    ),
    Variant(
        "modernbert-token",
        206,
        ModernBertForTokenClassification,
        changed(
            CONFIG, "ModernBertForTokenClassification", num_hidden_layers=2, **LABELS
        ),
        HEAD_LENGTHS,
    ),
    # Every bias that the config can enable.
    Variant(
        "modernbert-biases",
        207,
        ModernBertForMaskedLM,
        CONFIG | {"num_hidden_layers": 2} | BIASES,
        HEAD_LENGTHS,
    ),
    Variant(
        "modernbert-base",
        208,
        ModernBertModel,
        changed(
            CONFIG,
            "ModernBertModel",
            hidden_size=768,
            num_attention_heads=12,
            intermediate_size=1152,
            num_hidden_layers=2,
            local_attention=128,
            max_position_embeddings=8192,
            vocab_size=500,
        ),
        WIDE_LENGTHS,
    ),
]


def exact_rotary(model: nn.Module) -> None:
    """Computes RoPE angles in float64; transformers does in float32, an error of 2e-6 of the hidden
    states at position 300."""

    def forward(
        self: nn.Module, _x: torch.Tensor, positions: torch.Tensor, layer_type: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        theta = self.config.rope_parameters[layer_type]["rope_theta"]
        size = self.config.hidden_size // self.config.num_attention_heads
        angles = positions[..., None].double() * frequencies(theta, size)
        twice = torch.cat((angles, angles), dim=-1)
        return twice.cos(), twice.sin()

    rotary = model.base_model.rotary_emb
    near = rotary(torch.zeros(1), torch.tensor([[3]]), "full_attention")
    rotary.forward = MethodType(forward, rotary)
    exact = rotary(torch.zeros(1), torch.tensor([[3]]), "full_attention")
    assert all(torch.allclose(a.double(), b, atol=1e-6) for a, b in zip(near, exact))


for variant in VARIANTS:
    variant.rules = RULES
    variant.prepare = exact_rotary


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
