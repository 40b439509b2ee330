#!/usr/bin/env python3
"""One million vectors in Sconce's index and in other libraries, in one table.

usage: benches/index/peers.py [--count 1000000] [--only sconce,faiss-flat,…] [--seconds 60] [--build-limit 5400] [--work DIR]

Needs the folder that million.py made, and `pip install numpy sqlite-vec apsw faiss-cpu usearch
lancedb chromadb pyarrow`; a peer that is not installed is left out, and said so. (apsw, because many
builds of Python cannot load SQLite's extensions.)

Everything runs on the same two processors (--threads), each library in a process of its own, once to
build and once, from disk, to search. Queries come one at a time, with their vectors given, after 100
that are not measured: without a filter, and with filters that pass 50, 10 and 1 of 100 sentences, by
a number that the library stores beside the vector. `faiss` stores none: it gets a bitmap, whose making
is not measured. `usearch` cannot filter from Python. A library that is slow gets as many queries as
fit into --seconds per filter, but at least 20.

recall@10: how many of the ten passages found have a cosine that is not below that of the tenth best,
by an exact search in f32 (ties count). Memory: what the process has resident after the searches, mapped
files and Python (70 MB or so) included; `peak` is the most while building. `open` lasts to the end of
the first search, and for the peers includes importing them. Sconce also stores the
sentences and indexes their words, and returns passages with snippets; the others return ids.

Options of the peers are the defaults of their documentation, except: cosine (or inner product, the
vectors have length 1); HNSW of faiss with M 32, efConstruction 128, efSearch 128; lancedb with its
default vector index (IVF_PQ), refine_factor 10 and an index on the number; usearch mapped into memory.

Exits with 1 if Sconce misses one of its goals: p50 10 ms, p99 25 ms, recall 0.99 for every filter,
700 MB resident, open in 1 s. $INDEX_SEARCH is our binary (default: `cargo bench --workspace --bench
index_search`).
"""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy

import common

PERCENTS = [100, 50, 10, 1]
K, WARM, LEAST_QUERIES, BATCH = 10, 100, 20, 50_000
GOALS = dict(p50=10, p99=25, recall=0.99, resident=700, open=1000)


class Peer:
    """A library. `path` is where it stores; `data` the folder of vectors."""

    def __init__(self, data, path, threads):
        self.data, self.path, self.threads = data, path, threads

    def batches(self, size=BATCH):
        """Number of the first row, vectors, buckets. Read, not mapped, so that they do not count as memory."""
        header = numpy.load(self.data / "vectors.npy", mmap_mode="r")
        rows, columns, offset = *header.shape, header.offset
        del header
        buckets = numpy.load(self.data / "buckets.npy").astype(numpy.int64)
        with open(self.data / "vectors.npy", "rb") as file:
            file.seek(offset)
            for start in range(0, rows, size):
                count = min(size, rows - start)
                vectors = numpy.fromfile(file, dtype=numpy.float32, count=count * columns).reshape(count, columns)
                yield start, vectors, buckets[start:start + count]


class FaissFlat(Peer):
    module = "faiss"

    def new(self, dimensions):
        import faiss
        return faiss.IndexFlatIP(dimensions)

    def parameters(self, selector):
        import faiss
        return faiss.SearchParameters(sel=selector)

    def build(self):
        import faiss
        faiss.omp_set_num_threads(self.threads)
        index = None
        for _, vectors, _ in self.batches():
            index = index or self.new(vectors.shape[1])
            index.add(vectors)
        faiss.write_index(index, str(self.path))

    def open(self):
        import faiss
        faiss.omp_set_num_threads(self.threads)
        self.index = faiss.read_index(str(self.path))
        buckets = numpy.load(self.data / "buckets.npy")
        bitmaps = {percent: numpy.packbits(buckets < percent, bitorder="little") for percent in PERCENTS}
        self.selectors = {percent: faiss.IDSelectorBitmap(bitmap) if percent < 100 else None for percent, bitmap in bitmaps.items()}

    def search(self, vector, percent):
        return self.index.search(vector[None], K, params=self.parameters(self.selectors[percent]))[1][0]


