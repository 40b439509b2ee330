"""Decoders that differ from Llama's block: Phi, Phi-3, StableLM, Falcon, Gemma and GPT-2."""

from pathlib import Path
from typing import Any

from transformers import (
    FalconForCausalLM,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    GemmaForCausalLM,
    GPT2LMHeadModel,
    Phi3ForCausalLM,
    PhiForCausalLM,
    StableLmForCausalLM,
)

from decoders import RULES, SIZES, without
from decoding import Decoder, write

COMMON = {
    "initializer_range": 0.02,
    "torch_dtype": "float32",
    "use_cache": True,
}
# RoPE rotates two fifths of a head: 8 elements of 20.
PHI_2 = (
    SIZES
    | COMMON
    | {
        "architectures": ["PhiForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "embd_pdrop": 0.0,
        "eos_token_id": 0,
        "hidden_act": "gelu_new",
        "hidden_size": 60,
        "layer_norm_eps": 0.01,
        "max_position_embeddings": 128,
        "model_type": "phi",
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "partial_rotary_factor": 0.4,
        "qk_layernorm": False,
        "resid_pdrop": 0.1,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "transformers_version": "4.37.0",
    }
)
PHI_3 = (
    SIZES
    | COMMON
    | {
        "architectures": ["Phi3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "embd_pdrop": 0.0,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "model_type": "phi3",
        "num_key_value_heads": 4,
        "original_max_position_embeddings": 128,
        "pad_token_id": 0,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 8,
        "tie_word_embeddings": False,
        "transformers_version": "4.40.2",
    }
)
STABLELM = (
    SIZES
    | COMMON
    | {
        "architectures": ["StableLmForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
        "hidden_size": 64,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 128,
        "model_type": "stablelm",
        "num_key_value_heads": 4,
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000,
        "tie_word_embeddings": False,
        "transformers_version": "4.38.0",
        "use_qkv_bias": False,
    }
)
FALCON_7B = COMMON | {
    "alibi": False,
    "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"],
    "attention_dropout": 0.0,
    "bias": False,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "hidden_dropout": 0.0,
    "hidden_size": 48,
    "layer_norm_epsilon": 1e-05,
    "model_type": "falcon",
    "multi_query": True,
    "new_decoder_architecture": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "parallel_attn": True,
    "transformers_version": "4.27.4",
    "vocab_size": 101,
}
FALCON_40B = FALCON_7B | {"new_decoder_architecture": True, "num_kv_heads": 2}
# The first files say "gelu" and mean the tanh approximation.
GEMMA = (
    SIZES
    | COMMON
    | {
        "architectures": ["GemmaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "head_dim": 16,
        "hidden_act": "gelu",
        "max_position_embeddings": 128,
        "model_type": "gemma",
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "transformers_version": "4.38.0.dev0",
    }
)
GEMMA_2 = without(GEMMA, "rope_scaling") | {
    "architectures": ["Gemma2ForCausalLM"],
    "attn_logit_softcapping": 2.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 6.0,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "model_type": "gemma2",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 10,
    "sliding_window": 8,
    "sliding_window_size": 8,
    "transformers_version": "4.42.0.dev0",
}
GEMMA_3 = without(GEMMA, "hidden_act") | {
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 5],
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "query_pre_attn_scalar": 10,
    "rope_local_base_freq": 100,
    "rope_theta": 1000000,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "transformers_version": "4.50.0.dev0",
}
GPT_2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 0,
    "embd_pdrop": 0.1,
    "eos_token_id": 0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 0.01,
    "model_type": "gpt2",
    "n_ctx": 64,
    "n_embd": 48,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 64,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 101,
}
FUSED = [
    ("qkv_proj|query_key_value.weight", 1.4, 0.0),
    (r"(self_attn.dense|fc2|self_attention.dense|dense_4h_to_h).weight", 2.0, 0.0),
    (r"[qk]_layernorm\.(norms\.\d\.)?weight", -0.4, 1.5),
    ("word_embeddings", -0.6, 0.0),
]
# A norm of Gemma multiplies by 1 + weight, and its embeddings are scaled by the square root of the
# hidden size. With a tied LM head, small embeddings and a large final norm keep a token from
# predicting itself.
GEMMAS = [
    ("model.norm.weight", -0.9, 5.0),
    ("norm.weight", -0.4, 0.1),
    ("embed_tokens", -0.15, 0.0),
]
# Conv1D: the inputs are the first dimension of these weights.
GPT_2S = [
    ("ln_f.weight", -0.9, 2.5),
    ("wte", -0.25, 0.0),
    ("wpe", -0.8, 0.0),
    ("c_attn.weight", -2.0 / 48**0.5, 0.0),
    ("attn.c_proj.weight", -3.0 / 48**0.5, 0.0),
    ("c_fc.weight", -1.7 / 48**0.5, 0.0),
    ("mlp.c_proj.weight", -3.0 / 192**0.5, 0.0),
]


def long_rope(kind: str, size: int, original: int) -> dict[str, Any]:
    """Two lists of LongRoPE factors that differ enough from each other and from one."""
    half = size // 2
    scaling = {
        "long_factor": [round(1.5 + 0.7 * i, 2) for i in range(half)],
        "short_factor": [round(1.0 + 0.12 * i, 2) for i in range(half)],
        "type": kind,
    }
    return {
        "max_position_embeddings": 8 * original,
        "original_max_position_embeddings": original,
        "rope_scaling": scaling,
        "sliding_window": 262144,
        "transformers_version": "4.45.0",
    }


def same_factors(config: dict[str, Any], kept: str) -> dict[str, Any]:
    """The config with one list of factors in place of both."""
    factors = config["rope_scaling"][kept]
    both = {"long_factor": factors, "short_factor": factors}
    return {"rope_scaling": config["rope_scaling"] | both}


# All prompts short; all but the first long; a decoding that crosses the limit at the seventh step,
# where `generate` discards the cache, so that every step's logits are those of the whole sequence
# without a cache.
SHORT = PHI_3 | long_rope("longrope", 12, 64)
LONG = PHI_3 | long_rope("longrope", 12, 8)
CROSSED = PHI_3 | long_rope("longrope", 12, 16)
PHI_4 = (
    PHI_3
    | long_rope("longrope", 12, 16)
    | {
        "head_dim": 16,
        "hidden_size": 64,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
    }
)
PHIS = [
    Decoder(
        "phi-2",
        731,
        PhiForCausalLM,
        PHI_2,
        [{"partial_rotary_factor": 0.5}, {"layer_norm_eps": 1e-05}],
    ),
    Decoder(
        "phi-qk-layernorm",
        732,
        PhiForCausalLM,
        PHI_2
        | {
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "qk_layernorm": True,
        },
        [{"qk_layernorm": False}],
    ),
    Decoder("phi-3", 633, Phi3ForCausalLM, PHI_3, [{"sliding_window": None}]),
    Decoder(
        "phi-3-short",
        734,
        Phi3ForCausalLM,
        SHORT,
        [{"rope_scaling": None}, same_factors(SHORT, "long_factor")],
    ),
    Decoder(
        "phi-3-long",
        835,
        Phi3ForCausalLM,
        LONG,
        [{"rope_scaling": None}, same_factors(LONG, "short_factor")],
    ),
    Decoder(
        "phi-3-crossed",
        636,
        Phi3ForCausalLM,
        CROSSED,
        [same_factors(CROSSED, "short_factor")],
    ),
    Decoder("phi-4-mini", 637, Phi3ForCausalLM, PHI_4),
]
STABLELMS = [
    Decoder(
        "stablelm-3b",
        638,
        StableLmForCausalLM,
        STABLELM | {"layer_norm_eps": 0.01},
        [{"partial_rotary_factor": 0.5}, {"layer_norm_eps": 1e-05}],
    ),
    Decoder(
        "stablelm-1.6b",
        1139,
        StableLmForCausalLM,
        STABLELM | {"use_qkv_bias": True},
        [{"use_qkv_bias": False}],
    ),
    Decoder(
        "stablelm-12b",
        640,
        StableLmForCausalLM,
        STABLELM
        | {
            "num_key_value_heads": 2,
            "qk_layernorm": True,
            "use_parallel_residual": True,
        },
        [{"qk_layernorm": False}],
    ),
]
FALCONS = [
    Decoder(
        "falcon-7b",
        641,
        FalconForCausalLM,
        FALCON_7B | {"layer_norm_epsilon": 0.01},
        [{"rope_theta": 100.0}, {"layer_norm_epsilon": 1e-05}],
    ),
    Decoder("falcon-40b", 1142, FalconForCausalLM, FALCON_40B),
    # One norm for attention and MLP, an intermediate size of its own, and an untied LM head.
    Decoder(
        "falcon-11b",
        843,
        FalconForCausalLM,
        FALCON_40B
        | {
            "ffn_hidden_size": 80,
            "num_ln_in_parallel_attn": 1,
            "rope_theta": 500042.0,
            "tie_word_embeddings": False,
        },
        [{"rope_theta": 10000.0}],
    ),
    # transformers' eager attention adds ALiBi twice; SDPA adds it once, as in training. With four
    # heads every slope is a power of two, so that its rounding of the bias to bfloat16 is exact.
    Decoder(
        "falcon-rw",
        8544,
        FalconForCausalLM,
        FALCON_7B
        | {
            "alibi": True,
            "bias": True,
            "multi_query": False,
            "parallel_attn": False,
        },
        [{"alibi": False}, {"bias": False}],
        attention="sdpa",
    ),
]
NEW_ROPE = {
    "full_attention": {"factor": 8.0, "rope_theta": 50000.0, "rope_type": "linear"},
    "sliding_attention": {"rope_theta": 200.0, "rope_type": "default"},
}
GEMMA_MODELS = [
    Decoder(
        "gemma",
        645,
        GemmaForCausalLM,
        GEMMA | {"rms_norm_eps": 0.05},
        [{"rope_theta": 100.0}, {"rms_norm_eps": 1e-06}],
    ),
    Decoder(
        "gemma-2",
        1946,
        Gemma2ForCausalLM,
        GEMMA_2,
        [
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"query_pre_attn_scalar": 16},
            {"sliding_window": 4096},
        ],
    ),
    Decoder(
        "gemma-3",
        647,
        Gemma3ForCausalLM,
        GEMMA_3,
        [
            {"query_pre_attn_scalar": 16},
            {"rope_local_base_freq": 1000000},
            {"rope_theta": 100},
            {"sliding_window": 4096},
            {"sliding_window_pattern": 4},
        ],
    ),
    # As in the text model of the 4B: positions of the full-attention layers are divided (linear
    # RoPE scaling).
    Decoder(
        "gemma-3-linear",
        748,
        Gemma3ForCausalLM,
        GEMMA_3
        | {
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "rope_theta": 10000,
        },
        [{"rope_scaling": None}],
    ),
    # As transformers 5 writes it, with layer types that no pattern describes.
    Decoder(
        "gemma-3-rope-parameters",
        649,
        Gemma3ForCausalLM,
        without(
            GEMMA_3,
            "rope_local_base_freq",
            "rope_scaling",
            "rope_theta",
            "sliding_window_pattern",
            "torch_dtype",
        )
        | {
            "_sliding_window_pattern": 6,
            "dtype": "float32",
            "layer_types": [
                "full_attention",
                "sliding_attention",
                "sliding_attention",
                "full_attention",
            ],
            "rope_parameters": NEW_ROPE,
            "transformers_version": "5.0.0",
            "use_bidirectional_attention": False,
        },
        [{"layer_types": None}],
    ),
]
GPT_2_MODELS = [
    # The first files have no prefix, and contain the causal mask.
    Decoder(
        "gpt2",
        850,
        GPT2LMHeadModel,
        GPT_2,
        [{"layer_norm_epsilon": 1e-05}],
        hub_name=lambda name: name.removeprefix("transformer."),
        extra={f"h.{layer}.attn.bias": [1, 1, 64, 64] for layer in range(3)},
    ),
    Decoder(
        "gpt2-scaled",
        2151,
        GPT2LMHeadModel,
        GPT_2
        | {
            "layer_norm_epsilon": 1e-05,
            "n_inner": 80,
            "reorder_and_upcast_attn": False,
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": True,
            "torch_dtype": "float32",
        },
        [{"scale_attn_by_inverse_layer_idx": False}],
    ),
]
for variant in PHIS + STABLELMS + FALCONS:
    variant.rules = FUSED + RULES
for variant in GEMMA_MODELS:
    variant.rules = GEMMAS + RULES
for variant in GPT_2_MODELS:
    variant.rules = GPT_2S
VARIANTS = PHIS + STABLELMS + FALCONS + GEMMA_MODELS + GPT_2_MODELS


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
