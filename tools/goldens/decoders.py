"""Llama and models with its block: SmolLM, Mistral, Mixtral, Qwen2, Qwen2-MoE, Qwen3
and Qwen3-MoE."""

from pathlib import Path
from typing import Any

from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)

from decoding import Decoder, write

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 101,
}
# As in Llama 2: no rope_theta, as many key-value heads as query heads.
LLAMA_2 = SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 128,
    "model_type": "llama",
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.31.0.dev0",
    "use_cache": True,
}
LLAMA_3 = LLAMA_2 | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "num_key_value_heads": 2,
    "rope_theta": 500000.0,
    "transformers_version": "4.43.0.dev0",
}
# Of the RoPE frequencies of 12 elements, two are too high to be scaled, one is between, three are
# low.
SCALED_3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}
MISTRAL = SIZES | {
    "architectures": ["MistralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 128,
    "model_type": "mistral",
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
}
MIXTRAL = MISTRAL | {
    "architectures": ["MixtralForCausalLM"],
    "intermediate_size": 40,
    "model_type": "mixtral",
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_local_experts": 5,
    "output_router_logits": False,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "transformers_version": "4.36.0.dev0",
}
# The config has a sliding window that is unused: `use_sliding_window` decides.
QWEN2 = SIZES | {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 128,
    "max_window_layers": 1,
    "model_type": "qwen2",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 8,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "transformers_version": "4.40.1",
    "use_cache": True,
    "use_sliding_window": False,
}
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 16,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "rope_scaling": None,
    "sliding_window": None,
    "transformers_version": "4.51.0",
}
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}
QWEN2_MOE = QWEN2 | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "max_window_layers": 21,
    "mlp_only_layers": [],
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 24,
    "norm_topk_prob": False,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 56,
    "tie_word_embeddings": False,
    "transformers_version": "4.39.0.dev0",
}
RULES = [
    ("lm_head.weight", 2.5, 0.0),
    ("embed_tokens", -0.6, 0.0),
    ("[qk]_norm", -0.4, 1.5),
    ("o_proj.weight", 2.0, 0.0),
    ("(down_proj|w2).weight", 2.0, 0.0),
    ("gate.weight", 1.5, 0.0),
]


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def scaled(**scaling: Any) -> dict[str, Any]:
    return {"rope_scaling": scaling}


