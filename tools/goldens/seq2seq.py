"""T5 as an encoder-decoder, in its three kinds: the first, 1.1 (and Flan), and mT5. Greedy
decoding, and beam search with and without patience."""

import itertools
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    T5ForConditionalGeneration,
)

from absolute import changed
from decoding import (
    CONTINUED,
    GAP,
    STEPS,
    Decoder,
    draw,
    exactly,
    gap,
    greedy,
    in_float64,
    load,
    near,
)
from files import empty_dir, write_json_sections
from synthetic import Packed
from t5 import GATED, MT5, ORIGINAL

# A decoder with fewer layers than the encoder (transformers' cache cannot do the reverse), and few
# distance buckets.
SIZES = {
    "num_decoder_layers": 2,
    "num_layers": 3,
    "relative_attention_max_distance": 24,
    "relative_attention_num_buckets": 12,
    "vocab_size": 67,
}
INPUTS, TARGETS = [3, 12, 40], [1, 10, 40]
BEAMS, RETURNED, LIMIT, END = 4, 2, 24, 1
PENALTIES, PATIENCE = [1.0, 0.6], [True, False]


def rules(tied: bool) -> list[Any]:
    """Gains that give attention scores the spread of scaled ones, and a confident LM head."""
    return [
        ("relative_attention_bias", -1.5, 0.0),
        (r"Attention\.q", (2.4 if tied else 1.6) / 10**0.5, 0.0),
        (r"Attention\.k", 1.4, 0.0),
        (r"Attention\.o", 1.6, 0.0),
        # After ReLU, values are never negative: a small gain, or every token gets the same output.
        ("wo", 0.6 if tied else 1.6, 0.0),
        # With a tied LM head, small embeddings keep a token from predicting itself.
        ("decoder.final_layer_norm", -0.5, 30.0 if tied else 1.0),
        ("shared", -0.1 if tied else -0.3, 0.0),
        ("lm_head", 2.5, 0.0),
    ]


def kind(name: str, seed: int, model: type[PreTrainedModel], config: dict[str, Any]):
    """transformers 5 assumes every LM head is tied until it finds one in the file: put it there."""
    config = changed(config, model.__name__, **SIZES)
    tied = config.get("tie_word_embeddings", True)
    head = {"lm_head.weight": [config["vocab_size"], config["d_model"]]}
    variant = Decoder(name, seed, model, config, rules=rules(tied))
    variant.extra = {} if tied else head
    return variant


VARIANTS = [
    kind("t5-seq2seq", 4861, T5ForConditionalGeneration, ORIGINAL),
    kind("flan-t5-seq2seq", 2162, T5ForConditionalGeneration, GATED),
    kind("mt5-seq2seq", 2663, MT5ForConditionalGeneration, MT5),
]
# Old files have this table, unused: cross-attention has no position bias.
VARIANTS[0].extra = {
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": [12, 3]
}


class Noise(LogitsProcessor):
    """A bound above the error of a float32 implementation."""

    def __init__(self, seed: int) -> None:
        self.chance = torch.Generator().manual_seed(seed)

    def __call__(self, _ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(scores.shape, generator=self.chance, dtype=scores.dtype)
        return scores + 1e-4 * drawn


def search(
    model: PreTrainedModel,
    ids: torch.Tensor,
    length_penalty: float,
    early_stopping: bool,
    noise: int | None = None,
) -> tuple[list[list[int]], list[float]]:
    """The sequences without the start token, and their scores."""
    processors = [] if noise is None else [Noise(noise)]
    with exactly(model):
        result = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=BEAMS,
            num_return_sequences=RETURNED,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=LIMIT,
            eos_token_id=END,
            pad_token_id=0,
            do_sample=False,
            logits_processor=LogitsProcessorList(processors),
            output_scores=True,
            return_dict_in_generate=True,
        )
    counts = (result.beam_indices >= 0).sum(dim=1).tolist()
    sequences = [
        row[1 : 1 + count] for row, count in zip(result.sequences.tolist(), counts)
    ]
    return sequences, result.sequences_scores.tolist()


def worth(
    model: PreTrainedModel, ids: torch.Tensor, sequence: list[int], penalty: float
) -> float:
    """The sum of log-probabilities over the number of tokens, including the end token, to the power
    of the penalty."""
    given = torch.tensor([[0, *sequence[:-1]]])
    with exactly(model):
        logits = model(input_ids=ids, decoder_input_ids=given).logits[0]
    each = logits.log_softmax(-1)[torch.arange(len(sequence)), torch.tensor(sequence)]
    return each.sum().item() / len(sequence) ** penalty


