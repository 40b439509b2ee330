"""NomicBERT, with and without a mixture of experts, after its authors' published code; checked
against transformers."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import gelu, silu
from transformers import NomicBertConfig, NomicBertModel

from absolute import LABELS, changed
from plain import Weights, attention, linear, norm, rotate
from synthetic import (
    HEAD_LENGTHS,
    LONG_LENGTHS,
    WIDE_LENGTHS,
    Rule,
    Variant,
    all_in_float64,
    write_plain,
)

# As in nomic-embed-text-v1.5.
TEXT = {
    "activation_function": "swiglu",
    "architectures": ["NomicBertModel"],
    "attn_pdrop": 0.0,
    "bos_token_id": None,
    "causal": False,
    "dense_seq_output": True,
    "embd_pdrop": 0.0,
    "eos_token_id": None,
    "fused_bias_fc": True,
    "fused_dropout_add_ln": True,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 36,
    "n_head": 3,
    # The published code rounds the intermediate size of a gated MLP up to a multiple of 256.
    "n_inner": 256,
    "n_layer": 2,
    "n_positions": 8192,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "parallel_block_tied_norm": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "reorder_and_upcast_attn": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "torch_dtype": "float32",
    "transformers_version": "4.34.0",
    "type_vocab_size": 2,
    "use_cache": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
    "use_xentropy": True,
    "vocab_size": 128,
}
# As in nomic-embed-text-v2-moe: every second layer, from the second on, is a mixture of experts.
MOE = TEXT | {
    "activation_function": "gelu",
    "add_pooling_layer": False,
    "expert_choice_router": False,
    "ffn_div": 1,
    "layer_norm_epsilon": 1e-05,
    "mlp_fc1_bias": True,
    "mlp_fc2_bias": True,
    "moe_every_n_layers": 2,
    "moe_impl": "megablocks",
    "moe_normalize_expert_weights": False,
    "moe_resid_pdrop": 0.0,
    "moe_top_k": 2,
    "n_inner": 50,
    "n_positions": 2048,
    "num_experts": 5,
    "num_shared_experts": 0,
    "pad_token_id": 1,
    "qkv_proj_bias": True,
    "rotary_emb_base": 10000,
    "router_aux_loss_coef": 0.1,
    "transformers_version": "4.44.2",
    "type_vocab_size": 1,
    "use_rms_norm": None,
}
WIDE = {"n_embd": 768, "n_head": 12, "n_inner": 3072, "vocab_size": 512}


# Dynamic NTK scaling. The lengths are within the trained one, at its end, and beyond it.
DYNAMIC = TEXT | {
    "max_trained_positions": 16,
    "n_positions": 64,
    "rotary_scaling_factor": 4.0,
}
DYNAMIC_LENGTHS = [1, 16, 17, 64, 40]


def as_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration that transformers writes for the same model."""
    return {
        "architectures": ["NomicBertModel"],
        "hidden_act": "silu",
        "hidden_size": config["n_embd"],
        "intermediate_size": config["n_inner"],
        "layer_norm_eps": config["layer_norm_epsilon"],
        "max_position_embeddings": config["max_trained_positions"],
        "model_type": "nomic_bert",
        "num_attention_heads": config["n_head"],
        "num_hidden_layers": config["n_layer"],
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": config["rotary_emb_base"],
            "factor": config["rotary_scaling_factor"],
        },
        "type_vocab_size": config["type_vocab_size"],
        "vocab_size": config["vocab_size"],
    }


def is_mixture(config: dict[str, Any], layer: int) -> bool:
    every = config.get("moe_every_n_layers", 0)
    return every > 0 and layer % every == 1


def shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    width, inner = config["n_embd"], config["n_inner"]
    head = config["architectures"][0]
    named: dict[str, list[int]] = {}

    def linear(name: str, outputs: int, inputs: int, bias: bool) -> None:
        named[f"{name}.weight"] = [outputs, inputs]
        if bias:
            named[f"{name}.bias"] = [outputs]

    def norm(name: str) -> None:
        named[f"{name}.weight"] = [width]
        named[f"{name}.bias"] = [width]

    top = "" if head == "NomicBertModel" else "bert."
    named[f"{top}embeddings.word_embeddings.weight"] = [config["vocab_size"], width]
    named[f"{top}embeddings.token_type_embeddings.weight"] = [
        config["type_vocab_size"],
        width,
    ]
    norm(f"{top}emb_ln")
    for layer in range(config["n_layer"]):
        block = f"{top}encoder.layers.{layer}"
        linear(f"{block}.attn.Wqkv", 3 * width, width, config["qkv_proj_bias"])
        linear(f"{block}.attn.out_proj", width, width, config["qkv_proj_bias"])
        if is_mixture(config, layer):
            rows = config["num_experts"] * inner
            named[f"{block}.mlp.router.layer.weight"] = [config["num_experts"], width]
            named[f"{block}.mlp.experts.mlp.w1"] = [rows, width]
            named[f"{block}.mlp.experts.mlp.w2"] = [rows, width]
            named[f"{block}.mlp.experts.bias"] = [width]
        elif config["activation_function"] == "swiglu":
            linear(f"{block}.mlp.fc11", inner, width, config["mlp_fc1_bias"])
            linear(f"{block}.mlp.fc12", inner, width, config["mlp_fc1_bias"])
            linear(f"{block}.mlp.fc2", width, inner, config["mlp_fc2_bias"])
        else:
            linear(f"{block}.mlp.fc1", inner, width, config["mlp_fc1_bias"])
            linear(f"{block}.mlp.fc2", width, inner, config["mlp_fc2_bias"])
        norm(f"{block}.norm1")
        norm(f"{block}.norm2")
    if head == "NomicBertForSequenceClassification":
        linear("bert.pooler.dense", width, width, True)
        linear("classifier", 3, width, True)
    if head == "NomicBertForMaskedLM":
        linear("cls.predictions.transform.dense", width, width, config["mlp_fc1_bias"])
        norm("cls.predictions.transform.layer_norm")
    return named


def experts(config: dict[str, Any], w: Weights, block: str, x: Tensor) -> Tensor:
    """Routes each token to its top experts, weighted by the softmax over all experts; the weights
    are not renormalized."""
    count, inner, width = config["num_experts"], config["n_inner"], config["n_embd"]
    shares = linear(w, f"{block}.router.layer", x).softmax(-1)
    best, which = shares.topk(config["moe_top_k"])
    up = w[f"{block}.experts.mlp.w1"].view(count, inner, width)
    down = w[f"{block}.experts.mlp.w2"].view(count, inner, width)
    y = w[f"{block}.experts.bias"].repeat(len(x), 1)
    for token in range(len(x)):
        for share, expert in zip(best[token], which[token]):
            y[token] += share * (gelu(x[token] @ up[expert].T) @ down[expert])
    return y


def rotary_base(config: dict[str, Any], tokens: int, size: int) -> float:
    """The base of RoPE: with dynamic NTK scaling, a larger one for texts beyond the trained length."""
    base, factor = float(config["rotary_emb_base"]), config["rotary_scaling_factor"]
    trained = config["max_trained_positions"]
    if not factor or tokens <= trained:
        return base
    return base * (factor * tokens / trained - (factor - 1)) ** (size / (size - 2))


def forward(
    config: dict[str, Any], w: Weights, ids: Tensor, types: Tensor
) -> dict[str, Any]:
    eps, heads = config["layer_norm_epsilon"], config["n_head"]
    top = "" if "emb_ln.weight" in w else "bert."
    words = w[f"{top}embeddings.word_embeddings.weight"]
    x = words[ids] + w[f"{top}embeddings.token_type_embeddings.weight"][types]
    x = norm(w, f"{top}emb_ln", x, eps)
    hidden = [x]
    for layer in range(config["n_layer"]):
        block = f"{top}encoder.layers.{layer}"
        q, k, v = (
            part.unflatten(1, (heads, -1))
            for part in linear(w, f"{block}.attn.Wqkv", x).chunk(3, dim=1)
        )
        theta = rotary_base(config, len(x), q.shape[-1])
        mixed = attention(rotate(q, theta), rotate(k, theta), v)
        x = norm(
            w, f"{block}.norm1", x + linear(w, f"{block}.attn.out_proj", mixed), eps
        )
        if is_mixture(config, layer):
            y = experts(config, w, f"{block}.mlp", x)
        elif config["activation_function"] == "swiglu":
            gate = silu(linear(w, f"{block}.mlp.fc12", x))
            y = linear(w, f"{block}.mlp.fc2", linear(w, f"{block}.mlp.fc11", x) * gate)
        else:
            y = linear(w, f"{block}.mlp.fc2", gelu(linear(w, f"{block}.mlp.fc1", x)))
        x = norm(w, f"{block}.norm2", x + y, eps)
        hidden.append(x)
    result: dict[str, Any] = {"hidden": hidden}
    if "classifier.weight" in w:
        pooled = linear(w, "bert.pooler.dense", x[:1]).tanh()
        result["pooler"] = pooled
        result["logits"] = linear(w, "classifier", pooled)
    if "cls.predictions.transform.dense.weight" in w:
        act = silu if config["activation_function"] == "swiglu" else gelu
        y = act(linear(w, "cls.predictions.transform.dense", x))
        result["logits"] = (
            norm(w, "cls.predictions.transform.layer_norm", y, eps) @ words.T
        )
    return result


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    theta, factor = config["rotary_emb_base"], config["rotary_scaling_factor"]
    if not factor:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}


