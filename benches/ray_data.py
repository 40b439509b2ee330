"""Rate of `sconce.ray.embed` beside that of plain processes on the same cores.

usage: python benches/ray_data.py [--model minilm] [--texts 60000] [--models 2] [--rounds 3]

Run it on an idle machine, in an environment with the wheel and its extra `ray`. Both sides read one
Parquet file and write Parquet files, with as many models, each with the same number of threads, and run
in turns. The time of the processes includes their start and loading their models; that of Ray includes
starting its actors and loading theirs, in a cluster of several nodes on this machine that runs already.
Exits with 1 if the median rate of Ray is below 0.9 of that of the processes, or if the results differ.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import pyarrow
from pyarrow import parquet

PROCESS = """
import sys
import sconce
from pyarrow import parquet
source, output, model, number, count, threads, window = sys.argv[1:]
sconce.set_threads(int(threads))
encoder = sconce.SentenceTransformer(model, device="cpu")
table = parquet.read_table(source)
share = -(-table.num_rows // int(count))
table = table.slice(int(number) * share, share)
writer = None
for start in range(0, table.num_rows, int(window)):
    part = table.slice(start, int(window))
    rows = sconce.to_arrow(encoder.encode(part["text"].to_pylist()))
    part = part.append_column("embedding", rows)
    writer = writer or parquet.ParquetWriter(f"{output}/{number}.parquet", part.schema)
    writer.write_table(part)
writer.close()
"""


def with_processes(source, output, options, threads):
    """Seconds of plain processes."""
    output.mkdir()
    begun = time.perf_counter()
    arguments = [source, output, options.model]
    rest = [options.models, threads, 2048]
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, *map(str, [*arguments, number, *rest])])
        for number in range(options.models)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"a process ended with {max(codes)}")
    return time.perf_counter() - begun


def _rows(options):
    """Rows of a block."""
    return max(1, options.texts // (options.models * 20))


def with_ray(source, output, options, threads):
    """Seconds of `sconce.ray.embed`."""
    import sconce.ray

    begun = time.perf_counter()
    sconce.ray.embed(
        source, options.model, output=output, device="cpu", cpus=threads, models=options.models,
        rows_per_file=_rows(options),
    )
    return time.perf_counter() - begun


def embeddings(folder):
    table = parquet.read_table(folder, columns=["id", "embedding"]).sort_by("id")
    return numpy.stack(table["embedding"].to_numpy(zero_copy_only=False))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=60_000)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // options.models)

    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": threads + 2, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    for _ in range(options.models - 1):
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    words = "the a of model text query machine learning stock market fell today cat dog sat on mat runs engine".split()
    texts = [" ".join(words[(i * 7 + k * (i % 5 + 1)) % len(words)] for k in range(4 + i % 9)) for i in range(options.texts)]
    plain, through_ray = [], []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        source = folder / "texts.parquet"
        parquet.write_table(pyarrow.table({"id": range(options.texts), "text": texts}), source, row_group_size=_rows(options))
        for number in range(options.rounds):
            plain.append(with_processes(source, folder / f"plain-{number}", options, threads))
            through_ray.append(with_ray(source, folder / f"ray-{number}", options, threads))
        worst = numpy.abs(embeddings(folder / "plain-0") - embeddings(folder / "ray-0")).max()
    ray.shutdown()
    cluster.shutdown()
    rates = [[options.texts / seconds for seconds in side] for side in (plain, through_ray)]
    ratio = statistics.median(rates[1]) / statistics.median(rates[0])
    for name, side in zip((f"{options.models} processes", "Ray Data"), rates):
        print(f"{name:14} {statistics.median(side):8.0f} texts/s   {[round(rate) for rate in side]}")
    print(f"ratio          {ratio:8.3f}           largest difference of an embedding {worst:.1e}")
    sys.exit(ratio < 0.9 or worst > 1e-5)


if __name__ == "__main__":
    main()