class FaissHnsw(FaissFlat):
    def new(self, dimensions):
        import faiss
        index = faiss.IndexHNSWFlat(dimensions, 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 128
        return index

    def parameters(self, selector):
        import faiss
        return faiss.SearchParametersHNSW(sel=selector, efSearch=128)


class Usearch(Peer):
    module = "usearch"

    def build(self):
        from usearch.index import Index
        index = None
        for start, vectors, _ in self.batches():
            index = index or Index(ndim=vectors.shape[1], metric="cos")
            index.add(numpy.arange(start, start + len(vectors)), vectors, threads=self.threads)
        index.save(str(self.path))

    def open(self):
        from usearch.index import Index
        self.index = Index.restore(str(self.path), view=True)

    def search(self, vector, percent):
        return self.index.search(vector, K, threads=self.threads).keys if percent == 100 else None


class SqliteVec(Peer):
    module = "sqlite_vec"

    def connect(self):
        import apsw
        import sqlite_vec
        self.connection = apsw.Connection(str(self.path))
        self.connection.enable_load_extension(True)
        self.connection.load_extension(sqlite_vec.loadable_path())

    def build(self):
        self.connect()
        for start, vectors, buckets in self.batches():
            if start == 0:
                self.connection.execute(f"CREATE VIRTUAL TABLE sentences USING vec0(vector float[{vectors.shape[1]}] "
                                        "distance_metric=cosine, bucket integer)")
            with self.connection:
                self.connection.executemany("INSERT INTO sentences(rowid, vector, bucket) VALUES (?, ?, ?)",
                                            ((start + i, vectors[i].tobytes(), int(buckets[i])) for i in range(len(vectors))))

    def open(self):
        self.connect()

    def search(self, vector, percent):
        where = "" if percent == 100 else f" AND bucket < {percent}"
        rows = self.connection.execute(f"SELECT rowid FROM sentences WHERE vector MATCH ? AND k = {K}{where}", (vector.tobytes(),))
        return [row for row, in rows]


class Lancedb(Peer):
    module = "lancedb"

    def build(self):
        import lancedb
        import pyarrow

        dimensions = numpy.load(self.data / "vectors.npy", mmap_mode="r").shape[1]
        fields = [("id", pyarrow.int64()), ("bucket", pyarrow.int64()), ("vector", pyarrow.list_(pyarrow.float32(), dimensions))]

        def record_batches():
            for start, vectors, buckets in self.batches():
                ids = pyarrow.array(numpy.arange(start, start + len(vectors)))
                lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), dimensions)
                yield pyarrow.RecordBatch.from_arrays([ids, pyarrow.array(buckets), lists], names=[name for name, _ in fields])

        table = lancedb.connect(self.path).create_table("sentences", record_batches(), schema=pyarrow.schema(fields))
        table.create_index(metric="cosine", vector_column_name="vector")
        table.create_scalar_index("bucket")

    def open(self):
        import lancedb
        self.table = lancedb.connect(self.path).open_table("sentences")

    def search(self, vector, percent):
        query = self.table.search(vector).distance_type("cosine").refine_factor(10).limit(K).select(["id", "_distance"])
        if percent < 100:
            query = query.where(f"bucket < {percent}", prefilter=True)
        return query.to_arrow()["id"].to_pylist()


class Chromadb(Peer):
    module = "chromadb"

    def client(self):
        import chromadb
        return chromadb.PersistentClient(str(self.path), settings=chromadb.Settings(anonymized_telemetry=False))

    def build(self):
        client = self.client()
        collection = client.create_collection("sentences", metadata={"hnsw:space": "cosine"}, embedding_function=None)
        for start, vectors, buckets in self.batches(min(BATCH, client.get_max_batch_size())):
            ids = [str(start + i) for i in range(len(vectors))]
            collection.add(ids=ids, embeddings=vectors, metadatas=[{"bucket": int(bucket)} for bucket in buckets])

    def open(self):
        self.collection = self.client().get_collection("sentences", embedding_function=None)

    def search(self, vector, percent):
        where = {"bucket": {"$lt": percent}} if percent < 100 else None
        return [int(key) for key in self.collection.query(query_embeddings=[vector], n_results=K, where=where, include=[])["ids"][0]]


