#!/usr/bin/env python3
"""Quality of search on Debian's rust-doc, and the cosines of questions with and without an answer.

usage: benches/index/quality.py [--queries 200] [--rerank MODEL] [--db FILE] [--at-once 1] [--work DIR]

Known-item queries, half literal and half paraphrased; known_items.py states the rule, which was fixed
before measuring. nDCG@10 of dense, BM25, hybrid, and hybrid with a reranker (--rerank, a cross-encoder)
over the same queries, with a 95 % interval of the difference between hybrid and the better of dense and
BM25 (paired bootstrap). A passage counts for its page; the score of a query is 1/log2(1 + place) of
the first right page among the first ten pages, else 0.

Then the best cosine of questions whose answers are in the documents, near them, and far from them: for
the constant of `sconce ask` (--min-similarity). The rule for it, fixed before measuring too: the
greatest hundredth below which at most 2 % of the known-item queries and questions fall that have an
answer. The tables say what such a constant refuses of the others.

The database is that of rust_doc.py, or is made if it is missing. Each search is a run of `sconce
search`, which loads the model: some minutes; --at-once runs several. Exits with 1 if hybrid, the default, is worse than the
better of the two by more than the interval allows.
"""
import argparse
import json
import math
import pathlib
import random
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor

import common
import known_items

MODES = ["dense", "bm25", "hybrid"]
# Passages of one page share a place, so more of them are asked for than places count.
PASSAGES = 50


def search(database, query, mode, *flags):
    return common.answer("search", query, "--db", database, "--mode", mode, "--json", *flags)["results"]


def gain(hits, right):
    """1/log2(1 + place) of the first right page."""
    for place, page in enumerate(dict.fromkeys(hit["path"] for hit in hits), 1):
        if place > 10:
            break
        if page in right:
            return 1 / math.log2(1 + place)
    return 0.0


def mean(values):
    return sum(values) / len(values) if values else float("nan")


def interval(differences, rounds=10_000):
    """The 95 % interval of the mean, by a bootstrap with a fixed seed."""
    chosen = random.Random(1)
    means = sorted(mean(chosen.choices(differences, k=len(differences))) for _ in range(rounds))
    return means[rounds * 25 // 1000], means[rounds * 975 // 1000]


def measure(database, queries, options):
    """The gains by ranking, in the order of the queries."""
    kinds = {mode: (mode, []) for mode in MODES}
    if options.rerank:
        kinds["hybrid + reranker"] = ("hybrid", ["--rerank", options.rerank])
    rankings = {}
    with ThreadPoolExecutor(options.at_once) as runs:
        for name, (mode, flags) in kinds.items():
            run = lambda query: gain(search(database, query[1], mode, "-n", PASSAGES, *flags), query[2])
            rankings[name] = list(runs.map(run, queries))
            common.progress(f"{name}: {len(queries)} queries")
    return rankings


def best_cosines(database, questions, options):
    """The cosine of each question's best passage."""
    def best(question):
        found = search(database, question, "dense", "-n", 1)
        return found[0]["ranks"]["dense"]["score"] if found else -1.0

    with ThreadPoolExecutor(options.at_once) as runs:
        return list(runs.map(best, questions))


def show_quality(queries, rankings):
    halves = {"all": lambda half: True, "literal": lambda half: half == "literal", "paraphrased": lambda half: half == "paraphrased"}
    print(f"\n| nDCG@10 | {' | '.join(halves)} |\n" + "|---" * (1 + len(halves)) + "|")
    for name, gains in rankings.items():
        cells = [mean([g for (half, _, _), g in zip(queries, gains) if belongs(half)]) for belongs in halves.values()]
        print(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


def show_cosines(groups):
    print("\n| best cosine | n | least | 2 % | 10 % | median | 90 % | 98 % | greatest |\n" + "|---" * 9 + "|")
    for name, values in groups.items():
        points = [min(values), *(common.percentile(values, p) for p in [2, 10, 50, 90, 98]), max(values)]
        print(f"| {name} | {len(values)} | " + " | ".join(f"{value:.2f}" for value in points) + " |")
    inside = sorted(groups["known items"] + groups["questions"])
    constant = math.floor(inside[len(inside) * 2 // 100] * 100) / 100
    marks = sorted({0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, constant})
    print(f"\n| refused below | {' | '.join(groups)} |\n" + "|---" * (1 + len(groups)) + "|")
    for mark in marks:
        shares = [sum(value < mark for value in values) / len(values) for values in groups.values()]
        print(f"| {mark:.2f}{' (the rule)' if mark == constant else ''} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_options(parser)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rerank", help="a reranker, such as cross-encoder/ms-marco-MiniLM-L6-v2")
    parser.add_argument("--db", type=pathlib.Path, help="an index of rust-doc (default: the one of rust_doc.py)")
    parser.add_argument("--at-once", type=int, default=1, help="searches at a time (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the queries and end")
    options = parser.parse_args()
    root = common.rust_doc(options.work)
    if options.list:
        for half, text, right in known_items.queries(sorted(root.rglob("*.html")), options.queries):
            print(f"{half}\t{text}\t{sorted(right)[0]}")
        return
    database = options.db or options.work / "rust-doc.db"
    if not database.exists():
        common.sconce("index", root, "--db", database, "-m", options.model)
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    pages = [pathlib.Path(path) for path, in connection.execute("SELECT path FROM files WHERE state = 'done' ORDER BY path")]
    connection.close()
    queries = known_items.queries([page for page in pages if page.suffix == ".html"], options.queries)
    print(f"{len(pages):,} pages, {len(queries)} queries; {common.machine()}")
    rankings = measure(database, queries, options)
    show_quality(queries, rankings)
    better = max(["dense", "bm25"], key=lambda mode: mean(rankings[mode]))
    low, high = interval([a - b for a, b in zip(rankings["hybrid"], rankings[better])])
    print(f"\nhybrid − {better}: {mean(rankings['hybrid']) - mean(rankings[better]):+.3f} (95 %: {low:+.3f} to {high:+.3f})")
    questions = {"known items": [text for _, text, _ in queries], "questions": known_items.QUESTIONS,
                 "near": known_items.NEAR, "far": known_items.FAR}
    groups = {name: best_cosines(database, texts, options) for name, texts in questions.items()}
    show_cosines(groups)
    record = dict(queries=[[half, text, sorted(right)] for half, text, right in queries], gains=rankings, cosines=groups)
    (options.work / "quality.json").write_text(json.dumps(record))
    sys.exit(high < 0)


if __name__ == "__main__":
    main()