def beams(
    model: PreTrainedModel, single: PreTrainedModel, inputs: list[torch.Tensor]
) -> list[dict[str, Any]]:
    cases = []
    for number, penalty, early in itertools.product(
        range(len(inputs)), PENALTIES, PATIENCE
    ):
        ids = inputs[number]
        sequences, scores = search(model, ids, penalty, early)
        for sequence, score in zip(sequences, scores):
            assert abs(worth(model, ids, sequence, penalty) - score) < 1e-9
        assert scores[0] - scores[1] > 2e-4, scores
        for noise in range(2):
            again = search(single, ids, penalty, early, noise)[0]
            assert again == sequences, (again, sequences)
        cases.append(
            {
                "input": number,
                "length_penalty": penalty,
                "early_stopping": early,
                "sequences": sequences,
                "scores": [float(f"{score:.9g}") for score in scores],
            }
        )
    assert_choices_matter(cases)
    return cases


def assert_choices_matter(cases: list[dict[str, Any]]) -> None:
    """Checks that penalty and patience change some output, and that some sequences end while others
    are cut off."""

    def answers(**chosen: Any) -> list[Any]:
        picked = (c for c in cases if all(c[k] == v for k, v in chosen.items()))
        return [case["sequences"] for case in picked]

    assert answers(length_penalty=1.0) != answers(length_penalty=0.6), "penalty"
    assert answers(early_stopping=True) != answers(early_stopping=False), "patience"
    ended = [s[-1] == END for case in cases for s in case["sequences"]]
    assert sum(ended) >= len(ended) / 2, "ended"
    lengths = {len(s) for case in cases for s in case["sequences"]}
    assert len(lengths) >= 5, lengths


@torch.inference_mode()
def write(out: Path, variant: Decoder) -> None:
    directory = empty_dir(out / variant.name)
    single = load(variant, directory)
    own_head = not torch.equal(single.lm_head.weight, single.shared.weight)
    assert own_head == ("lm_head.weight" in variant.extra)
    model = in_float64(single)
    inputs = draw(variant.seed, model.config.vocab_size, INPUTS)
    for ids in inputs:
        ids[0, -1] = END
    targets = draw(variant.seed + 1, model.config.vocab_size, TARGETS)
    packed, farthest = Packed(), 0.0
    for number, (ids, target) in enumerate(zip(inputs, targets)):
        target[0, 0] = 0
        given = {"decoder_input_ids": target, "output_hidden_states": True}
        with exactly(model):
            result = model(input_ids=ids, **given)
        packed.lengths.append(ids.shape[1])
        packed.add("ids", ids[0])
        packed.add("encoder", result.encoder_last_hidden_state[0])
        packed.add("decoder.ids", target[0])
        packed.add("logits", result.logits[0])
        other = single(input_ids=ids, **given).logits
        farthest = max(farthest, near(result.logits, other))
        if number == CONTINUED:
            for layer, rows in enumerate(result.decoder_hidden_states):
                packed.add(f"decoder.hidden.{layer}", rows[0])
    assert torch.cat(packed.rows["logits"]).std() > 1, variant.name
    assert farthest < 2e-4, farthest
    packed.rows["decoder.cu_seqlens"] = [
        torch.tensor([0, *itertools.accumulate(TARGETS)])
    ]

    chosen, logits = greedy(model, inputs[CONTINUED])
    with exactly(model):
        start = torch.cat([torch.zeros(1, dtype=torch.long), chosen[:-1]])[None]
        whole = model(input_ids=inputs[CONTINUED], decoder_input_ids=start).logits[0]
    assert near(whole, logits) < 1e-9, near(whole, logits)
    assert gap(logits) > GAP, gap(logits)
    assert len(set(chosen.tolist())) >= 7, chosen
    assert torch.equal(greedy(single, inputs[CONTINUED])[0], chosen)
    packed.add("decode.ids", chosen)
    packed.add("decode.logits", logits)

    found = beams(model, single, inputs)
    about = {
        "architecture": variant.config["architectures"][0],
        "model": variant.model.__name__,
        "continued": CONTINUED,
        "steps": STEPS,
        "float32_distance": {"logits": float(f"{farthest:.1e}")},
        "num_beams": BEAMS,
        "num_return_sequences": RETURNED,
        "max_new_tokens": LIMIT,
        "eos_token_id": END,
    }
    packed.write(directory, about)
    write_json_sections(directory / "golden.json", about | {"beams": found})


def make(out: Path, _work: Path) -> None:
    for variant in VARIANTS:
        write(out, variant)
