"""Ray Data: stages, blocks, and runs on several nodes, of which one is removed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray
from conftest import MINILM
from pyarrow import parquet

import sconce.ray as sray
from sconce import Classifier, CrossEncoder, DeviceError, FilesError, InputError, Llm, SentenceTransformer
from sconce.ray import blocks
from sconce.ray.lines import without_nulls
from sconce.ray.placement import Placement, place

# .ci/long has more.
ROWS = int(os.environ.get("SCONCE_TEST_ROWS", 3000))
TEXTS = ["the cat sat on the mat", "a man is eating food", "hello world", "the dog"]


def rows(count):
    """Rows with different texts of several lengths."""
    return pa.table({"id": range(count), "text": [" ".join(["word"] * (i % 7)) + f" number {i}" for i in range(count)]})


def assert_complete(folder, count, model):
    """Each row is in the output once, with its own text's embedding."""
    got = parquet.read_table(folder).sort_by("id")
    assert got["id"].to_pylist() == list(range(count))
    assert got["text"].to_pylist() == rows(count)["text"].to_pylist()
    matrix = np.stack(got["embedding"].to_numpy(zero_copy_only=False))
    assert np.abs(matrix - model.encode(got["text"].to_pylist())).max() < 1e-5


def test_stages_equal_the_direct_api(golden, tiny_llama):
    name = str(golden("st-prompts"))
    model, table = SentenceTransformer(name), pa.table({"n": range(4), "text": TEXTS})
    got = sray.Embed(name)(table)
    assert got.column_names == ["n", "text", "embedding"] and got["embedding"].type.list_size == 32
    assert np.array_equal(np.stack(got["embedding"].to_pylist()).astype(np.float32), model.encode(TEXTS))
    # The other formats of Ray's batches.
    for batch in ({"text": np.array(TEXTS, object)}, table.to_pandas()):
        assert sray.Embed(name, kind="query")(batch)["embedding"].to_pylist() == model.encode_query(TEXTS).tolist()
    name = str(golden("task-rerank"))
    want = CrossEncoder(name).predict([("cat", text) for text in TEXTS])
    flat = sray.Rerank(name)(pa.table({"query": ["cat"] * 4, "document": TEXTS}))
    assert np.allclose(flat["score"].to_pylist(), want, atol=1e-6)
    lists = sray.Rerank(name)(pa.table({"query": ["cat", "cat", "cat"], "document": [TEXTS[:3], [], TEXTS[3:]]}))
    assert [len(one) for one in lists["score"].to_pylist()] == [3, 0, 1]
    assert np.allclose(sum(lists["score"].to_pylist(), []), want, atol=1e-6)
    name = str(golden("task-classify"))
    want = Classifier(name).classify(TEXTS)
    got = sray.Classify(name)(table)
    assert got["label"].to_pylist() == [one[0]["label"] for one in want]
    assert np.allclose(got["score"].to_pylist(), [one[0]["score"] for one in want], atol=1e-6)
    best = sray.Classify(name, top_k=2)(table)["label"].to_pylist()
    assert [[hit["label"] for hit in one] for one in best] == [[hit["label"] for hit in one[:2]] for one in want]
    greedy = {"temperature": 0, "max_tokens": 5}
    got = sray.Generate(tiny_llama, chat=False, generate_options=greedy, context=256)(pa.table({"prompt": TEXTS}))
    llm = Llm(tiny_llama, context=256)
    want = [llm.generate(text, **greedy) for text in TEXTS]
    assert got["answer"].to_pylist() == [one.text for one in want]
    assert got["finish"].to_pylist() == [one.finish for one in want]