def check(config: dict[str, Any]) -> None:
    """transformers has this family without the hub's heads and without experts: where both have a
    model, they must agree."""
    reference = NomicBertConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["n_embd"],
        num_hidden_layers=config["n_layer"],
        num_attention_heads=config["n_head"],
        intermediate_size=config["n_inner"],
        layer_norm_eps=config["layer_norm_epsilon"],
        rope_parameters=rope_parameters(config),
        max_position_embeddings=config["max_trained_positions"],
    )
    chance = torch.Generator().manual_seed(1)
    w = {
        name: torch.randn(shape, generator=chance) / shape[-1] ** 0.5
        for name, shape in shapes(config).items()
    }
    with tempfile.TemporaryDirectory() as directory:
        reference.save_pretrained(directory)
        save_file(w, Path(directory) / "model.safetensors", metadata={"format": "pt"})
        model, info = NomicBertModel.from_pretrained(
            directory,
            attn_implementation="eager",
            dtype=torch.float64,
            output_loading_info=True,
        )
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    ids = torch.randint(config["vocab_size"], (40,), generator=chance)
    types = torch.randint(2, (40,), generator=chance)
    with torch.inference_mode(), all_in_float64():
        theirs = model.eval()(ids[None], token_type_ids=types[None]).last_hidden_state
    ours = forward(config, {name: t.double() for name, t in w.items()}, ids, types)
    # No closer: transformers computes angles in float32.
    assert torch.allclose(theirs[0], ours["hidden"][-1], atol=1e-5, rtol=0)


def rules(config: dict[str, Any]) -> list[Rule]:
    return [
        ("Wqkv.weight", 1.4, 0.0),
        ("experts.mlp.w2", -((3 / config["n_inner"]) ** 0.5), 0.0),
        ("router", 1.5, 0.0),
    ]


VARIANTS = [
    Variant("nomic-tiny", 301, None, TEXT | {"n_layer": 3}, LONG_LENGTHS),
    Variant(
        "nomic-sequence",
        302,
        None,
        changed(TEXT, "NomicBertForSequenceClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "nomic-mlm", 303, None, changed(TEXT, "NomicBertForMaskedLM"), HEAD_LENGTHS
    ),
    Variant("nomic-dynamic", 307, None, DYNAMIC, DYNAMIC_LENGTHS),
    Variant(
        "nomic-dynamic-transformers", 308, None, as_transformers(DYNAMIC), DYNAMIC_LENGTHS
    ),
    Variant("nomic-base", 304, None, TEXT | WIDE, WIDE_LENGTHS),
    Variant("nomic-moe-tiny", 305, None, MOE | {"n_layer": 4}, LONG_LENGTHS),
    Variant("nomic-moe-base", 306, None, MOE | WIDE | {"num_experts": 8}, WIDE_LENGTHS),
]


# The hub's configurations of models whose config.json has transformers' names.
HUB = {"nomic-dynamic-transformers": DYNAMIC}


def run(config: dict[str, Any], _published: dict[str, Any], *inputs: Any) -> dict[str, Any]:
    return forward(config, *inputs)


def make(out: Path, _work: Path) -> None:
    check(TEXT)
    check(DYNAMIC)
    for variant in VARIANTS:
        config = HUB.get(variant.name, variant.config)
        variant.rules = rules(config)
        write_plain(out, variant, shapes(config), partial(run, config))
