"""The encoder of T5, T5 1.1, mT5 and UMT5: pre-norm blocks with RMS norms, bucketed relative
position biases, unscaled attention."""

from pathlib import Path

from transformers import (
    MT5EncoderModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForTokenClassification,
    UMT5EncoderModel,
)

from absolute import LABELS, changed
from synthetic import (
    HEAD_LENGTHS,
    LONG_LENGTHS,
    WIDE_LENGTHS,
    Rule,
    Variant,
    saved_shapes,
    write,
)

# As in the first T5: no field for the activation (relu) or the largest distance (128).
ORIGINAL = {
    "architectures": ["T5EncoderModel"],
    "d_ff": 50,
    "d_kv": 10,
    "d_model": 36,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 3,
    "num_layers": 2,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "vocab_size": 99,
}
GATED = ORIGINAL | {
    "feed_forward_proj": "gated-gelu",
    "is_gated_act": True,
    "dense_act_fn": "gelu_new",
    "tie_word_embeddings": False,
    "relative_attention_max_distance": 128,
    "use_cache": True,
}
MT5 = GATED | {
    "architectures": ["MT5EncoderModel"],
    "model_type": "mt5",
    "tokenizer_class": "T5Tokenizer",
}


def rules(head: int) -> list[Rule]:
    """Gains that give attention scores the spread of scaled ones."""
    return [
        ("relative_attention_bias", -1.5, 0.0),
        (r"SelfAttention\.q", 1.6 / head**0.5, 0.0),
        (r"shared|embed_tokens", -1.7, 0.0),
    ]


def whole_model() -> Variant:
    """A file of the whole model; an encoder ignores the decoder's tensors."""
    config = changed(ORIGINAL, "T5ForConditionalGeneration", num_decoder_layers=1)
    variant = Variant("t5-whole", 214, T5EncoderModel, config, HEAD_LENGTHS)
    whole = Variant("", 0, T5ForConditionalGeneration, config)
    shapes = saved_shapes(whole, T5Config.from_dict(config))
    variant.extra = {name: shapes[name] for name in shapes if "decoder" in name}
    assert variant.extra
    return variant


VARIANTS = [
    Variant("t5-relu", 211, T5EncoderModel, ORIGINAL, LONG_LENGTHS),
    # Fewer buckets and a smaller distance, to detect a reader that assumes 32 and 128.
    Variant(
        "t5-gated",
        212,
        T5EncoderModel,
        GATED
        | {
            "relative_attention_num_buckets": 20,
            "relative_attention_max_distance": 50,
            "layer_norm_epsilon": 1e-03,
        },
        LONG_LENGTHS,
    ),
    Variant("mt5-tiny", 213, MT5EncoderModel, MT5, HEAD_LENGTHS),
    # In UMT5, every layer has a table of position biases.
    Variant(
        "umt5-tiny",
        218,
        UMT5EncoderModel,
        MT5 | {"architectures": ["UMT5EncoderModel"], "model_type": "umt5"},
        HEAD_LENGTHS,
    ),
    whole_model(),
    Variant(
        "t5-token",
        215,
        T5ForTokenClassification,
        changed(ORIGINAL, "T5ForTokenClassification", **LABELS),
        HEAD_LENGTHS,
    ),
    Variant(
        "t5-base",
        216,
        T5EncoderModel,
        ORIGINAL
        | {
            "d_model": 768,
            "d_ff": 3072,
            "d_kv": 64,
            "num_heads": 12,
            "vocab_size": 500,
        },
        WIDE_LENGTHS,
    ),
    # Six heads of 64 are narrower than the hidden size of 512.
    Variant(
        "mt5-small",
        217,
        MT5EncoderModel,
        MT5
        | {"d_model": 512, "d_ff": 1024, "d_kv": 64, "num_heads": 6, "vocab_size": 500},
        WIDE_LENGTHS,
    ),
]
for variant in VARIANTS:
    variant.rules = rules(variant.config["d_kv"])


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
