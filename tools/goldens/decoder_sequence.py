"""Decoders as sequence classifiers: a head without bias on the last token that is not padding."""

from pathlib import Path

import torch
from transformers import (
    LlamaForSequenceClassification,
    MistralForSequenceClassification,
    Qwen2ForSequenceClassification,
    Qwen3ForSequenceClassification,
)

from absolute import LABELS, changed
from decoders import LLAMA_3, MISTRAL, QWEN2, QWEN3, RULES
from decoding import CONTINUED, LENGTHS, Decoder, draw, in_float64, load, near, prefill
from files import empty_dir
from synthetic import Packed

ONE = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
PAD = {"pad_token_id": 0}
VARIANTS = [
    # Without a padding token it is the last token.
    Decoder(
        "llama-sequence",
        681,
        LlamaForSequenceClassification,
        changed(LLAMA_3, "LlamaForSequenceClassification", **LABELS),
    ),
    Decoder(
        "mistral-sequence",
        682,
        MistralForSequenceClassification,
        changed(MISTRAL, "MistralForSequenceClassification", **LABELS, **PAD),
    ),
    Decoder(
        "qwen2-sequence",
        683,
        Qwen2ForSequenceClassification,
        changed(QWEN2, "Qwen2ForSequenceClassification", **LABELS, **PAD),
    ),
    # One label, as in rerankers.
    Decoder(
        "qwen3-sequence",
        684,
        Qwen3ForSequenceClassification,
        changed(QWEN3, "Qwen3ForSequenceClassification", **ONE, **PAD),
    ),
]
for variant in VARIANTS:
    variant.rules = [("score.weight", 2.5, 0.0), *RULES]


@torch.inference_mode()
def write(out: Path, variant: Decoder) -> None:
    directory = empty_dir(out / variant.name)
    single = load(variant, directory)
    model = in_float64(single)
    prompts = draw(variant.seed, model.config.vocab_size, LENGTHS)
    # The second sequence again, with two padding tokens at the end as part of the text.
    prompts.append(torch.cat([prompts[CONTINUED], torch.zeros(1, 2).long()], dim=1))
    packed, farthest = Packed(), 0.0
    for number, ids in enumerate(prompts):
        result = prefill(model, ids, output_hidden_states=True)
        packed.lengths.append(ids.shape[1])
        packed.add("ids", ids[0])
        packed.add("logits", result.logits)
        off = near(result.logits, prefill(single, ids).logits)
        farthest = max(farthest, off)
        if number == CONTINUED:
            for layer, rows in enumerate(result.hidden_states):
                packed.add(f"hidden.{layer}", rows[0])
    logits = torch.cat(packed.rows["logits"])
    padded = near(logits[CONTINUED], logits[-1])
    assert (padded < 1e-9) == (model.config.pad_token_id is not None), padded
    assert farthest < 1e-4 and logits.std() > 0.5, (farthest, logits.std())
    about = {
        "architecture": variant.config["architectures"][0],
        "model": variant.model.__name__,
        "continued": CONTINUED,
        "float32_distance": {"logits": float(f"{farthest:.1e}")},
    }
    packed.write(directory, about)


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
