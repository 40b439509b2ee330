#!/usr/bin/env python3
"""How hybrid search joins BM25 and embeddings: sums and weights, chosen on one half of the queries and
measured on the other.

usage: benches/index/fusion.py [--files 6000] [--queries 400] [--db FILE] [--work DIR]

Known-item queries of known_items.py over a sample of rust-doc's pages, nDCG@10 as in quality.py. Each way
joins the best 100 passages of both rankings: reciprocal rank fusion with several constants and weights
of BM25, and sums of scores that are divided by the best score of their ranking, with several weights of
the embeddings. Of each two queries in a row, which are a literal and a paraphrased one, the halves take
turns. Exits with 1 if the way that is best on the first half is worse than BM25 or the embeddings alone
on the second. `EMBEDDINGS` of crates/index/src/search/hybrid.rs is the weight that it chose.

Needs numpy. BM25 is run by the command; cosines are computed here, from the vectors in the database.
"""
import argparse
import json
import pathlib
import sqlite3
import sys

import numpy as np

import common
import known_items
from quality import gain, interval, mean
from rust_doc import sample

DEPTH = 100


def by_words(database, text):
    hits = common.answer("search", text, "--db", database, "--mode", "bm25", "--json", "-n", DEPTH)["results"]
    return [(hit["chunk"], hit["ranks"]["bm25"]["score"]) for hit in hits]


def by_embedding(chunks, vectors, query):
    scores = vectors @ query
    return [(chunks[i], float(scores[i])) for i in np.argsort(-scores)[:DEPTH]]


def reciprocal(constant, weight):
    def join(words, embeddings):
        scores = {}
        for ranking, factor in [(words, weight), (embeddings, 1)]:
            for place, (chunk, _) in enumerate(ranking, 1):
                scores[chunk] = scores.get(chunk, 0) + factor / (constant + place)
        return scores
    return join


def weighted(share):
    def join(words, embeddings):
        scores = {}
        for ranking, factor in [(words, 1 - share), (embeddings, share)]:
            for chunk, score in ranking:
                scores[chunk] = scores.get(chunk, 0) + factor * max(score / ranking[0][1], 0)
        return scores
    return join


def ways():
    yield "BM25", lambda words, _: dict(words)
    yield "embeddings", lambda _, embeddings: dict(embeddings)
    for constant in [5, 10, 20, 60]:
        for weight in [1, 1.5, 2, 3, 5]:
            yield f"reciprocal ranks, k = {constant}, BM25 × {weight}", reciprocal(constant, weight)
    for share in [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]:
        yield f"relative scores, embeddings {share}", weighted(share)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_options(parser)
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--queries", type=int, default=400, help="at most so many (default: %(default)s)")
    parser.add_argument("--db", type=pathlib.Path, help="an index of rust-doc (default: one of the sample, made if it is missing)")
    options = parser.parse_args()
    database = options.db
    if database is None:
        database = options.work / f"rust-doc-{options.files}.db"
        folder = sample(common.rust_doc(options.work), options.files, options.work)
        common.sconce("index", folder, "--db", database, "-m", options.model)
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    paths = dict(connection.execute("SELECT c.id, f.path FROM chunks c JOIN documents d ON d.id = c.document JOIN files f ON f.id = d.file"))
    stored = connection.execute("SELECT chunk, vector FROM dense ORDER BY chunk").fetchall()
    chunks, vectors = [chunk for chunk, _ in stored], np.array([np.frombuffer(vector, "<f4") for _, vector in stored])
    pages = sorted(set(pathlib.Path(path) for path in paths.values()))
    queries = known_items.queries([page for page in pages if page.suffix == ".html"], options.queries)
    texts, embedded = options.work / "fusion.jsonl", options.work / "fusion.npy"
    texts.write_text("\n".join(json.dumps({"text": text}) for _, text, _ in queries))
    common.sconce("embed", "-m", options.model, "-f", texts, "-o", embedded)
    embeddings = [by_embedding(chunks, vectors, query) for query in np.load(embedded).astype(np.float32)]
    words = [by_words(database, text) for _, text, _ in queries]

    def gains(join):
        for word, embedding, (_, _, right) in zip(words, embeddings, queries):
            scores = join(word, embedding)
            yield gain([{"path": paths[chunk]} for chunk in sorted(scores, key=lambda chunk: (-scores[chunk], chunk))], right)

    print(f"{len(pages):,} pages, {len(queries)} queries; {common.machine()}\n")
    print("| nDCG@10 | first half | second half | literal | paraphrased |\n|---|---|---|---|---|")
    halves = {}
    for name, join in ways():
        each = list(gains(join))
        parts = [[value for i, value in enumerate(each) if i // 2 % 2 == half] for half in (0, 1)]
        parts += [[value for value, (kind, _, _) in zip(each, queries) if kind == wanted] for wanted in ("literal", "paraphrased")]
        halves[name] = (mean(parts[0]), parts[1])
        print(f"| {name} | " + " | ".join(f"{mean(part):.3f}" for part in parts) + " |")
    chosen = max(halves, key=lambda name: halves[name][0])
    alone = max(["BM25", "embeddings"], key=lambda name: mean(halves[name][1]))
    differences = [a - b for a, b in zip(halves[chosen][1], halves[alone][1])]
    low, high = interval(differences)
    print(f"\nbest on the first half: {chosen}; on the second it has {mean(differences):+.3f} to {alone} (95 %: {low:+.3f} to {high:+.3f})")
    sys.exit(mean(differences) < 0)


if __name__ == "__main__":
    main()