PEERS = {"faiss-flat": FaissFlat, "faiss-hnsw": FaissHnsw, "usearch": Usearch, "sqlite-vec": SqliteVec, "lancedb": Lancedb,
         "chromadb": Chromadb}


def memory():
    lines = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    size = lambda name: int(lines[name].split()[0]) >> 10
    return dict(resident=size("VmRSS"), anonymous=size("RssAnon"), peak=size("VmHWM"))


def child(what, name, data, path, options):
    """In a process of its own: builds or searches, and prints what our own bench prints."""
    peer = PEERS[name](data, path, options.threads)
    begun = time.perf_counter()
    if what == "build":
        peer.build()
        print(json.dumps(dict(seconds=time.perf_counter() - begun, memory=memory())))
        return
    queries = numpy.load(data / "queries.npy")
    peer.open()
    peer.search(queries[0], 100)
    opened = time.perf_counter() - begun
    filters = []
    for percent in PERCENTS:
        milliseconds, found = [], []
        begun = time.perf_counter()
        for query in queries[:WARM]:
            if peer.search(query, percent) is None or time.perf_counter() - begun > options.seconds / 4:
                break
        begun = time.perf_counter()
        for query in queries:
            one = time.perf_counter()
            ids = peer.search(query, percent)
            if ids is None:
                break
            milliseconds.append((time.perf_counter() - one) * 1e3)
            # faiss fills up with -1.
            found.append([int(i) for i in ids if i >= 0])
            if time.perf_counter() - begun > options.seconds and len(found) >= LEAST_QUERIES:
                break
        filters.append(dict(percent=percent, milliseconds=milliseconds, found=found))
    print(json.dumps(dict(open=opened, filters=filters, memory=memory())))


def exact(data):
    """The cosine of the tenth best sentence, by filter and query."""
    file = data / "exact.npy"
    if file.exists():
        return numpy.load(file)
    queries, vectors = numpy.load(data / "queries.npy"), numpy.load(data / "vectors.npy", mmap_mode="r")
    buckets = numpy.load(data / "buckets.npy")
    if abs(numpy.linalg.norm(queries, axis=1) - 1).max() > 1e-3:
        sys.exit("the vectors do not have length 1; this bench compares cosines by products")
    best = numpy.full((len(PERCENTS), len(queries), K), -2, dtype=numpy.float32)
    for start in range(0, len(vectors), 20_000):
        scores = queries @ vectors[start:start + 20_000].T
        for i, percent in enumerate(PERCENTS):
            passing = scores[:, buckets[start:start + 20_000] < percent]
            both = numpy.concatenate([best[i], passing], axis=1)
            best[i] = -numpy.partition(-both, K - 1, axis=1)[:, :K]
    numpy.save(file, best.min(axis=2))
    return best.min(axis=2)


def recall(data, found, least, percent):
    """The mean share of the best ten that was found. What the filter refuses does not count."""
    queries, vectors = numpy.load(data / "queries.npy"), numpy.load(data / "vectors.npy", mmap_mode="r")
    buckets = numpy.load(data / "buckets.npy")
    shares = []
    for query, ids in enumerate(found):
        ids = [i for i in dict.fromkeys(ids) if buckets[i] < percent]
        right = (vectors[ids] @ queries[query] >= least[query] - 1e-6).sum() if ids else 0
        shares.append(min(int(right), K) / K)
    return sum(shares) / len(shares)


def run(what, name, data, path, options):
    """Runs a child. Its result, or why there is none."""
    if name == "sconce":
        binary = os.environ.get("INDEX_SEARCH")
        command = [binary] if binary else ["cargo", "bench", "--quiet", "--workspace", "--bench", "index_search", "--"]
        command += [what, str(data), str(path), f"threads={options.threads}", f"warm={WARM}"]
    else:
        command = [sys.executable, __file__, "--child", what, "--only", name, "--count", str(options.count), "--work", str(options.work),
                   "--seconds", str(options.seconds), "--threads", str(options.threads)]
    limit = options.build_limit if what == "build" else 8 * options.seconds + 600
    try:
        done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None, f"{what} took longer than {limit} s"
    if done.returncode:
        return None, f"{what} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return json.loads(done.stdout.splitlines()[-1]), None


