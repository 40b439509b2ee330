"""Language models with attention in both directions, as embedding models: EmbeddingGemma, gte-Qwen2,
llama-nemotron-embed, pplx-embed and voyage-4-nano."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3TextModel,
    LlamaForSequenceClassification,
    LlamaModel,
    MistralForSequenceClassification,
    PreTrainedModel,
    Qwen2Model,
    Qwen3ForCausalLM,
    Qwen3Model,
)

import formula
from absolute import LABELS, changed
from decoders import LLAMA_3, MISTRAL, QWEN2, QWEN3, RULES, without
from decoders_own import GEMMA_3, GEMMAS
from decoding import (
    Decoder,
    draw,
    exactly,
    in_float64,
    load,
    near,
    prefill,
    rebuilt,
)
from files import empty_dir, write_json
from synthetic import Packed

LENGTHS = [1, 2, 17, 40]
WIDE_LENGTHS = [1, 2, 9]
# As on the hub: the window counts the tokens on both sides together.
EMBEDDING_GEMMA = without(
    GEMMA_3, "sliding_window_pattern", "cache_implementation", "torch_dtype"
) | {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3TextModel"],
    "dtype": "float32",
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "transformers_version": "4.57.0.dev0",
    "use_bidirectional_attention": True,
}
# Residual branches that are weaker than the stream: half formats are compared as well.
MILD = [rule for rule in RULES if not re.search("o_proj|down_proj", rule[0])]
# transformers' switch for any decoder.
BOTH = {"is_causal": False}
NEMOTRON = {"model_type": "llama_bidirec", "pooling": "avg", "temperature": 1.0}


@dataclass
class Encoder(Decoder):
    """One golden directory. `config` is what the reference reads."""

    # The content of config.json, if the reference cannot read it.
    published: dict[str, Any] | None = None
    # The rows of `linear.weight`, a projection of the last hidden states.
    projection: int | None = None
    # The logits of the published code, from the last hidden states.
    score: Callable[[PreTrainedModel, torch.Tensor], torch.Tensor] | None = None
    # Whether the reference has a head, whose logits are stored.
    whole: bool = False
    lengths: list[int] | None = None


def score_mean(model: PreTrainedModel, last: torch.Tensor) -> torch.Tensor:
    """llama-nemotron-rerank: the score of the mean hidden state."""
    return model.score(last.mean(dim=0))[None]


def score_last(model: PreTrainedModel, last: torch.Tensor) -> torch.Tensor:
    return model.score(last[-1])[None]


CAUSAL = [{"is_causal": True}]
GEMMA_ENCODERS = [
    Encoder(
        "embedding-gemma",
        761,
        Gemma3TextModel,
        EMBEDDING_GEMMA,
        [
            {"use_bidirectional_attention": False},
            {"sliding_window": 6},
            {"sliding_window": 10},
        ],
    ),
    Encoder(
        "embedding-gemma-wide",
        762,
        Gemma3TextModel,
        EMBEDDING_GEMMA
        | {
            "head_dim": 256,
            "hidden_size": 768,
            "intermediate_size": 1152,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_hidden_layers": 2,
            "query_pre_attn_scalar": 256,
            "sliding_window": 512,
            "vocab_size": 300,
        },
        lengths=WIDE_LENGTHS,
    ),
]
LLAMA_ENCODERS = [
    Encoder(
        "llama-bidirec",
        763,
        LlamaModel,
        changed(LLAMA_3, "LlamaModel", **BOTH),
        CAUSAL,
        published=changed(LLAMA_3, "LlamaBidirectionalModel", **NEMOTRON),
    ),
    Encoder(
        "llama-bidirec-sequence",
        764,
        LlamaForSequenceClassification,
        changed(LLAMA_3, "LlamaForSequenceClassification", **LABELS, **BOTH),
        published=changed(
            LLAMA_3, "LlamaBidirectionalForSequenceClassification", **LABELS, **NEMOTRON
        ),
        score=score_mean,
    ),
    # The window is as wide on each side as the causal one.
    Encoder(
        "mistral-bidirectional",
        765,
        MistralForSequenceClassification,
        changed(MISTRAL, "MistralForSequenceClassification", **LABELS, **BOTH),
        [*CAUSAL, {"sliding_window": 7}, {"sliding_window": 9}],
        score=score_last,
    ),
    # gte-Qwen2.
    Encoder(
        "qwen2-bidirectional",
        766,
        Qwen2Model,
        QWEN2 | BOTH,
        CAUSAL,
    ),
    Encoder(
        "pplx-embed",
        767,
        Qwen3Model,
        changed(QWEN3, "Qwen3Model", **BOTH),
        CAUSAL,
        published=changed(
            QWEN3,
            "PPLXQwen3Model",
            model_type="bidirectional_pplx_qwen3",
            use_bidirectional_attention=True,
        ),
    ),
    Encoder(
        "voyage-4-nano",
        768,
        Qwen3ForCausalLM,
        QWEN3 | BOTH,
        CAUSAL,
        published=changed(
            QWEN3,
            "Qwen3ForCausalLM",
            num_labels=20,
            use_bidirectional_attention=True,
        ),
        projection=20,
    ),
]
for variant in GEMMA_ENCODERS:
    variant.rules = GEMMAS + RULES
for variant in LLAMA_ENCODERS:
    variant.rules = [("score.weight", 2.5, 0.0), *MILD]
ENCODERS = GEMMA_ENCODERS + LLAMA_ENCODERS


def with_projection(directory: Path, variant: Encoder, width: int) -> torch.Tensor:
    """Adds `linear.weight` to tensors.json and returns its values in float64."""
    shape = [variant.projection, width]
    path = directory / formula.FORMULA
    spec = formula.read(path)
    spec["linear.weight"] = {"shape": shape, "scale": 0.25, "shift": 0.0}
    formula.write(directory, variant.seed, spec)
    return torch.from_numpy(
        formula.values(variant.seed, "linear.weight", **spec["linear.weight"])
    ).double()


def states(
    model: PreTrainedModel, ids: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    with exactly(model):
        result = model.base_model(ids, output_hidden_states=True, use_cache=False)
    hidden = list(result.hidden_states)
    assert len(hidden) == model.config.num_hidden_layers + 1
    assert torch.equal(hidden[-1], result.last_hidden_state)
    return result.last_hidden_state[0], hidden


def assert_matters(variant: Encoder, model: PreTrainedModel, ids: torch.Tensor) -> None:
    mine, _ = states(model, ids)
    for change in variant.matters:
        config = type(model).config_class.from_dict(variant.config | change)
        other, _ = states(rebuilt(model, config, torch.float32), ids)
        assert near(mine, other) > 0.05, (variant.name, change, near(mine, other))


@torch.inference_mode()
def write(out: Path, variant: Encoder) -> None:
    directory = empty_dir(out / variant.name)
    single = load(variant, directory)
    model = in_float64(single)
    linear = None
    if variant.projection:
        linear = with_projection(directory, variant, model.config.hidden_size)
    prompts = draw(variant.seed, model.config.vocab_size, variant.lengths or LENGTHS)
    assert_matters(variant, single, prompts[-1])
    packed, distance = Packed(), 0.0
    for ids in prompts:
        last, hidden = states(model, ids)
        distance = max(distance, near(last, states(single, ids)[0]))
        packed.lengths.append(ids.shape[1])
        packed.add("ids", ids[0])
        packed.add("type_ids", torch.zeros_like(ids[0]))
        if linear is not None:
            hidden[-1] = (last @ linear.T)[None]
        for layer, rows in enumerate(hidden):
            packed.add(f"hidden.{layer}", rows[0])
        if variant.score:
            packed.add("logits", variant.score(model, last))
        if variant.whole:
            logits = prefill(model, ids).logits
            packed.add("logits", logits if logits.dim() == 2 else logits[0])
    assert distance < 2e-4, distance
    published = variant.published or variant.config
    write_json(directory / "config.json", published)
    about = {
        "architecture": published["architectures"][0],
        "model": variant.model.__name__,
        "float32_distance": float(f"{distance:.1e}"),
    }
    packed.write(directory, about)


def make(out: Path, _work: Path) -> None:
    for variant in ENCODERS:
        write(out, variant)
