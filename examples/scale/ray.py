#!/usr/bin/env python3
"""Ray Data over three nodes (docs/ray.md), here on one machine, one of which is removed in the middle.
Then each row must be there once, with the vector that the model has for it alone.

usage: examples/scale/ray.py [small|full]

small: 12,000 texts. full: 200,000. Needs `pip install "sconce-engine[ray]"`.
"""

import sys
import tempfile
import threading
import time
from pathlib import Path

# This file would be imported in place of Ray, here and by Ray's workers.
HERE = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path).resolve() != HERE]

import numpy
import pyarrow
import ray
from pyarrow import parquet
from ray.cluster_utils import Cluster

import sconce.ray
from sconce import SentenceTransformer

BLOCKS = 60
# Texts in other batches are summed in another order.
TOLERANCE = 1e-5
WORDS = "the a cat dog river house sells buys quiet large seven during after market bread guitar".split()


def texts(count):
    """Different texts of several lengths."""
    return [" ".join(WORDS[(i * 7 + k) % len(WORDS)] for k in range(4 + i % 12)) + f" {i}" for i in range(count)]


def start_cluster():
    """Two nodes, and the one that is removed. A node that is lost is noticed within two seconds."""
    notice = {"health_check_period_ms": 500, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    size = {"num_cpus": 3, "object_store_memory": 150 << 20}
    head = size | {"include_dashboard": False, "_system_config": notice}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**size)
    victim = cluster.add_node(**size)
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster, victim


def remove_in_the_middle(cluster, victim, output, removed):
    """Removes a node when a fifth of the blocks is there."""
    while (done := len(list(output.glob("part-*.parquet")))) < BLOCKS // 5:
        time.sleep(0.05)
    cluster.remove_node(victim, allow_graceful=False)
    removed.append(done)


def run(cluster, victim, folder, count):
    source, output, rows = folder / "texts.parquet", folder / "embeddings", -(-count // BLOCKS)
    given = texts(count)
    parquet.write_table(pyarrow.table({"id": range(count), "text": given}), source, row_group_size=rows)
    removed = []
    threading.Thread(target=remove_in_the_middle, args=(cluster, victim, output, removed), daemon=True).start()
    # A model on each node, with one thread, because the nodes share this machine's cores.
    done = sconce.ray.embed(
        source, "minilm", output=output, rows_per_file=rows, device="cpu", cpus=2, threads=1
    )
    alive = sum(node["Alive"] for node in ray.nodes())
    if not removed or alive != 2:
        sys.exit("the run ended before the node was removed, which shows nothing")
    print(f"{done.rows} rows in {done.blocks} blocks, {done.seconds:.0f} s; a node was lost after {removed[0]} blocks")
    return given, parquet.read_table(output, columns=["id", "text", "embedding"]).sort_by("id")


def check(given, table):
    ids = table["id"].to_pylist()
    if ids != list(range(len(given))):
        sys.exit(f"{len(ids)} rows, {len(set(ids))} of them different, of {len(given)}")
    if table["text"].to_pylist() != given:
        sys.exit("a row has the text of another")
    model, worst = SentenceTransformer("minilm", device="cpu"), 0.0
    for start in range(0, len(given), 10_000):
        got = numpy.stack(table["embedding"].slice(start, 10_000).to_numpy(zero_copy_only=False))
        worst = max(worst, numpy.abs(got - model.encode(given[start : start + 10_000])).max())
    if not worst < TOLERANCE:
        sys.exit(f"a vector differs by {worst} from that of the model alone")
    print(f"{len(given)} rows, each once, with the vectors of the model alone (largest difference {worst:.0e})")


def main():
    sizes = {"small": 12_000, "full": 200_000}
    mode = sys.argv[1] if len(sys.argv) > 1 else "small"
    if mode not in sizes:
        sys.exit(f"usage: {sys.argv[0]} [small|full]")
    cluster, victim = start_cluster()
    try:
        with tempfile.TemporaryDirectory() as folder:
            check(*run(cluster, victim, Path(folder), sizes[mode]))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