def disk(path):
    # Not the lock and not SQLite's shared memory; the codes beside our database count.
    files = [file for one in path.parent.glob(f"{path.name}*") for file in ([one] if one.is_file() else one.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file()) >> 20


def measure(name, data, least, options):
    """A row of the table as a dictionary, or why there is none."""
    path = data / "built" / name
    path.parent.mkdir(exist_ok=True)
    record = path.with_name(f"{name}.build.json")
    if not record.exists() or options.rebuild:
        for old in path.parent.glob(f"{path.name}*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        built, why = run("build", name, data, path, options)
        if built is None:
            return None, why
        record.write_text(json.dumps(built))
    built = json.loads(record.read_text())
    searched, why = run("search", name, data, path, options)
    if searched is None:
        return None, why
    row = dict(build=built["seconds"], peak=built["memory"]["peak"], disk=disk(path), open=searched["open"] * 1e3,
               resident=searched["memory"]["resident"], anonymous=searched["memory"]["anonymous"], filters=[])
    for i, one in enumerate(searched["filters"]):
        times, found = one["milliseconds"], one["found"]
        row["filters"].append(dict(p50=common.percentile(times, 50), p99=common.percentile(times, 99), queries=len(times),
                                   recall=recall(data, found, least[i], one["percent"])) if times else None)
    return row, None


def show(rows, count):
    filters = [f"{percent} %: p50 / p99 ms, recall@10" if percent < 100 else "all: p50 / p99 ms, recall@10" for percent in PERCENTS]
    print(f"\n{count:,} vectors; {common.machine()}\n")
    print("| | build s | peak MB | disk MB | open ms | resident MB | " + " | ".join(filters) + " |")
    print("|---" * (6 + len(filters)) + "|")
    for name, row in rows.items():
        if isinstance(row, str):
            print(f"| {name} | {row} |" + " |" * (4 + len(filters)))
            continue
        cells = [f"{row[key]:,.0f}" for key in ["build", "peak", "disk", "open", "resident"]]
        for one in row["filters"]:
            few = f" ({one['queries']} queries)" if one and one["queries"] < 500 else ""
            cells.append(f"{one['p50']:.1f} / {one['p99']:.1f}, {one['recall']:.3f}{few}" if one else "–")
        print(f"| {name} | " + " | ".join(cells) + " |")


def missed(row):
    """The goals that our row misses."""
    if isinstance(row, str):
        return [row]
    wrong = [f"{key} {row[key]:.0f}, the goal is {GOALS[key]}" for key in ["resident", "open"] if row[key] > GOALS[key]]
    for percent, one in zip(PERCENTS, row["filters"]):
        wrong += [f"{percent} %: {key} {one[key]:.1f} ms, the goal is {GOALS[key]}" for key in ["p50", "p99"] if one[key] > GOALS[key]]
        if one["recall"] < GOALS["recall"]:
            wrong.append(f"{percent} %: recall {one['recall']:.4f}, the goal is {GOALS['recall']}")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_options(parser)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(["sconce", *PEERS]))
    parser.add_argument("--seconds", type=float, default=60, help="longest time for the queries of one filter")
    parser.add_argument("--build-limit", type=float, default=5400, help="longest time for building, in seconds")
    parser.add_argument("--rebuild", action="store_true", help="build again what an earlier run has built")
    parser.add_argument("--child", choices=["build", "search"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.work = options.work.resolve()
    data = options.work / f"million-{options.count}"
    if options.child:
        return child(options.child, options.only, data, data / "built" / options.only, options)
    if not (data / "vectors.npy").exists():
        sys.exit(f"{data} has no vectors; make them with benches/index/million.py --count {options.count}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:options.threads])
    for name in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS", "LANCE_CPU_THREADS"]:
        os.environ[name] = str(options.threads)
    least, rows = exact(data), {}
    for name in options.only.split(","):
        if name in PEERS and importlib.util.find_spec(PEERS[name].module) is None:
            rows[name] = "not installed"
            continue
        row, why = measure(name, data, least, options)
        rows[name] = row or why
        common.progress(f"{name}: {json.dumps(rows[name])}")
    (data / "peers.json").write_text(json.dumps(rows))
    show(rows, options.count)
    wrong = missed(rows["sconce"]) if "sconce" in rows else []
    for line in wrong:
        print(f"sconce misses: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
