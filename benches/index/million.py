#!/usr/bin/env python3
"""One million distinct real sentences with their embeddings, for peers.py.

usage: benches/index/million.py [--count 1000000] [--queries 1000] [--device cpu] [--stop-after SECONDS] [--work DIR]

The sentences come from Debian's documentation packages (names that end with -doc, in the order of
the hash of their names, those above 40 MB left out), downloaded by apt-get without installing
anything. A sentence has 5 to 40 words, begins with a capital letter, ends with a full stop, question
or exclamation mark, and is mostly letters. Two sentences that differ only in case, numbers or
punctuation count as one, and no package gives more than 25,000. The queries are the sentences whose
hashes are the smallest; they are held out. Every sentence also has a number from 0 to 99, which
filters use, by its hash too.

Written to the work folder, in million-COUNT: sentences.txt and queries.txt (a sentence per line),
vectors.npy and queries.npy (f32), buckets.npy (uint8), packages.txt. Embedding is by `sconce embed`,
in parts of 20,000: a run that was killed goes on with the next part, and the parts may be embedded on
any machine (--device cuda:0): an H200 embeds a million in 23 s in f32. Needs numpy.
"""
import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time

import numpy

import common

MOST_PACKAGE_BYTES = 40 << 20
MOST_OF_A_PACKAGE = 25_000
MOST_FILE_BYTES = 8 << 20
PART = 20_000
GROUP = 16
# What is not prose in a page.
NOT_TEXT = re.compile(r"<(script|style|pre|code|nav|head|table|svg)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
BLOCK = re.compile(r"</?(p|div|li|dd|dt|h[1-6]|td|tr|br|ul|ol|dl|section|blockquote)\b[^>]*>", re.IGNORECASE)
TAG = re.compile(r"<[^>]*>")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
WANTED = re.compile(r"[A-Z][^<>{}|\\=\[\]]*[.!?]")
ENDINGS = (".html", ".htm", ".xhtml", ".txt", ".md", ".rst", ".texi", ".text")


def packages():
    """The packages with documentation, in a fixed order."""
    out = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, errors="replace", check=True).stdout
    names = []
    for entry in out.split("\n\n"):
        name = re.match(r"Package: (\S+-doc)\n", entry)
        size = re.search(r"^Size: (\d+)$", entry, re.MULTILINE)
        if name and size and int(size[1]) <= MOST_PACKAGE_BYTES:
            names.append(name[1])
    return sorted(set(names), key=common.hashed)


def downloads(options):
    """The packages with their files, downloaded in groups. A file is removed when the next group comes."""
    names = packages()
    for start in range(0, len(names), GROUP):
        files = common.download(names[start:start + GROUP], options.work / "packages")
        try:
            yield from files.items()
        finally:
            if not options.keep_packages:
                for file in files.values():
                    file.unlink()