def test_rows_that_cannot_be_computed(golden):
    name = str(golden("st-prompts"))
    bad = pa.table({"text": [TEXTS[0], None, TEXTS[1], TEXTS[2], None]})
    with pytest.raises(TypeError, match="errors='null'"):
        sray.Embed(name)(bad)
    got = sray.Embed(name, errors="null")(bad)
    want = SentenceTransformer(name).encode(TEXTS[:3])
    assert [one is None for one in got["embedding"].to_pylist()] == [False, True, False, False, True]
    assert np.allclose(np.stack([one for one in got["embedding"].to_pylist() if one]), want, atol=1e-6)
    reasons = got["embedding_error"].to_pylist()
    assert [reason is None for reason in reasons] == [True, False, True, True, False] and "not str" in reasons[1]
    # Without any result, the column has its type all the same.
    none = sray.Embed(name, errors="null")(pa.table({"text": pa.array([None, None], pa.string())}))
    assert none["embedding"].type == got["embedding"].type and none["embedding"].null_count == 2
    with pytest.raises(InputError, match="no column `text`, but words"):
        sray.Embed(name)(pa.table({"words": TEXTS}))
    with pytest.raises(InputError, match="column `embedding` already"):
        sray.Embed(name)(pa.table({"text": TEXTS, "embedding": TEXTS}))


def test_placement():
    # A core of each node stays free; the smallest node has a model.
    assert place([(4, 0), (4, 0)]) == Placement(models=2, cpus=3, gpus=0)
    assert place([(64, 0), (64, 0)]) == Placement(models=14, cpus=8, gpus=0)
    assert place([(4, 0), (4, 0)], cpus=1) == Placement(models=6, cpus=1, gpus=0)
    # With one core per node, models take half of it, or they would leave none.
    assert place([(1, 0), (1, 0)]) == Placement(models=2, cpus=0.5, gpus=0)
    assert place([(16, 8), (16, 0)]) == Placement(models=8, cpus=1, gpus=1)
    assert place([(16, 8)], device="cpu") == Placement(models=1, cpus=8, gpus=0)
    assert place([(16, 8)], gpus=2, models=3) == Placement(models=3, cpus=1, gpus=2)
    with pytest.raises(DeviceError, match="no node has 8 CPUs and one more"):
        place([(8, 0)], cpus=8)
    with pytest.raises(InputError, match="models is 0"):
        place([(8, 0)], models=0)


def test_blocks_have_each_row_once(tmp_path):
    table = rows(1000)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=130)
    lines = [json.dumps({"id": 1000 + i, "text": "é" * (i % 50)}) for i in range(500)]
    (tmp_path / "b.jsonl").write_text("\n".join(lines[:250]) + "\n\n" + "\n".join(lines[250:]), encoding="utf-8")
    (tmp_path / "_hidden").mkdir()
    (tmp_path / "_hidden" / "c.parquet").write_bytes(b"")
    inputs = blocks.list_inputs(tmp_path)
    assert [Path(uri).name for uri, *_ in inputs] == ["a.parquet", "b.jsonl"]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    for step, groups in ((7, 8), (97, 8), (131, 4), (100_000, 1)):
        every = blocks.list_blocks(inputs, step, step * 3)
        parts = [part for block in every for part in blocks.read_block(block, schema)]
        assert [number for part in parts for number in part["id"].to_pylist()] == list(range(1500)), step
        # A part of a row group cannot be read alone.
        assert sum(block.path.endswith(".parquet") for block in every) == groups, step
    with pytest.raises(FilesError, match="no such file"):
        blocks.list_inputs(tmp_path / "nothing")
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n[1]\n')
    (block,) = blocks.list_blocks(blocks.list_inputs(tmp_path / "bad.jsonl"), 1, 99)
    with pytest.raises(InputError, match="at byte 9: the line is no JSON object"):
        list(blocks.read_block(block, schema))


