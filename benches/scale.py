#!/usr/bin/env python3
"""Calculates the hours, cost and bytes of docs/scale.md from measured rates.

usage: benches/scale.py [--texts 1e6,1e9] [--cpu-price 0.05] [--gpu-price 4] [--efficiency 0.95]
       benches/scale.py --check      whether docs/scale.md has this output, and its sources have the rates

The prices are examples, per core and hour and per GPU and hour: give your own. Every rate is one that
docs/numbers.md or docs/cuda.md says was measured, with the words that say so; nothing else is
measured here. `--efficiency` is the part of the rate that is left with many machines.
"""

import argparse
import pathlib
import sys
from dataclasses import dataclass

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "scale.md"

# The marks around the output in the page.
BEGIN, END = "<!-- benches/scale.py -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Work:
    """A kind of work, and its measured rate on one unit of hardware."""

    name: str
    rate: float  # texts or prompts per second and unit
    formula: str
    device: str  # `cores`: a unit is two cores; `gpu`: one H200
    source: str  # the page, and the words in it
    words: tuple[str, ...]
    output: int  # bytes of one result, in f32


# Bytes of an embedding of MiniLM and of BERT-base, and of an answer at 4 bytes per token.
SMALL, LARGE = 4 * 384, 4 * 768

# A generation: the prompt's tokens at the rate of prefill, then the answer's at that of decoding.
PROMPT, ANSWER = 512, 128

WORKS = [
    Work("MiniLM bf16, short texts, file to file", 100_000 / 29, "100,000 / 29 s", "cores", "numbers.md",
         ("100,000 short texts takes 29 s in bf16",), SMALL),
    Work("MiniLM bf16, 128 tokens", 32 / 0.068, "32 / 68 ms", "cores", "numbers.md",
         ("| Sconce bf16 (`--dtype auto` here) | 0.80 | 2.8 | 4.7 | 68 | 168 | 75 |",), SMALL),
    Work("MiniLM f16, 128 tokens", 131_600, "measured", "gpu", "cuda.md",
         ("MiniLM f16, 256 × 128 | 1.95 ms, 131,600 texts/s",), SMALL),
    Work("BERT-base f16, 128 tokens", 22_100, "measured", "gpu", "cuda.md",
         ("BERT-base f16, 256 × 128 | 11.6 ms, 22,100 texts/s",), LARGE),
    Work(f"Llama 8 B bf16, {PROMPT} tokens in, {ANSWER} out", 1 / (PROMPT / 36_400 + ANSWER / 6_100),
         f"1 / ({PROMPT} / 36,400 + {ANSWER} / 6,100)", "gpu", "cuda.md",
         ("one decode step of 32 sequences | 5.24 ms, 6,100 tok/s", "prefill of 2,048 tokens | 56.3 ms, 36,400 tok/s"), 4 * ANSWER),
]

# Machines to show: how many units of each kind, and their name.
FLEETS = {
    "cores": [(1, "2 cores"), (32, "64 cores"), (1024, "2,048 cores")],
    "gpu": [(1, "1 GPU"), (8, "8 GPUs"), (1000, "1,000 GPUs")],
}

# Numbers of an embedding of MiniLM.
DIMENSIONS = 384


def number(value):
    """Two significant digits, with thousands separators."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def duration(seconds):
    for size, unit in ((86_400 * 2, "days"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{number(seconds / (86_400 if unit == 'days' else size))} {unit}"
    return f"{number(max(seconds, 1))} s" if seconds >= 1 else "< 1 s"


def size(count):
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{number(count / factor)} {unit}"
    return f"{count:.0f} B"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def rates():
    def row(work):
        unit = "two cores" if work.device == "cores" else "one H200"
        written = size(work.rate * work.output)
        return [work.name, unit, work.formula, number(work.rate), written, f"[{work.source}]({work.source})"]

    head = ["work", "on", "from the measurement", "per second", "writes per second", "measured in"]
    return table(head, map(row, WORKS))


def times(texts, efficiency):
    def rows():
        for work in WORKS:
            for units, name in FLEETS[work.device]:
                yield [work.name, name] + [duration(n / (work.rate * units * efficiency)) for n in texts]

    return table(["work", "machines"] + [f"{n:,.0f}" for n in texts], rows())


def costs(texts, efficiency, prices):
    def rows():
        for work in WORKS:
            # A unit of cores is two of them.
            price = prices["gpu"] if work.device == "gpu" else 2 * prices["cores"]
            yield [work.name] + [f"${number(n / (work.rate * efficiency) / 3_600 * price)}" for n in texts]

    return table(["work"] + [f"{n:,.0f}" for n in texts], rows())


def bytes_of(texts):
    kinds = [("f32", 4 * DIMENSIONS), ("int8", DIMENSIONS), ("binary", DIMENSIONS // 8)]
    rows = [[f"{DIMENSIONS} numbers in {name}", f"{each:,} B"] + [size(n * each) for n in texts] for name, each in kinds]
    shards = [["shards of 100,000 rows", ""] + [f"{max(n / 100_000, 1):,.0f}" for n in texts]]
    lists = [["requests to list them, at 1,000 names each", ""] + [f"{max(n / 1e8, 1):,.0f}" for n in texts]]
    return table(["output", "each"] + [f"{n:,.0f}" for n in texts], rows + shards + lists)


def output(texts, efficiency, prices):
    return "\n".join([
        "Rates, from measurements; the bytes that they write are **calculated** (f32, uncompressed):\n",
        rates(),
        f"**Calculated** time: texts / (rate × units × {efficiency:g}).\n",
        times(texts, efficiency),
        f"**Calculated** cost at example prices of ${prices['cores']:g} per core and hour and ${prices['gpu']:g} per GPU and",
        f"hour: texts / (rate × {efficiency:g}) / 3600 × price of a unit. It does not depend on the number of machines.\n",
        costs(texts, efficiency, prices),
        "**Calculated** bytes, without the texts themselves and before compression:\n",
        bytes_of(texts),
    ])


def check(expected):
    page = PAGE.read_text(encoding="utf-8")
    wrong = []
    for work in WORKS:
        text = (DOCS / work.source).read_text(encoding="utf-8")
        wrong += [f"docs/{work.source} no longer says: {words}" for words in work.words if words not in text]
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        wrong.append("docs/scale.md: the marks of the output are missing")
    elif page.split(BEGIN)[1].split(END)[0] != expected:
        wrong.append("docs/scale.md has other tables: run benches/scale.py --write")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", default="1e6,1e7,1e8,1e9", help="numbers of texts, separated by commas")
    parser.add_argument("--cpu-price", type=float, default=0.05, help="price of a core and hour (an example)")
    parser.add_argument("--gpu-price", type=float, default=4.0, help="price of a GPU and hour (an example)")
    parser.add_argument("--efficiency", type=float, default=0.95, help="part of the rate that many machines keep")
    parser.add_argument("--check", action="store_true", help="compare docs/scale.md and its sources")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/scale.md")
    args = parser.parse_args()
    texts = [float(part) for part in args.texts.split(",")]
    tables = output(texts, args.efficiency, {"cores": args.cpu_price, "gpu": args.gpu_price})
    if args.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + tables + END + rest.split(END)[1], encoding="utf-8")
    elif args.check:
        if wrong := check(tables):
            sys.exit("\n".join(wrong))
        print(f"docs/scale.md: {len(WORKS)} measured rates and the tables calculated from them")
    else:
        print(tables, end="")


main()