UNSCALED = [{"rope_scaling": None}]
LLAMAS = [
    # Old files have the RoPE frequencies as a tensor, which is ignored.
    Decoder(
        "llama-2",
        701,
        LlamaForCausalLM,
        LLAMA_2,
        extra={
            f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": [6]
            for layer in range(3)
        },
        matters=[{"rope_theta": 500000.0}],
    ),
    # An epsilon large enough to matter.
    Decoder(
        "llama-3",
        702,
        LlamaForCausalLM,
        LLAMA_3 | {"rms_norm_eps": 0.01},
        [{"rope_theta": 10000.0}, {"rms_norm_eps": 1e-06}],
    ),
    # From before num_key_value_heads existed.
    Decoder(
        "llama-biases",
        703,
        LlamaForCausalLM,
        without(LLAMA_2, "num_key_value_heads")
        | {"attention_bias": True, "mlp_bias": True, "rope_theta": 10000.0},
        [{"attention_bias": False}, {"mlp_bias": False}],
    ),
    Decoder(
        "llama-linear",
        604,
        LlamaForCausalLM,
        LLAMA_2 | scaled(type="linear", factor=4.0),
        UNSCALED,
    ),
    # RoPE frequencies that depend on the length beyond 16 tokens: prompts on both sides, and no
    # decoding.
    Decoder(
        "llama-dynamic",
        605,
        LlamaForCausalLM,
        LLAMA_2 | scaled(type="dynamic", factor=2.0) | {"max_position_embeddings": 16},
        UNSCALED,
        decode=False,
    ),
    Decoder(
        "llama-3.1",
        606,
        LlamaForCausalLM,
        LLAMA_3 | {"rope_scaling": SCALED_3, "rope_theta": 10000.0},
        UNSCALED,
    ),
    Decoder(
        "llama-yarn",
        707,
        LlamaForCausalLM,
        LLAMA_2
        | scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
        | {"max_position_embeddings": 256, "rope_theta": 10000.0},
        UNSCALED,
    ),
    # Every field of YaRN, with ramp bounds that are not integers.
    Decoder(
        "llama-yarn-full",
        608,
        LlamaForCausalLM,
        LLAMA_3
        | scaled(
            rope_type="yarn",
            factor=8.0,
            original_max_position_embeddings=64,
            beta_fast=8.0,
            beta_slow=1.0,
            attention_factor=1.5,
            truncate=False,
        )
        | {"max_position_embeddings": 512, "rope_theta": 1000.0},
        UNSCALED,
    ),
    # Heads that together are wider than the hidden size, and a tied LM head.
    Decoder(
        "llama-head-dim",
        609,
        LlamaForCausalLM,
        LLAMA_3 | {"head_dim": 16, "tie_word_embeddings": True},
    ),
    # As transformers 5 writes it.
    Decoder(
        "llama-rope-parameters",
        610,
        LlamaForCausalLM,
        without(LLAMA_3, "rope_theta", "rope_scaling", "torch_dtype")
        | {
            "dtype": "float32",
            "head_dim": 12,
            "rope_parameters": SCALED_3 | {"rope_theta": 20000.0},
            "transformers_version": "5.0.0",
        },
        [{"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}}],
    ),
    Decoder(
        "smollm",
        911,
        LlamaForCausalLM,
        LLAMA_3
        | {
            "is_llama_config": True,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "tie_word_embeddings": True,
        },
    ),
]
OTHERS = [
    Decoder(
        "mistral",
        912,
        MistralForCausalLM,
        MISTRAL | {"rms_norm_eps": 0.01},
        [{"sliding_window": None}, {"rms_norm_eps": 1e-06}],
    ),
    Decoder(
        "mistral-head-dim",
        613,
        MistralForCausalLM,
        MISTRAL | {"head_dim": 16, "rope_theta": 1000000.0, "sliding_window": None},
    ),
    Decoder("mixtral", 814, MixtralForCausalLM, MIXTRAL, [{"num_experts_per_tok": 3}]),
    Decoder("qwen2", 615, Qwen2ForCausalLM, QWEN2, [{"use_sliding_window": True}]),
    Decoder(
        "qwen2-window",
        716,
        Qwen2ForCausalLM,
        QWEN2 | {"use_sliding_window": True, "tie_word_embeddings": False},
        [{"use_sliding_window": False}, {"max_window_layers": 0}],
    ),
    Decoder(
        "qwen2-yarn",
        617,
        Qwen2ForCausalLM,
        QWEN2
        | scaled(type="yarn", factor=4.0, original_max_position_embeddings=32)
        | {"rope_theta": 10000.0, "tie_word_embeddings": False},
        UNSCALED,
    ),
    Decoder(
        "qwen2-moe",
        620,
        Qwen2MoeForCausalLM,
        QWEN2_MOE,
        [{"norm_topk_prob": True}, {"num_experts_per_tok": 2}],
    ),
    # Of four layers only the second has experts: every second one, except the fourth. The window is
    # that of the first and second.
    Decoder(
        "qwen2-moe-mixed",
        621,
        Qwen2MoeForCausalLM,
        QWEN2_MOE
        | {
            "decoder_sparse_step": 2,
            "layer_types": ["sliding_attention"] * 2 + ["full_attention"] * 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
            "num_hidden_layers": 4,
            "qkv_bias": False,
            "use_sliding_window": True,
        },
        [{"norm_topk_prob": False}, {"layer_types": ["full_attention"] * 4}],
    ),
    Decoder(
        "qwen3",
        818,
        Qwen3ForCausalLM,
        QWEN3 | {"rms_norm_eps": 0.01},
        [{"rope_theta": 10000.0}, {"rms_norm_eps": 1e-06}],
    ),
    Decoder(
        "qwen3-moe",
        619,
        Qwen3MoeForCausalLM,
        QWEN3_MOE,
        [{"norm_topk_prob": False}, {"num_experts_per_tok": 2}],
    ),
    # Of four layers only the second has experts: every second one, except the fourth.
    Decoder(
        "qwen3-moe-mixed",
        1620,
        Qwen3MoeForCausalLM,
        QWEN3_MOE
        | {
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
            "num_hidden_layers": 4,
        },
        [{"norm_topk_prob": True}],
    ),
]
VARIANTS = LLAMAS + OTHERS
for variant in VARIANTS:
    variant.rules = RULES


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
