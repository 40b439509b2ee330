"""Tiny random BERTs in the hub's layout, with the hidden states of every layer in float64."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
)

from files import empty_dir, write_json

# 40 is max_position_embeddings: a sequence must reach the last position and none may exceed it.
LENGTHS = [7, 1, 40, 2, 16, 33]


@dataclass
class Variant:
    """One golden directory. `config` has the fields that differ from `BASE`."""

    name: str
    seed: int
    config: dict[str, Any] = field(default_factory=dict)
    architecture: type[PreTrainedModel] = BertModel
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    lengths: list[int] = field(default_factory=lambda: LENGTHS)


BASE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}

VARIANTS = [
    Variant("bert-gelu", seed=1),
    # A head size of 12 and an intermediate size of 50 are multiples of no vector width.
    Variant(
        "bert-gelu-new",
        seed=2,
        config={
            "hidden_act": "gelu_new",
            "num_hidden_layers": 2,
            "hidden_size": 36,
            "num_attention_heads": 3,
            "intermediate_size": 50,
            "layer_norm_eps": 1e-5,
        },
    ),
    Variant(
        "bert-relu",
        seed=3,
        config={
            "hidden_act": "relu",
            "num_hidden_layers": 1,
            "hidden_size": 48,
            "num_attention_heads": 2,
            "type_vocab_size": 1,
        },
    ),
    # With a task head, the encoder's tensor names begin with `bert.`; this head has no pooler.
    Variant(
        "bert-masked-lm",
        seed=4,
        config={"num_hidden_layers": 2},
        architecture=BertForMaskedLM,
    ),
    Variant(
        "bert-classifier",
        seed=5,
        config={"num_hidden_layers": 2, "num_labels": 3},
        architecture=BertForSequenceClassification,
    ),
    # A head larger than 128. Stored in half precision, as many models are, which also keeps the
    # file small.
    Variant(
        "bert-wide-head",
        seed=6,
        config={
            "hidden_act": "silu",
            "vocab_size": 40,
            "num_hidden_layers": 1,
            "hidden_size": 130,
            "num_attention_heads": 1,
            "intermediate_size": 48,
        },
        options={"add_pooling_layer": False},
        dtype=torch.float16,
        lengths=[5, 1, 33, 2],
    ),
]


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        directory = empty_dir(out / variant.name)
        chance = torch.Generator().manual_seed(variant.seed)
        model = variant.architecture(
            BertConfig(**BASE | variant.config), **variant.options
        )
        randomize(model, chance)
        model.to(variant.dtype).save_pretrained(directory)
        write_golden(variant, directory, chance)


def randomize(model: PreTrainedModel, chance: torch.Generator) -> None:
    """Random weights with the spread of trained ones.

    With the usual 0.02, every attention is nearly uniform, every activation nearly linear and every
    bias zero, so a model that omits one of them would still pass.
    """
    for name, weight in model.named_parameters():
        if name.endswith("LayerNorm.weight"):
            torch.nn.init.uniform_(weight, 0.7, 1.3, generator=chance)
        elif name.endswith("bias"):
            torch.nn.init.uniform_(weight, -0.2, 0.2, generator=chance)
        elif "embeddings" in name:
            torch.nn.init.normal_(weight, std=0.7, generator=chance)
        else:
            gain = 1.4 if "query" in name or "key" in name else 1.0
            torch.nn.init.normal_(
                weight, std=gain / weight.shape[1] ** 0.5, generator=chance
            )


@torch.inference_mode()
def write_golden(variant: Variant, directory: Path, chance: torch.Generator) -> None:
    # Loaded from the saved files with the class that saved them: another class would initialize
    # missing tensors at random.
    model = variant.architecture.from_pretrained(
        directory, attn_implementation="eager", dtype=torch.float64, **variant.options
    ).eval()
    encoder, config = model.base_model, model.config

    packed: dict[str, list[torch.Tensor]] = {}

    def pack(name: str, value: torch.Tensor) -> None:
        packed.setdefault(name, []).append(value)

    # One sequence at a time, so without padding and mask.
    for length in variant.lengths:
        ids = torch.randint(config.vocab_size, (1, length), generator=chance)
        type_ids = torch.randint(config.type_vocab_size, (1, length), generator=chance)
        result = encoder(
            input_ids=ids, token_type_ids=type_ids, output_hidden_states=True
        )
        pack("ids", ids[0])
        pack("type_ids", type_ids[0])
        assert len(result.hidden_states) == config.num_hidden_layers + 1
        for layer, hidden in enumerate(result.hidden_states):
            pack(f"hidden.{layer}", hidden[0])
        if result.pooler_output is not None:
            pack("pooler", result.pooler_output)
        if hasattr(model, "classifier"):
            pack("logits", model(input_ids=ids, token_type_ids=type_ids).logits)

    arrays = {name: torch.cat(values).numpy() for name, values in packed.items()}
    arrays["cu_seqlens"] = np.cumsum([0, *variant.lengths])
    tensors = {
        name: array.astype(np.float32 if array.dtype == np.float64 else np.uint32)
        for name, array in arrays.items()
    }
    save_file(tensors, directory / "golden.safetensors")
    write_json(
        directory / "golden.json",
        {
            "architecture": variant.architecture.__name__,
            "weights_dtype": str(variant.dtype).removeprefix("torch."),
            "lengths": variant.lengths,
            "tensors": {
                name: list(tensor.shape) for name, tensor in sorted(tensors.items())
            },
        },
    )
