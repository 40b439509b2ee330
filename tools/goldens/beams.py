"""Computes transformers' beam search for the model that crates/engine's own search is tested with.

    python tools/goldens/beams.py [--check] [FILE]

The model is a hash of the seed and of the last two tokens, which the Rust test computes too. A line
of the file is one search:

    SEED BEAMS LENGTH_PENALTY EARLY_STOPPING END_TOKENS MAX_TOKENS ANSWERS | TOKENS; .. | SCORE ..
"""

import argparse
import itertools
import sys
from pathlib import Path

import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "crates" / "engine" / "src" / "sampling" / "beams_golden.txt"
VOCABULARY, START, PAD = 24, 0, 0
BEAMS, PENALTIES = [2, 3, 5], [-1.0, 0.0, 0.6, 1.0, 2.0]
EARLY_STOPPING = {"true": True, "false": False, "never": "never"}
ENDS, MOST, TIMES = [[1], [1, 5]], [4, 12], 2
MASK = (1 << 64) - 1


def mix(x: int, y: int) -> int:
    z = (x ^ y * 0x9E3779B97F4A7C15 & MASK) + 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


class Hashed(PreTrainedModel, GenerationMixin):
    """Logits in [-4, 4), exact in f32; those of end tokens are 1 higher, so that answers end."""

    config_class = PreTrainedConfig

    def __init__(self, seed: int, ends: list[int]) -> None:
        super().__init__(PreTrainedConfig(vocab_size=VOCABULARY))
        self.seed, self.ends = seed, ends
        # `generate` reads the device and the dtype of a parameter.
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def row(self, tokens: list[int]) -> torch.Tensor:
        before = tokens[-2] if len(tokens) > 1 else 0
        h = mix(mix(mix(self.seed, len(tokens)), tokens[-1]), before + 100)
        row = torch.tensor([mix(h, i) >> 40 for i in range(VOCABULARY)]) / (1 << 21) - 4
        row[self.ends] += 1
        return row

    def forward(self, input_ids: torch.Tensor, **_unused) -> CausalLMOutput:
        rows = [self.row(tokens) for tokens in input_ids.tolist()]
        return CausalLMOutput(logits=torch.stack(rows)[:, None])


def search(seed: int, beams: int, penalty: float, early: str, ends: list[int], most: int) -> str:
    answers = 1 + seed // TIMES % beams
    result = Hashed(seed, ends).generate(
        torch.tensor([[START]]),
        attention_mask=torch.ones(1, 1, dtype=torch.long),
        num_beams=beams,
        num_return_sequences=answers,
        length_penalty=penalty,
        early_stopping=EARLY_STOPPING[early],
        max_new_tokens=most,
        eos_token_id=ends,
        pad_token_id=PAD,
        do_sample=False,
        use_cache=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    counts = (result.beam_indices >= 0).sum(dim=1).tolist()
    tokens = [
        " ".join(map(str, row[1 : 1 + count]))
        for row, count in zip(result.sequences.tolist(), counts)
    ]
    scores = [f"{score:.6f}" for score in result.sequences_scores.tolist()]
    options = f"{seed} {beams} {penalty} {early} {','.join(map(str, ends))} {most} {answers}"
    return f"{options} | {'; '.join(tokens)} | {' '.join(scores)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a line differs"
    )
    parser.add_argument("file", type=Path, nargs="?", default=FILE, help=f"default: {FILE}")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()

    cases = itertools.product(BEAMS, PENALTIES, EARLY_STOPPING, ENDS, MOST, range(TIMES))
    lines = [search(seed, *case[:-1]) for seed, case in enumerate(cases)]
    if not args.check:
        args.file.write_text("".join(lines), encoding="utf-8", newline="\n")
        return
    old = args.file.read_text(encoding="utf-8").splitlines(keepends=True)
    differ = [pair for pair in itertools.zip_longest(old, lines) if pair[0] != pair[1]]
    for committed, made in differ:
        print(f"- {committed}+ {made}", end="")
    print(f"{len(differ)} of {len(lines)} lines differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