def only_block(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (block,) = blocks.list_blocks(blocks.list_inputs(path), 1, 1 << 30)
    return block


def test_lines_have_one_schema(tmp_path):
    def inferred(*lines):
        schema = None
        for number, line in enumerate(lines):
            schema = blocks.infer_schema(only_block(tmp_path / f"{number}.jsonl", [line]), schema)
        assert schema == blocks.infer_schema(only_block(tmp_path / "all.jsonl", lines))
        return without_nulls(schema)

    assert inferred({"a": None}, {"a": 1}, {"a": 1.5}) == pa.schema([("a", pa.float64())])
    assert inferred({"a": None}, {"b": []}) == pa.schema([("a", pa.string()), ("b", pa.list_(pa.string()))])
    assert inferred({"a": {"x": None}}, {"a": {"y": 1}}).field("a").type == pa.struct([("x", pa.string()), ("y", pa.int64())])
    for lines, reason in (
        ([{"a": 1}, {"a": "x"}], "byte 9: .*int64 vs string"),
        ([{"a": True}, {"a": 1}], "byte 12: .*bool vs int64"),
        ([{"a": [1, "x"]}], "byte 0: .*Could not convert 'x'"),
        ([{"a": 2**70}], "byte 0: .*too large"),
        ([{"a": 1.5}, {"a": 2**60 + 1}], "outside of the range"),
    ):
        with pytest.raises(InputError, match=reason):
            blocks.infer_schema(only_block(tmp_path / "bad.jsonl", lines))
    # The file has changed since.
    schema = pa.schema([("a", pa.int64())])
    for lines, reason in (([{"a": 1}, {"a": "x"}], "byte 9: the field `a`: "), ([{"b": 1}], "byte 0: the field `b` does")):
        with pytest.raises(InputError, match=reason):
            list(blocks.read_block(only_block(tmp_path / "bad.jsonl", lines), schema))


def test_blocks_of_lines_can_be_read_as_one_table(ray_cluster, golden, tmp_path):
    name, source, output = str(golden("st-prompts")), tmp_path / "in.jsonl", tmp_path / "out"
    # Null throughout the first block, and whole numbers throughout the second.
    others = [None] * 50 + list(range(50)) + [0.5] * 50
    lines = [{"id": i, "text": f"text number {i}", "other": other, "empty": None} for i, other in enumerate(others)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"output": output, "bytes_per_file": source.stat().st_size // 6, "models": 1, "cpus": 1}
    done = sray.embed(source, name, **options)
    assert done.blocks >= 6 and done.rows == 150
    for path in output.glob("part-*.parquet"):
        schema = parquet.read_schema(path)
        assert (schema.field("other").type, schema.field("empty").type) == (pa.float64(), pa.string())
    assert parquet.read_table(output).sort_by("id")["other"].to_pylist() == others
    # A repeated run takes the schema from the manifest.
    next(output.glob("part-*.parquet")).unlink()
    assert 0 < sray.embed(source, name, **options).rows < 150
    source.write_text(source.read_text() + json.dumps({"id": 150, "text": "x", "other": "y"}) + "\n")
    with pytest.raises(InputError, match="other inputs"):
        sray.embed(source, name, **options)
    with pytest.raises(InputError, match="double vs string"):
        sray.embed(source, name, **options | {"output": tmp_path / "next"})


def test_a_stage_runs_several_batches_at_once(golden):
    stage = sray.Rerank(str(golden("task-rerank")))
    flat = pa.table({"query": ["cat"] * 4, "document": TEXTS})
    lists = pa.table({"query": ["cat"] * 2, "document": [TEXTS[:3], TEXTS[3:]]})
    with ThreadPoolExecutor(2) as threads:
        results = [one["score"].type for one in threads.map(stage, [flat, lists] * 20)]
    assert results == [pa.float32(), pa.list_(pa.float32())] * 20


def test_a_repeated_run_does_what_is_missing(ray_cluster, golden, tmp_path):
    name, source, output = str(golden("st-prompts")), tmp_path / "in.parquet", tmp_path / "out"
    parquet.write_table(rows(1000), source, row_group_size=100)
    options = {"output": output, "rows_per_file": 100, "models": 2, "cpus": 1}
    done = sray.embed(source, name, **options)
    assert (done.blocks, done.blocks_before, done.rows) == (10, 0, 1000)
    assert_complete(output, 1000, SentenceTransformer(name))
    files = sorted(output.glob("part-*.parquet"))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    for path in files[3:5]:
        path.unlink()
    (output / "_temporary").mkdir()
    (output / "_temporary" / "begun-part-00000-00003.parquet").write_bytes(b"PAR1")
    done = sray.embed(source, name, **options)
    assert (done.blocks, done.blocks_before, done.rows) == (10, 8, 200)
    assert_complete(output, 1000, SentenceTransformer(name))
    assert not (output / "_temporary").exists()
    for path, (modified, content) in before.items():
        assert path.read_bytes() == content and (path.stat().st_mtime_ns == modified) == (path not in files[3:5])
    assert sray.embed(source, name, **options).rows == 0
    # Blocks of two different runs in one folder would be wrong.
    with pytest.raises(InputError, match="begun with other options"):
        sray.embed(source, name, **options, kind="query")
    with pytest.raises(InputError, match="begun with other rows_per_file"):
        sray.embed(source, name, **options | {"rows_per_file": 50})
    # Also a file of the same size.
    os.utime(source, ns=(0, 0))
    with pytest.raises(InputError, match="begun with other inputs"):
        sray.embed(source, name, **options)


def test_datasets(ray_cluster, golden, tmp_path):
    name = str(golden("st-prompts"))
    model, data = SentenceTransformer(name), ray.data.from_arrow(rows(300)).repartition(5)
    # Lazily, as a part of a pipeline.
    lazy = sray.embed(data, name, cpus=1, models=1, threads=1).take_all()
    assert sorted(row["id"] for row in lazy) == list(range(300))
    by_id = {row["id"]: row["embedding"] for row in lazy}
    assert np.allclose(np.stack([by_id[i] for i in range(300)]), model.encode(rows(300)["text"].to_pylist()), atol=1e-5)
    # With an output the Dataset is written once: a second one is not looked at.
    output = tmp_path / "out"
    options = {"output": output, "checkpoint": tmp_path / "state", "cpus": 1, "models": 1, "rows_per_file": 100}
    assert sray.embed(data, name, **options).rows == 300
    assert_complete(output, 300, model)
    next(output.glob("part-*.parquet")).unlink()
    assert 0 < sray.embed(data.limit(1), name, **options).rows < 300
    assert_complete(output, 300, model)
    with pytest.raises(InputError, match="checkpoint needs an output"):
        sray.embed(data, name, checkpoint=tmp_path)


def blocks_done(output):
    return len(list(output.glob("part-*.parquet")))


def wait_for_blocks(output, count, seconds=600):
    end = time.monotonic() + seconds
    while blocks_done(output) < count:
        assert time.monotonic() < end, f"{blocks_done(output)} blocks after {seconds} s"
        time.sleep(0.05)


def test_a_node_is_removed_in_the_middle(ray_cluster, minilm, tmp_path):
    source, output, count = tmp_path / "in.parquet", tmp_path / "out", 30
    parquet.write_table(rows(ROWS), source, row_group_size=-(-ROWS // count))
    node = ray_cluster.add_node(num_cpus=4, object_store_memory=150 << 20)
    removed = []

    def remove():
        wait_for_blocks(output, count // 6)
        removed.append(blocks_done(output))
        ray_cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=remove)
    thread.start()
    options = {"cpus": 3, "threads": 1, "device": "cpu", "rows_per_file": -(-ROWS // count)}
    assert sray.map_options(cpus=3)["compute"].max_size == 3  # A model on each node.
    done = sray.embed(source, MINILM, output=output, **options)
    thread.join()
    assert removed and removed[0] < count, "the node was removed after the run"
    assert done.blocks == count and done.blocks_before == 0
    assert_complete(output, ROWS, minilm)
    assert sum(node["Alive"] for node in ray.nodes()) == 2


def test_the_driver_is_killed(ray_cluster, minilm, tmp_path):
    source, output = tmp_path / "in.parquet", tmp_path / "out"
    parquet.write_table(rows(ROWS), source, row_group_size=-(-ROWS // 30))
    code = "import sys, ray, sconce.ray as s; ray.init(address=sys.argv[1], log_to_driver=False);"
    code += "s.embed(sys.argv[2], sys.argv[3], output=sys.argv[4], rows_per_file=int(sys.argv[5]), cpus=1, models=2, device='cpu')"
    arguments = [ray_cluster.address, source, MINILM, output, -(-ROWS // 30)]
    driver = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stderr=subprocess.DEVNULL)
    try:
        wait_for_blocks(output, 3)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    before = blocks_done(output)
    done = sray.embed(str(source), MINILM, output=output, rows_per_file=-(-ROWS // 30), cpus=1, models=2, device="cpu")
    # Actors of the killed driver may finish a block each before they end.
    assert done.blocks == 30 and before <= done.blocks_before < 30
    assert_complete(output, ROWS, minilm)
