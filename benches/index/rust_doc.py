#!/usr/bin/env python3
"""Debian's rust-doc (32,101 HTML files): the rate of `sconce index` beside that of the model alone.

usage: benches/index/rust_doc.py [--files N] [--rounds 1] [--searches 60] [--work DIR]

Each round indexes the folder into a new database, then embeds the texts of the same chunks by
`sconce embed`, so that both sides see the same machine. The texts are those that the index embeds: a
chunk below its title and headings. `index` counts reading, parsing, chunking, writing and codes;
`embed` reports its time without start and loading, and `index` likewise. Then the same command runs
again over the unchanged files, and a last run over 2,000 files is searched from other processes while
it writes. --files takes a sample of N files instead of all. Needs apt-get and dpkg, and no root.

Exits with 1 if the median ratio is below 0.9, the second run embeds anything or takes more than 30 s,
or a search fails, finds a text that is not in the page, or sees fewer chunks than one before it.
$SCONCE is the binary (default: target/release/sconce).
"""
import argparse
import html
import json
import os
import pathlib
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time

import common

LEAST_RATIO = 0.9
MOST_SECONDS_AGAIN = 30
WHILE_INDEXING = 2000
QUERIES = ["how do I read a file line by line", "remove an element from a vector", "lifetime of a borrowed reference",
           "spawn a thread and wait for it", "convert a string to a number", "unsafe raw pointer dereference"]


def sample(root, count, work):
    """A folder with hard links to `count` pages, chosen by the hash of their names."""
    pages = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.html"))
    if count is None or count >= len(pages):
        return root
    folder = work / f"rust-doc-{count}"
    shutil.rmtree(folder, ignore_errors=True)
    for page in sorted(pages, key=common.hashed)[:count]:
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / page, folder / page)
    return folder


def write_chunks(database, file):
    """Writes the texts that the index embedded, in its order. See `embedded_text` in crates/index."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    connection.text_factory = bytes
    rows = connection.execute("SELECT d.id, d.title, d.text, c.heading, c.start, c.stop FROM chunks c JOIN documents d "
                              "ON d.id = c.document ORDER BY c.id")
    count = 0
    with open(file, "w") as out:
        for _, title, text, heading, start, stop in rows:
            title, heading = ((part or b"").decode().strip() for part in (title, heading))
            context = heading if title and heading.startswith(title) else " > ".join(filter(None, [title, heading]))
            context = context.encode()[:160].decode(errors="ignore")
            passage = text[start:stop].decode()
            out.write(json.dumps({"text": f"{context}\n{passage}" if context else passage}) + "\n")
            count += 1
    return count


def index(folder, database, options, **more):
    begun = time.perf_counter()
    done = common.answer("index", folder, "--db", database, "-m", options.model, "--threads", options.threads, "--json", **more)
    done["wall"] = time.perf_counter() - begun
    return done


def rounds(folder, options):
    database, chunks = options.work / "rust-doc.db", options.work / "rust-doc-chunks.jsonl"
    ratios = []
    for number in range(options.rounds):
        common.remove_database(database)
        done = index(folder, database, options)
        if write_chunks(database, chunks) != done["embedded"]:
            common.progress(f"{done['embedded']} chunks were embedded, {done['chunks']} are in the index")
        ours = done["embedded"] / done["seconds"]
        raw = common.embed(chunks, options.work / "rust-doc-chunks.npy", options.model, ["--threads", options.threads])
        ratios.append(ours / raw)
        print(f"round {number + 1}: {done['indexed']:,} files ({len(done['failed'])} failed, {len(done['skipped'])} left out), "
              f"{done['chunks']:,} chunks in {done['seconds']:.0f} s: {ours:.1f} chunks/s; `sconce embed` {raw:.1f}/s; "
              f"ratio {ours / raw:.3f}", flush=True)
    (options.work / "rust-doc-chunks.npy").unlink(missing_ok=True)
    return database, statistics.median(ratios)


def is_in_page(hit):
    """Whether every word of a passage is in its page: a page has more text, such as its navigation."""
    page = html.unescape(re.sub(r"<[^>]*>", "", pathlib.Path(hit["path"]).read_text(errors="replace")))
    return all(word in page for word in re.findall(r"\w+", hit["text"]))


def search_while_indexing(root, options):
    """Searches while another process indexes. Returns what was wrong."""
    folder, database = sample(root, WHILE_INDEXING, options.work), options.work / "rust-doc-live.db"
    common.remove_database(database)
    writer = subprocess.Popen([common.SCONCE, "index", str(folder), "--db", str(database), "-m", options.model, "--threads",
                               str(options.threads), "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wrong, times, seen, most = [], [], [], 0
    try:
        while writer.poll() is None and len(times) < options.searches:
            time.sleep(0.5)
            if not database.exists():
                continue
            query = QUERIES[len(times) % len(QUERIES)]
            mode = ["hybrid", "bm25", "dense"][len(times) % 3]
            done = common.sconce("search", query, "--db", database, "--mode", mode, "--json", check=False, limit=120)
            status = common.sconce("index", "--db", database, "--json", check=False, limit=120)
            if done.returncode or status.returncode:
                # Before the first commit there is no model yet.
                if most:
                    wrong.append(f"{mode}: {done.stderr.strip()} {status.stderr.strip()}")
                continue
            done, chunks = json.loads(done.stdout), json.loads(status.stdout)["chunks"]
            if chunks < most:
                wrong.append(f"{chunks} chunks after {most}")
            most = max(most, chunks)
            wrong += [f"{hit['path']}: has no passage {hit['text'][:60]!a}" for hit in done["results"] if not is_in_page(hit)]
            times.append(done["seconds"] * 1e3)
            seen.append((chunks, len(done["results"])))
        out, _ = writer.communicate()
    finally:
        if writer.poll() is None:
            writer.kill()
    if writer.returncode:
        return [f"the writer ended with {writer.returncode}", *wrong]
    if not times:
        return ["the run ended before a search"]
    first = next((chunks for chunks, hits in seen if hits), None)
    print(f"while indexing: {len(times)} searches, median {statistics.median(times):.0f} ms, longest {max(times):.0f} ms; the first "
          f"hits among {first} chunks, {json.loads(out)['chunks']:,} at the end; {len(wrong)} wrong", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_options(parser)
    parser.add_argument("--files", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--searches", type=int, default=60)
    options = parser.parse_args()
    print(common.machine())
    root = common.rust_doc(options.work)
    folder = sample(root, options.files, options.work)
    database, ratio = rounds(folder, options)
    again = index(folder, database, options)
    print(f"again: {again['unchanged']:,} files unchanged, {again['embedded']} chunks embedded, {again['seconds']:.1f} s "
          f"({again['wall']:.1f} s with start and loading)", flush=True)
    wrong = search_while_indexing(root, options) if options.searches else []
    for line in wrong[:10]:
        print(f"wrong: {line}")
    print(f"median ratio {ratio:.3f} (at least {LEAST_RATIO})")
    sys.exit(ratio < LEAST_RATIO or again["embedded"] > 0 or again["seconds"] > MOST_SECONDS_AGAIN or bool(wrong))


if __name__ == "__main__":
    main()
