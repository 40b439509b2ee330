"""`sconce embed --shards` with processes that are killed, its overhead, and an S3-compatible server.

usage: python benches/shards.py kills|overhead|s3 SCONCE [--model minilm] [--texts 200000] [--shards 200]

kills     three processes on one folder, one of them killed (SIGKILL) every 20 s and started again. Exits
          with 1 unless the outputs are byte-equal to those of one undisturbed process, hold each row
          once, and at most one shard was computed again per kill.
overhead  one process with --shards and plain `sconce embed`, by turns, on an idle machine. Exits with 1
          if the median time with --shards is above 1.05 of the plain one.
s3        the same as `kills` in small, from and to a bucket of moto's server, with inputs in JSONL and
          Parquet and an output that is uploaded in parts. SCONCE must have the feature object-store.

`kills` and `s3` need pyarrow, `s3` also moto[server] and boto3.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = "a man is eating food while the old house near river keeps its red door open for cats".split()


def write_texts(path, count, first=0):
    """Short texts with an `id`, the same at every call."""
    rng = random.Random(first)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(first, first + count):
            text = " ".join(rng.choices(WORDS, k=rng.randint(3, 12)))
            file.write(json.dumps({"id": number, "text": text}) + "\n")


def check(condition, message):
    print(("ok: " if condition else "FAILED: ") + message, flush=True)
    if not condition:
        sys.exit(1)


class Runs:
    """Starts the command on shards."""

    def __init__(self, args, inputs, shard_rows, environment=None):
        self.args, self.inputs, self.shard_rows = args, [str(name) for name in inputs], shard_rows
        self.environment = {**os.environ, **(environment or {})}

    def start(self, out, threads, log):
        command = [self.args.sconce, "embed", "-m", self.args.model, "-d", "cpu", "--threads", str(threads)]
        command += ["--shards", str(out), "--keep", "id", "--lease", str(self.args.lease)]
        command += ["--shard-rows", str(self.shard_rows), *self.inputs]
        return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)

    def status(self, out):
        command = [self.args.sconce, "shards", "status", str(out), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def alone(self, out):
        """One undisturbed process with all cores; its seconds."""
        since = time.monotonic()
        with tempfile.TemporaryFile("w+") as log:
            code = self.start(out, os.cpu_count(), log).wait()
            log.seek(0)
            check(code == 0, f"an undisturbed process: {log.read().strip().splitlines()[-1:]}")
        return time.monotonic() - since

    def with_kills(self, out, count, every):
        """`count` processes, one killed every so many seconds; the kills while shards were left."""
        threads, kills, rng = max(1, os.cpu_count() // count), 0, random.Random(5)
        with tempfile.TemporaryFile("w+") as log:
            processes = [self.start(out, threads, log) for _ in range(count)]
            try:
                next_kill = time.monotonic() + every
                while any(process.poll() is None for process in processes):
                    time.sleep(0.2)
                    if time.monotonic() < next_kill:
                        continue
                    next_kill += every
                    status = self.status(out)
                    if status is not None and status["done"] == status["shards"]:
                        continue
                    victim = rng.randrange(count)
                    processes[victim].send_signal(signal.SIGKILL)
                    processes[victim].wait()
                    kills += 1
                    processes[victim] = self.start(out, threads, log)
                codes = [process.returncode for process in processes]
            finally:
                for process in processes:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
            log.seek(0)
            why = "" if codes == [0] * count else log.read()[-4000:]
            check(not why, f"all processes end well after {kills} kills: {codes} {why}")
        return kills


def read_rows(files):
    """The ids of all rows, in the order of the shards."""
    import pyarrow
    import pyarrow.parquet

    tables = [pyarrow.parquet.read_table(pyarrow.BufferReader(files[name])) for name in sorted(files)]
    return [number for table in tables for number in table["id"].to_pylist()]


def folder(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def compare(undisturbed, disturbed, records, kills, ids):
    shards = len(undisturbed)
    check(read_rows(undisturbed) == list(ids), f"the undisturbed run has each of {len(ids)} rows once")
    check(undisturbed == disturbed, f"{shards} outputs are byte-equal to those of the undisturbed run")
    attempts = sum(json.loads(record)["attempts"] for record in records.values())
    check(len(records) == shards, f"{len(records)} shards are done")
    again = attempts - shards
    check(again <= kills, f"{again} shards were computed again, after {kills} kills")


def kills(args, work):
    source = work / "in.jsonl"
    write_texts(source, args.texts)
    runs = Runs(args, [source], args.texts // args.shards)
    seconds = runs.alone(work / "alone")
    print(f"undisturbed: {args.texts} texts in {seconds:.1f} s, {args.texts / seconds:.0f}/s")
    since = time.monotonic()
    count = runs.with_kills(work / "killed", args.processes, args.kill_every)
    print(f"{args.processes} processes: {time.monotonic() - since:.1f} s with {count} kills")
    check(count > 0, "something was killed")
    compare(folder(work / "alone/data"), folder(work / "killed/data"), folder(work / "killed/done"), count, range(args.texts))
    left = [file.name for kind in ("leases", "tmp") for file in (work / "killed" / kind).glob("*.parquet")]
    check(not left, f"nothing is left behind {left}")


def overhead(args, work):
    texts = args.texts // 4
    source, plain_out = work / "in.jsonl", work / "plain.parquet"
    write_texts(source, texts)
    plain, sharded = [], []
    # The first round warms the caches.
    for number in range(args.rounds + 1):
        command = [args.sconce, "embed", "-m", args.model, "-d", "cpu", "-f", str(source), "-o", str(plain_out)]
        since = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        first = time.monotonic() - since
        check(done.returncode == 0, f"plain, round {number}: {first:.2f} s {done.stderr.strip().splitlines()[-1:]}")
        runs = Runs(args, [source], args.texts // args.shards)
        second = runs.alone(work / f"shards-{number}")
        print(f"    with --shards: {second:.2f} s, {second / first:.3f} of the plain time")
        if number > 0:
            plain.append(first)
            sharded.append(second)
    ratio = statistics.median(sharded) / statistics.median(plain)
    check(ratio <= 1.05, f"{texts} texts in {texts * args.shards // args.texts} shards take {ratio:.3f} of the plain time")


def s3(args, work):
    import boto3
    import pyarrow
    import pyarrow.json
    import pyarrow.parquet

    texts = min(args.texts, 26000)
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        found = None
        for line in server.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        check(found is not None, "moto's server starts")
        # The server must never wait for a reader of its log.
        log = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        endpoint = f"http://127.0.0.1:{found.group(1)}"
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1",
                              aws_access_key_id="test", aws_secret_access_key="test")
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="probe", Body=b"1", IfNoneMatch="*")
        try:
            client.put_object(Bucket="bucket", Key="probe", Body=b"2", IfNoneMatch="*")
            code = 200
        except client.exceptions.ClientError as e:
            code = e.response["ResponseMetadata"]["HTTPStatusCode"]
        check(code == 412, "the server knows If-None-Match")

        # Two files of lines; and a Parquet file of three row groups, the last of which is large.
        small, large = texts // 13, texts - 4 * (texts // 13)
        write_texts(work / "a.jsonl", small)
        write_texts(work / "b.jsonl", small, small)
        write_texts(work / "c.jsonl", 2 * small + large, 2 * small)
        table = pyarrow.json.read_json(work / "c.jsonl")
        with pyarrow.parquet.ParquetWriter(work / "c.parquet", table.schema) as writer:
            for start, count in [(0, small), (small, small), (2 * small, large)]:
                writer.write_table(table.slice(start, count), row_group_size=count)

        def objects(prefix):
            pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
            return {key.rsplit("/")[-1]: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}

        for kind, names, ids in [
            ("lines", ["a.jsonl", "b.jsonl"], range(2 * small)),
            ("tables", ["c.parquet"], range(2 * small, texts)),
        ]:
            for name in names:
                client.upload_file(str(work / name), "bucket", f"in/{kind}/{name}")
            local = Runs(args, [work / name for name in names], small // 2)
            local.alone(work / kind)
            remote = Runs(args, [f"s3://bucket/in/{kind}/"], small // 2, environment)
            out = f"s3://bucket/out/{kind}"
            count = remote.with_kills(out, args.processes, min(args.kill_every, 4))
            # A process that is killed while it uploads loses that shard too: no other can read its disk.
            done = objects(f"out/{kind}/done/")
            compare(folder(work / kind / "data"), objects(f"out/{kind}/data/"), done, 2 * count, ids)
            check(not objects(f"out/{kind}/leases/"), "no lease is left")
            status = remote.status(out)
            check(status["done"] == status["shards"] and status["rows_done"] == len(ids), f"status: {len(ids)} rows")
        largest = max(len(content) for content in objects("out/tables/data/").values())
        check(largest > 16 << 20, f"the largest output has {largest >> 20} MiB, so it was uploaded in parts")

        # An input that changes is refused.
        client.put_object(Bucket="bucket", Key="in/tables/c.parquet", Body=(work / "a.jsonl").read_bytes())
        with tempfile.TemporaryFile("w+") as messages:
            code = remote.start(out, 1, messages).wait()
            messages.seek(0)
            message = messages.read()
        check(code == 1 and "c.parquet" in message, f"a changed input is refused: {message.strip()[:160]}")
        log.terminate()
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("part", choices=["kills", "overhead", "s3"])
    parser.add_argument("sconce")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--kill-every", type=float, default=20)
    parser.add_argument("--lease", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder for inputs and outputs; default: a temporary one")
    args = parser.parse_args()
    args.sconce = str(Path(args.sconce).resolve())
    with tempfile.TemporaryDirectory(dir=args.work) as work:
        {"kills": kills, "overhead": overhead, "s3": s3}[args.part](args, Path(work))


if __name__ == "__main__":
    main()
