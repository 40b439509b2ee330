"""GTE (the hub's `NewModel`): RoPE, a fused QKV projection, gated MLPs."""

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import (
    GteConfig,
    GteForMaskedLM,
    GteForSequenceClassification,
    GteForTokenClassification,
    GteModel,
    PreTrainedModel,
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

# As in gte-base-en-v1.5.
NEW = {
    "architectures": ["NewModel"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "id2label": {"0": "LABEL_0"},
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "label2id": {"LABEL_0": 0},
    "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "max_position_embeddings": 512,
    "model_type": "new",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pack_qkv": True,
    "pad_token_id": 0,
    "position_embedding_type": "rope",
    "rope_scaling": {"factor": 2.0, "type": "ntk"},
    "rope_theta": 500000,
    "torch_dtype": "float32",
    "transformers_version": "4.39.1",
    "type_vocab_size": 0,
    "unpad_inputs": False,
    "use_memory_efficient_attention": False,
    "vocab_size": 99,
}
# As transformers 5 writes it, with the names of arctic-embed-m-v2.0.
SAVED_BY_5 = {
    "architectures": ["GteModel"],
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": None,
    "dtype": "float32",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 36,
    "initializer_range": 0.02,
    "intermediate_size": 50,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "gte",
    "num_attention_heads": 3,
    "num_hidden_layers": 1,
    "pad_token_id": 1,
    "rope_parameters": {"rope_theta": 160000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "transformers_version": "5.0.0",
    "type_vocab_size": 1,
    "vocab_size": 99,
}
BASE = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 8192,
    "vocab_size": 500,
}
MULTILINGUAL = {
    "rope_scaling": {"factor": 8.0, "type": "ntk"},
    "rope_theta": 20000,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}


def reference(config: dict[str, Any]) -> GteConfig:
    """The same model in the terms of transformers. `exact_rotary` sets the frequencies."""
    same = [
        "attention_probs_dropout_prob",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "pad_token_id",
        "type_vocab_size",
        "vocab_size",
    ]
    return GteConfig(
        **{name: config[name] for name in same},
        num_labels=len(config.get("id2label", {"0": ""})),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def rotary(config: dict[str, Any]) -> torch.Tensor:
    """NTK scaling as in the hub's code: a base `factor` times as large, then every frequency
    divided by factor^(2/size)."""
    size = config["hidden_size"] // config["num_attention_heads"]
    if "rope_parameters" in config:
        return frequencies(config["rope_parameters"]["rope_theta"], size)
    scaling = config["rope_scaling"]
    if scaling is None:
        return frequencies(config["rope_theta"], size)
    factor = scaling["factor"]
    return frequencies(config["rope_theta"] * factor, size) / factor ** (2 / size)


def variant(
    name: str,
    seed: int,
    model: type[PreTrainedModel],
    config: dict[str, Any],
    lengths: list[int],
    prefixed: bool = False,
    **more: Any,
) -> Variant:
    turns = rotary(config)

    def exact_rotary(model: PreTrainedModel) -> None:
        def forward(
            _self: nn.Module, _x: torch.Tensor, positions: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            angles = positions[..., None].double() * turns
            twice = torch.cat((angles, angles), dim=-1)
            return twice.cos(), twice.sin()

        module = model.base_model.rotary_emb
        module.forward = MethodType(forward, module)

    def hub_name(name: str) -> str:
        if prefixed:
            return f"new.{name}"
        return f"new.{name.removeprefix('gte.')}" if name.startswith("gte.") else name

    return Variant(
        name,
        seed,
        model,
        config,
        lengths,
        rules=[("qkv_proj.weight", 1.4, 0.0)],
        hub_name=hub_name,
        reference_config=reference(config),
        prepare=exact_rotary,
        **more,
    )


VARIANTS = [
    variant("gte-new-tiny", 311, GteModel, NEW, LONG_LENGTHS),
    # As in gte-multilingual-base: tensor names with a prefix, and a head that an embedder ignores.
    variant(
        "gte-new-multilingual",
        312,
        GteModel,
        NEW | MULTILINGUAL,
        LONG_LENGTHS,
        prefixed=True,
        extra={"classifier.weight": [1, 36], "classifier.bias": [1]},
    ),
    variant(
        "gte-new-unscaled",
        313,
        GteModel,
        NEW | {"rope_scaling": None, "rope_theta": 10000.0, "type_vocab_size": 2},
        HEAD_LENGTHS,
    ),
    variant("gte-model", 314, GteModel, SAVED_BY_5, LONG_LENGTHS),
    variant(
        "gte-new-sequence",
        315,
        GteForSequenceClassification,
        changed(NEW, "NewForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    variant(
        "gte-new-token",
        316,
        GteForTokenClassification,
        changed(NEW, "NewForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    variant(
        "gte-new-mlm",
        317,
        GteForMaskedLM,
        changed(NEW, "NewForMaskedLM", type_vocab_size=2),
        HEAD_LENGTHS,
    ),
    variant("gte-new-base", 318, GteModel, NEW | BASE, WIDE_LENGTHS),
]


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