def documents(package):
    """The texts of a package's files. The archive is read as a stream, so that no path of it is used."""
    tar = subprocess.Popen(["dpkg", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE)
    try:
        with tarfile.open(fileobj=tar.stdout, mode="r|") as files:
            for file in files:
                name = file.name.lower()
                if not file.isfile() or file.size > MOST_FILE_BYTES or not name.removesuffix(".gz").endswith(ENDINGS):
                    continue
                name, content = common.unpacked(name, files.extractfile(file).read())
                yield name, content.decode("utf-8", errors="replace")
    except tarfile.TarError as error:
        common.progress(f"{package.name}: {error}")
    finally:
        tar.kill()
        tar.wait()


def paragraphs(name, text):
    if name.endswith(("html", "htm")):
        text = html.unescape(TAG.sub("", BLOCK.sub("\n\n", NOT_TEXT.sub(" ", text))))
    return re.split(r"\n\s*\n", text)


def sentences(name, text):
    for paragraph in paragraphs(name, text):
        # Code and tables in plain text are indented or aligned.
        if not re.search(r"[.!?]", paragraph) or re.search(r"\S {3,}\S", paragraph):
            continue
        for sentence in SENTENCE_END.split(" ".join(paragraph.split())):
            count = sentence.count(" ") + 1
            if not (5 <= count <= 40 and len(sentence) <= 400 and WANTED.fullmatch(sentence)):
                continue
            letters = sum(character.isalpha() or character == " " for character in sentence)
            if letters >= 0.85 * len(sentence) and "\ufffd" not in sentence:
                yield sentence


def form(sentence):
    """What two sentences that count as one share."""
    return " ".join(re.sub(r"[\W\d_]+", " ", sentence.lower()).split())


def collect(folder, options):
    """Writes sentences.txt, queries.txt, buckets.npy and packages.txt."""
    wanted, seen, found, used = options.count + options.queries, set(), [], []
    for package, file in downloads(options):
        before = len(found)
        for sentence in (s for name, text in documents(file) for s in sentences(name, text)):
            key = common.hashed(form(sentence))[:20]
            if key not in seen:
                seen.add(key)
                found.append((key, sentence))
            if len(found) == min(wanted, before + MOST_OF_A_PACKAGE):
                break
        used.append(f"{file.name}\t{len(found) - before}")
        common.progress(f"{len(found):,} of {wanted:,} sentences; {len(found) - before:,} of {package}")
        if len(found) == wanted:
            break
    if len(found) < wanted:
        sys.exit(f"the packages have {len(found):,} such sentences only; use --count {len(found) - options.queries}")
    held_out = {key for key, _ in sorted(found)[:options.queries]}
    kept = [(key, sentence) for key, sentence in found if key not in held_out]
    numpy.save(folder / "buckets.npy", numpy.array([int(key[-8:], 16) % 100 for key, _ in kept], dtype=numpy.uint8))
    (folder / "packages.txt").write_text("\n".join(used) + "\n")
    (folder / "queries.txt").write_text("".join(f"{sentence}\n" for key, sentence in found if key in held_out))
    # Last: its presence means that all of them are there.
    partial = folder / "sentences.partial"
    partial.write_text("".join(f"{sentence}\n" for _, sentence in kept))
    partial.rename(folder / "sentences.txt")


def embed(texts, vectors, options):
    """Embeds a list of texts to a file, which is there only when it is whole."""
    rows = vectors.with_suffix(".jsonl")
    partial = vectors.with_suffix(".partial.npy")
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rate = common.embed(rows, partial, options.model, ["--device", options.device, "--threads", options.threads])
    shape = numpy.load(partial, mmap_mode="r").shape
    if shape[0] != len(texts):
        sys.exit(f"{partial}: {shape[0]} vectors for {len(texts)} texts")
    partial.rename(vectors)
    rows.unlink()
    return rate


def embed_all(folder, options):
    """Embeds what is missing. False if the time ended before."""
    begun = time.monotonic()
    lines = (folder / "sentences.txt").read_text().splitlines()
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    if not (folder / "queries.npy").exists():
        embed((folder / "queries.txt").read_text().splitlines(), folder / "queries.npy", options)
    for start in range(0, len(lines), PART):
        part = parts / f"{start:08}.npy"
        if part.exists():
            continue
        if options.stop_after is not None and time.monotonic() - begun > options.stop_after:
            common.progress("stopped; the same command goes on from here")
            return False
        rate = embed(lines[start:start + PART], part, options)
        common.progress(f"{min(start + PART, len(lines)):,} of {len(lines):,} embedded, {rate:.0f}/s")
    files = [numpy.load(parts / f"{start:08}.npy", mmap_mode="r") for start in range(0, len(lines), PART)]
    partial = folder / "vectors.partial.npy"
    whole = numpy.lib.format.open_memmap(partial, mode="w+", dtype=numpy.float32, shape=(len(lines), files[0].shape[1]))
    for number, file in enumerate(files):
        whole[number * PART:number * PART + len(file)] = file
    whole.flush()
    partial.rename(folder / "vectors.npy")
    shutil.rmtree(parts)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_options(parser)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stop-after", type=float, metavar="SECONDS", help="embed no further part after this time")
    parser.add_argument("--keep-packages", action="store_true", help="keep the downloads")
    parser.add_argument("--sentences-only", action="store_true", help="do not embed")
    options = parser.parse_args()
    folder = options.work / f"million-{options.count}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "sentences.txt").exists():
        collect(folder, options)
    if options.sentences_only:
        return
    if not (folder / "vectors.npy").exists() and not embed_all(folder, options):
        sys.exit(75)
    print(f"{folder}: {numpy.load(folder / 'vectors.npy', mmap_mode='r').shape} vectors")


if __name__ == "__main__":
    main()
