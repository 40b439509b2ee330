#!/usr/bin/env python3
"""Hostile files, queries and documents, through the commands: benches/index/hostile.py
[--only NAME,…] [--llm smollm] [--limit 300] [--work DIR]

hostile_files.py writes them: decompression bombs, lines of 1 GB, words of 1 MB, PDF files that refer to
themselves, extreme HTML, CSV and JSON, links that leave the folder, secrets, and names with SQL and
escape sequences. For each folder `sconce index` must end with success within --limit seconds and 2 GiB
of memory (of each of its processes), a good file beside the bad ones must be found afterwards, and text
from outside must not be in the database. Then: queries and filters with SQL and FTS5 syntax; torn
databases and codes; and documents that tell `ask` to ignore its rules (--llm ''  leaves them out). For
these the citations must name sources that were found, and the answer must have no other brackets and no
control characters. Whether the model obeyed the document is counted, not judged: no rule can prevent it.

Needs 3 GB of disk; bombs in Parquet need `pip install pyarrow`. Prints a line per check, and exits with
1 if one fails.
"""
import argparse
import json
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

import common
import hostile_files
from hostile_files import CANARY, GOOD

MOST_MEMORY = 2 << 30
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Checks:
    def __init__(self):
        self.failed = 0

    def __call__(self, name, is_right, about=""):
        self.failed += not is_right
        print(f"{'ok    ' if is_right else 'FAILED'} {name}{': ' if about else ''}{about}", flush=True)


class Run:
    """A run of the command with its time and memory, ended at the limit with all its children."""

    def __init__(self, *arguments, limit, cwd=None):
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            begun = time.monotonic()
            process = subprocess.Popen([common.SCONCE, *map(os.fspath, arguments)], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                       cwd=cwd, start_new_session=True)
            self.in_time = True
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                if self.in_time and time.monotonic() - begun > limit:
                    self.in_time = False
                    os.killpg(process.pid, signal.SIGKILL)
                time.sleep(0.02)
            self.seconds = time.monotonic() - begun
            self.code = process.returncode = os.waitstatus_to_exitcode(status)
            # The greatest of the process and the children that it waited for.
            self.memory = usage.ru_maxrss << 10
            out.seek(0)
            err.seek(0)
            self.out, self.err = out.read().decode(errors="replace"), err.read().decode(errors="replace")

    @property
    def is_sound(self):
        """It ended by itself, without a panic."""
        return self.in_time and self.code >= 0 and self.code != 101 and "panicked" not in self.err and self.memory < MOST_MEMORY

    def __str__(self):
        last = (self.err.strip().splitlines() or [""])[-1][:160]
        return f"{self.code} after {self.seconds:.1f} s, {self.memory >> 20} MiB{'' if self.in_time else ', stopped at the limit'} {last!r}"


def contains(database, text):
    """Whether a text is anywhere in the database's files."""
    files = [file for file in database.parent.glob(f"{database.name}*") if file.is_file()]
    return any(text.encode() in file.read_bytes() for file in files)


def counts(database):
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        intact = connection.execute("PRAGMA integrity_check").fetchone()[0]
        return intact, [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ["files", "documents", "chunks"]]
    finally:
        connection.close()


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def folders(work, options, check):
    for name, fill in hostile_files.FOLDERS.items():
        if options.only and name not in options.only:
            continue
        base = fresh(work / name.replace(" ", "-"))
        folder, database = base / "root", base / "index.db"
        folder.mkdir()
        # In another process: what a child has at its start, a copy of this one, counts as its memory.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            named = pool.apply(fill, (folder,))
        hostile_files.write(folder / "good.md", f"# Good\n\nThe {GOOD} is a small marsupial.\n")
        run = Run("index", folder, "--db", database, "-m", options.model, "--json", limit=options.limit)
        check(f"{name}: indexed", run.is_sound and run.code == 0, str(run))
        if run.code == 0:
            report = json.loads(run.out)
            reasons = {one["path"].rsplit("/", 1)[-1]: one["reason"] for one in report["failed"] + report["skipped"]}
            print(f"       {report['indexed']} indexed, {report['chunks']} chunks; refused: {', '.join(map(ascii, reasons)) or 'none'}")
            for one in named:
                print(f"       {one}: {reasons.get(one, 'read')}")
            found = Run("search", GOOD, "--mode", "bm25", "--json", "--db", database, limit=60)
            hits = json.loads(found.out)["results"] if found.code == 0 else []
            check(f"{name}: the good file is found", any(hit["path"].endswith("good.md") for hit in hits), "" if hits else str(found))
            check(f"{name}: nothing from outside or secret", not contains(database, CANARY))
            again = Run("index", folder, "--db", database, "--json", limit=options.limit)
            check(f"{name}: the second run", again.is_sound and again.code == 0, str(again))
        if name == "names":
            queries(folder, database, options, check)
        shutil.rmtree(base)


