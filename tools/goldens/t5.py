"""The encoder of T5, T5 1.1, mT5 and UMT5: pre-norm blocks with RMS norms, bucketed relative
position biases, unscaled attention."""

from pathlib import Path

import torch
from transformers import (
    MT5EncoderModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
    T5ForSequenceClassification,
    T5ForTokenClassification,
    UMT5EncoderModel,
)

from absolute import LABELS, changed
from files import empty_dir
from synthetic import (
    HEAD_LENGTHS,
    LONG_LENGTHS,
    WIDE_LENGTHS,
    Packed,
    Rule,
    Variant,
    all_in_float64,
    inputs,
    load,
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
# The last end token counts, here also where tokens follow it.
CLASSIFIERS = [
    Variant(
        "t5-sequence",
        219,
        T5ForSequenceClassification,
        changed(
            ORIGINAL, "T5ForSequenceClassification", num_decoder_layers=3, **LABELS
        ),
        [],
        sequences=[[1], [7, 1], [*range(5, 40), 1], [9, 1, 20, 1], [30, 8, 1, 12]],
    ),
    Variant(
        "t5-sequence-gated",
        220,
        T5ForSequenceClassification,
        changed(GATED, "T5ForSequenceClassification", **LABELS)
        | {"decoder_start_token_id": 3},
        [],
        sequences=[[1], [40, 41, 42, 43, 1]],
    ),
]
for variant in VARIANTS + CLASSIFIERS:
    variant.rules = rules(variant.config["d_kv"])


@torch.inference_mode()
def write_classifier(out: Path, variant: Variant) -> None:
    """The hidden states are the decoder's."""
    directory = empty_dir(out / variant.name)
    model = load(variant, directory)
    packed = Packed()
    for ids, types in inputs(variant, model.config):
        with all_in_float64():
            result = model(ids, output_hidden_states=True)
        hidden = result.decoder_hidden_states
        assert len(hidden) == model.config.num_decoder_layers + 1
        # The last is after the final norm.
        end = (ids[0] == model.config.eos_token_id).nonzero()[-1, 0]
        logits = model.classification_head(hidden[-1][:, end])
        assert torch.equal(logits, result.logits)
        packed.lengths.append(ids.shape[1])
        packed.add("ids", ids[0])
        packed.add("type_ids", types[0])
        for layer, rows in enumerate(hidden):
            packed.add(f"hidden.{layer}", rows[0])
        packed.add("logits", logits)
    about = {
        "architecture": variant.config["architectures"][0],
        "model": variant.model.__name__,
    }
    packed.write(directory, about)


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
    for variant in CLASSIFIERS:
        write_classifier(out, variant)
