"""GPT-NeoX and the models of its architecture: Pythia, StableLM-alpha, RedPajama."""

from pathlib import Path

from transformers import GPTNeoXForCausalLM

from decoding import Decoder, write

# As in the 20B: RoPE rotates a quarter of a head, 6 elements of 24.
NEOX = {
    "architectures": ["GPTNeoXForCausalLM"],
    "attention_probs_dropout_prob": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu_fast",
    "hidden_dropout_prob": 0,
    "hidden_size": 72,
    "initializer_range": 0.02,
    "intermediate_size": 100,
    "layer_norm_eps": 0.01,
    "max_position_embeddings": 128,
    "model_type": "gpt_neox",
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.19.0.dev0",
    "use_cache": True,
    "vocab_size": 101,
}
PYTHIA = NEOX | {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-05,
    "transformers_version": "4.24.0",
    "use_parallel_residual": True,
}
RULES = [
    ("embed_out.weight", 2.5, 0.0),
    ("embed_in", -0.6, 0.0),
    ("query_key_value.weight", 1.4, 0.0),
    ("(attention.dense|dense_4h_to_h).weight", 2.0, 0.0),
]
VARIANTS = [
    # Old files contain the causal mask and the RoPE frequencies, which are ignored.
    Decoder(
        "gpt-neox",
        861,
        GPTNeoXForCausalLM,
        NEOX,
        [
            {"rotary_pct": 0.5},
            {"layer_norm_eps": 1e-05},
            {"use_parallel_residual": False},
        ],
        extra={
            f"gpt_neox.layers.{layer}.attention.{name}": shape
            for layer in range(3)
            for name, shape in {
                "bias": [1, 1, 128, 128],
                "masked_bias": [1],
                "rotary_emb.inv_freq": [3],
            }.items()
        },
    ),
    # Exact GELU, and a base that matters.
    Decoder(
        "pythia",
        762,
        GPTNeoXForCausalLM,
        PYTHIA | {"rotary_emb_base": 100, "rotary_pct": 0.5},
        [{"rotary_emb_base": 10000}, {"rotary_pct": 0.25}, {"hidden_act": "relu"}],
    ),
    # As in RedPajama-INCITE: sequential blocks, RoPE over whole heads. No biases of the attention.
    Decoder(
        "gpt-neox-sequential",
        863,
        GPTNeoXForCausalLM,
        PYTHIA
        | {
            "attention_bias": False,
            "rotary_pct": 1.0,
            "use_parallel_residual": False,
        },
        [{"use_parallel_residual": True}, {"rotary_pct": 0.25}],
    ),
    # As transformers 5 writes it, with scaled RoPE and a tied LM head.
    Decoder(
        "gpt-neox-rope-parameters",
        1264,
        GPTNeoXForCausalLM,
        {
            name: value
            for name, value in PYTHIA.items()
            if not name.startswith(("rotary", "torch"))
        }
        | {
            "dtype": "float32",
            "rope_parameters": {
                "factor": 4.0,
                "partial_rotary_factor": 0.5,
                "rope_theta": 20000.0,
                "rope_type": "linear",
            },
            "tie_word_embeddings": True,
            "transformers_version": "5.0.0",
        },
        [
            {
                "rope_parameters": {
                    "partial_rotary_factor": 0.5,
                    "rope_theta": 20000.0,
                    "rope_type": "default",
                }
            }
        ],
    ),
]
for variant in VARIANTS:
    variant.rules = RULES


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