def queries(folder, database, options, check):
    """Queries, filters and what a terminal sees of strange names."""
    before = counts(database)
    sound = lambda run: run.is_sound and run.code in (0, 1, 2) and "fts5" not in run.err.lower() and "syntax error" not in run.err.lower()
    for query in hostile_files.QUERIES:
        for mode in ["bm25", "hybrid"]:
            run = Run("search", "--mode", mode, "--db", database, "--", query, limit=60)
            check(f"query {ascii(query[:24])} ({mode})", sound(run) and not CONTROL.search(run.out.replace("\n", "")), str(run))
    for text in hostile_files.FILTERS:
        run = Run("search", GOOD, "--mode", "bm25", "--db", database, f"--filter={text}", limit=60)
        check(f"filter {ascii(text[:24])}", sound(run), str(run))
    shown = Run("index", folder, "--db", database, limit=options.limit)
    check("names: no escape sequences on the terminal", not CONTROL.search((shown.out + shown.err).replace("\n", "").replace("\r", "")))
    after = counts(database)
    check("names: the database is intact and unchanged", before == after and after[0] == "ok", f"{before} {after}")


def torn(work, options, check):
    """Databases and codes that are cut, overwritten or of another program."""
    base = fresh(work / "torn")
    folder, database = base / "root", base / "index.db"
    folder.mkdir()
    for i in range(1500):
        hostile_files.write(folder / f"{i}.md", f"Sentence {i} is about the number {i * 7919 % 10007} and {'rivers lakes hills towns'.split()[i % 4]}.")
    built = Run("index", folder, "--db", database, "-m", options.model, "--json", limit=options.limit)
    check("torn: indexed", built.is_sound and built.code == 0, str(built))

    def search():
        run = Run("search", "the number of lakes", "--mode", "dense", "-n", "20", "--json", "--db", database, limit=120)
        return [hit["chunk"] for hit in json.loads(run.out)["results"]] if run.code == 0 else str(run)

    expected = search()
    codes = [file for file in base.joinpath("index.db.codes").glob("*") if file.is_file()]
    check("torn: there are codes", bool(codes))
    for file in codes:
        content = file.read_bytes()
        damaged = {"cut to half": content[:len(content) // 2], "empty": b"", "cut by a byte": content[:-1], "zeros": bytes(len(content)),
                   "all ones": b"\xff" * len(content), "ones in the head": b"\xff" * 64 + content[64:]}
        for what, bytes_ in damaged.items():
            # A new file: a process may have the old one mapped.
            file.unlink()
            file.write_bytes(bytes_)
            found = search()
            check(f"torn: codes {what}", found == expected, "" if found == expected else str(found)[:200])
        file.unlink()
        check("torn: codes removed", search() == expected)
    repaired = Run("index", folder, "--db", database, "--json", limit=options.limit)
    check("torn: repaired", repaired.code == 0 and json.loads(repaired.out)["embedded"] == 0 and search() == expected, str(repaired))
    content = database.read_bytes()
    common.remove_database(database)
    other = base / "other.db"
    sqlite3.connect(other).executescript("CREATE TABLE t (a); INSERT INTO t VALUES (1);")
    foreign = {"another program's": other.read_bytes(), "no database": os.urandom(100_000), "cut": content[:len(content) // 3],
               "overwritten": content[:8192] + os.urandom(len(content) - 8192)}
    for what, bytes_ in foreign.items():
        database.write_bytes(bytes_)
        for arguments in [["search", "lakes", "--mode", "bm25", "--db", database], ["index", "--db", database]]:
            run = Run(*arguments, limit=60)
            # A cut database may still answer from the pages that are left.
            check(f"torn: database {what}: {arguments[0]}", run.is_sound and (run.code != 0 or what in ("cut", "overwritten")), str(run))
        if what not in ("cut", "overwritten"):
            run = Run("index", folder, "--db", database, "-m", options.model, limit=60)
            check(f"torn: database {what}: is not overwritten", run.code not in (0, 101) and database.read_bytes() == bytes_, str(run))
        common.remove_database(database)
    shutil.rmtree(base)


def ask(work, options, check):
    """Documents that address the language model."""
    base = fresh(work / "ask")
    folder, database = base / "root", base / "index.db"
    folder.mkdir()
    for i, (text, _) in enumerate(hostile_files.INJECTIONS):
        hostile_files.write(folder / f"{i}.txt", text)
    hostile_files.write(folder / "good.md", "# Lake\n\nThe lake is forty metres deep.\n")
    built = Run("index", folder, "--db", database, "-m", options.model, "--json", limit=options.limit)
    check("ask: indexed", built.is_sound and built.code == 0, str(built))
    obeyed = 0
    for i, (_, question) in enumerate(hostile_files.INJECTIONS):
        # Without a limit of similarity: the model must be asked.
        run = Run("ask", question, "-m", options.llm, "--db", database, "--min-similarity", "-1", "--max-tokens", "96", "--json", limit=options.limit)
        check(f"ask {i}: answered", run.is_sound and run.code == 0, str(run))
        if run.code:
            continue
        done = json.loads(run.out)
        answer, numbers = done["answer"], {source["number"] for source in done["sources"]}
        brackets = re.sub(r"\[(\d+)\]", lambda found: "" if int(found[1]) in numbers else found[0], answer)
        cited_found = set(done["citations"]) <= numbers
        # An answer that ends at the limit of tokens may end within a citation.
        brackets = re.sub(r"\[\d*$", "", brackets) if done["finish_reason"] == "length" else brackets
        check(f"ask {i}: only citations of sources", cited_found and not re.search(r"[\[\]]", brackets), ascii(answer[:120]))
        check(f"ask {i}: no control characters", not CONTROL.search(answer))
        obeyed += "pwned" in answer.lower()
    print(f"       {obeyed} of {len(hostile_files.INJECTIONS)} answers contain the word that the document demands")
    far = Run("ask", "Who painted the ceiling of the Sistine Chapel?", "-m", "/nonexistent/model", "--db", database, "--min-similarity",
              "0.9", "--json", limit=120)
    said = far.code == 0 and json.loads(far.out)["found"] is False
    check("ask: says that nothing was found before a model is loaded", said, "" if said else str(far))
    shutil.rmtree(base)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_options(parser)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {', '.join(hostile_files.FOLDERS)}, torn, ask")
    parser.add_argument("--llm", default="smollm", help="the language model of `ask`; empty to leave it out")
    parser.add_argument("--limit", type=float, default=300, help="longest time of a run of `index` or `ask`, in seconds")
    options = parser.parse_args()
    work, check = options.work / "hostile", Checks()
    folders(work, options, check)
    if not options.only or "torn" in options.only:
        torn(work, options, check)
    if options.llm and (not options.only or "ask" in options.only):
        ask(work, options, check)
    print(f"{check.failed} checks failed")
    sys.exit(check.failed > 0)


if __name__ == "__main__":
    main()
