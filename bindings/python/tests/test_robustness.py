"""The interpreter survives what programs do: wrong arguments, closed objects, threads, signals,
forks, pickles and many models."""

import gc
import os
import pickle
import resource
import threading
import time

import numpy as np
import pytest

import sconce
from sconce import (
    ClosedError,
    CrossEncoder,
    DeviceError,
    FilesError,
    InputError,
    SconceError,
    SentenceTransformer,
    SparseEncoder,
    _sconce,
)


def test_wrong_types(minilm, golden):
    for bad in (None, 3, b"bytes", [b"bytes"], [None], ["a", 3], [["a"]], {"a": 1}, object(), "\ud800", ["\ud800"]):
        with pytest.raises((TypeError, ValueError)):
            minilm.encode(bad)
    reranker = CrossEncoder(golden("task-rerank"))
    for bad in (None, 3, "ab", ["ab"], [("a",)], [("a", "b", "c")], [("a", None)], [3]):
        with pytest.raises(TypeError):
            reranker.predict(bad)
    for options in ({"precision": "int4"}, {"output_value": "all"}, {"pooling": "best"}, {"truncate_dim": -1}):
        with pytest.raises((SconceError, ValueError, TypeError)):
            minilm.encode("a", **options)
    with pytest.raises(TypeError):
        _sconce.embed("no model", [], "{}")
    with pytest.raises(InputError):
        _sconce.embed(minilm._model, ["a"], "{no json")
    with pytest.raises(InputError):
        _sconce.embed(minilm._model, ["a"], '{"unknown": 1}')
    with pytest.raises(InputError, match="task"):
        _sconce.embed_sparse(minilm._model, ["a"], None, None)
    with pytest.raises(TypeError):
        _sconce.Model()
    with pytest.raises(TypeError, match="initialized"):
        SentenceTransformer.__new__(SentenceTransformer).encode("a")


def test_wrong_devices_and_files(golden, tmp_path):
    folder = golden("st-max")
    with pytest.raises((InputError, DeviceError), match="abacus"):
        SentenceTransformer(folder, device="abacus")
    if len(sconce.devices()) == 1:
        with pytest.raises(DeviceError):
            SentenceTransformer(folder, device="cuda")
    with pytest.raises((FilesError, InputError)):
        SentenceTransformer(tmp_path / "missing")
    with pytest.raises(FilesError):
        SentenceTransformer(tmp_path)
    with pytest.raises(FilesError):
        SentenceTransformer("no-such-organisation/no-such-model", local_files_only=True)
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (broken / file.name).write_bytes(file.read_bytes()[:-40])
    with pytest.raises(FilesError):
        SentenceTransformer(broken)
    with pytest.raises(InputError):
        SentenceTransformer(folder, dtype="f12")
    with pytest.raises(InputError):
        SentenceTransformer(folder, revision="main")
    with pytest.raises(FilesError, match="embed"):
        SparseEncoder(folder)


def test_closed_objects(golden):
    with SentenceTransformer(golden("st-max")) as model:
        model.encode("a")
    for call in (lambda: model.encode("a"), lambda: model.tokenize(["a"]), model.counts, lambda: pickle.loads(b"")):
        with pytest.raises((ClosedError, EOFError)):
            call()
    model.close()
    # Closing while other threads encode: each call succeeds or says that the model is closed.
    model, errors = SentenceTransformer(golden("st-max")), []

    def work():
        try:
            while True:
                model.encode(["a", "b"])
        except Exception as e:
            errors.append(type(e))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    time.sleep(0.1)
    model.close()
    [thread.join(30) for thread in threads]
    assert errors == [ClosedError] * 4


def test_pickling_keeps_name_and_options(golden):
    model = SentenceTransformer(golden("st-prompts"), prompts={"own": "x: "}, truncate_dim=4)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.encode("a", prompt_name="own") == model.encode("a", prompt_name="own")).all()
    assert len(pickle.dumps(model)) < 2000
    reranker = CrossEncoder(golden("task-rerank"))
    assert pickle.loads(pickle.dumps(reranker)).predict(("a", "b")) == reranker.predict(("a", "b"))


def test_gc_stress(golden):
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        model = SentenceTransformer(golden("st-max"))
        want = model.encode(["a", "b"])
        for _ in range(50):
            cycle = {"rows": model.encode(["a", "b"]), "model": model}
            cycle["self"] = cycle
            assert (cycle["rows"] == want).all()
            views = [row for row in cycle["rows"]]
            del cycle
            assert (np.array(views) == want).all()
    finally:
        gc.set_threshold(*threshold)


def test_load_and_unload_with_flat_memory(golden):
    """`SCONCE_TEST_LOADS` sets the number of cycles."""
    cycles = int(os.environ.get("SCONCE_TEST_LOADS", "150"))
    folder = golden("st-max")

    def cycle():
        model = SentenceTransformer(folder)
        model.encode(["some text", "another"])
        model.close()

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    for _ in range(cycles // 3):
        cycle()
    gc.collect()
    before, threads = resident(), len(os.listdir("/proc/self/task"))
    for _ in range(cycles):
        cycle()
    gc.collect()
    assert resident() - before < 8 << 20, f"grew by {resident() - before} bytes in {cycles} cycles"
    assert len(os.listdir("/proc/self/task")) <= threads + 2


def test_other_threads_run_during_a_pass(minilm):
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    minilm.encode(["some words of a text " * 20] * 100)
    took = time.monotonic() - begun
    stop.set()
    thread.join()
    # With the GIL held, it would be a few ticks.
    assert ticks[0] > took * 100, (ticks, took)


def test_tokens_are_not_pickled(golden):
    model = SentenceTransformer(golden("st-max"), token="hf_secret", revision=None)
    data = pickle.dumps(model)
    assert b"hf_secret" not in data and model._options["token"] == "hf_secret"
    assert (pickle.loads(data).encode("a") == model.encode("a")).all()


def test_the_device_of_a_call(golden):
    model = SentenceTransformer(golden("st-max"), device="cpu")
    assert (model.encode("a", device="cpu") == model.encode("a")).all()
    model._info["device"] = "cuda:10"  # As if it were there.
    for device in ("cuda", "cuda:1", "cpu", "mps", ["cpu"]):
        with pytest.raises(InputError):
            model.encode("a", device=device)
    model._info["device"] = "metal:0"
    model.encode("a", device="mps")


def test_unloading_lets_other_threads_run(golden):
    """A model whose last reference goes away is unloaded without the GIL."""
    folder, ticks, stop = golden("st-max"), [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(20):
        SentenceTransformer(folder).encode(["a"] * 50)
    stop.set()
    thread.join()
    assert ticks[0] > 20


def test_large_arrays_are_quantized(minilm):
    rows = np.random.default_rng(0).standard_normal((20000, 384), np.float32)
    begun = time.monotonic()
    quantized = sconce.quantize_embeddings(rows, "ubinary")
    # As a list of Python numbers it took more than a second.
    assert quantized.shape == (20000, 48) and time.monotonic() - begun < 1
    assert (quantized == np.packbits(rows > 0, axis=-1)).all()
    assert (sconce.quantize_embeddings(rows[:, ::2], "ubinary") == np.packbits(rows[:, ::2] > 0, axis=-1)).all()
