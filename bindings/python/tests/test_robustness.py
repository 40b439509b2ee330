"""The interpreter survives what programs do: wrong arguments, closed objects, threads, signals,
forks, pickles and many models."""

import gc
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import MINILM

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
        _sconce.embed_sparse(minilm._model, ["a"], None)
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


def run(code, *arguments, timeout=60):
    """Runs Python code in another process."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)


def test_ctrl_c_returns_at_once():
    code = """
import sys, time, threading, signal, os
from sconce import SentenceTransformer
# Background jobs of a shell ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = ["some words of a text " * 60] * 20000
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begun = time.monotonic()
try:
    model.encode(texts)
except KeyboardInterrupt:
    took = time.monotonic() - begun
    assert took < 10, took
    # The model is usable afterwards.
    assert model.encode("a").shape == (384,)
    print("interrupted")
"""
    done = run(code, MINILM, timeout=120)
    assert done.stdout.strip() == "interrupted", done.stderr


def test_other_threads_run_during_a_pass(minilm):
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    minilm.encode(["some words of a text " * 20] * 400)
    took = time.monotonic() - begun
    stop.set()
    thread.join()
    # With the GIL held, it would be a few ticks.
    assert ticks[0] > took * 100, (ticks, took)


FORK = """
import os, sys, threading, time
import numpy as np
from sconce import SentenceTransformer, Llm
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = [f"text {i} of some words" for i in range(40)]
want = model.encode(texts)
stop = threading.Event()
def work():
    while not stop.is_set():
        model.encode(texts)
# Fork while another thread is in the middle of passes.
thread = threading.Thread(target=work, daemon=True)
thread.start()
for i in range(6):
    time.sleep(0.02)
    pid = os.fork()
    if pid == 0:
        ok = np.abs(model.encode(texts) - want).max() < 1e-6
        other = SentenceTransformer(sys.argv[1], device="cpu")
        ok = ok and np.abs(other.encode(texts) - want).max() < 1e-6
        os._exit(0 if ok else 1)
    for _ in range(600):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        os.kill(pid, 9)
        sys.exit("the child hangs")
    assert status == 0, status
stop.set()
thread.join()
assert np.abs(model.encode(texts) - want).max() < 1e-6
print("forked")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_models_work_after_a_fork(golden):
    done = run(FORK, golden("st-max"), timeout=120)
    assert done.stdout.strip() == "forked", (done.stdout, done.stderr)


def test_multiprocessing(golden):
    model = SentenceTransformer(golden("st-max"))
    want = model.encode(["a", "b", "c"])
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            rows = pool.map_async(model.encode, ["a", "b", "c"]).get(120)
        assert np.abs(np.array(rows) - want).max() < 1e-6, method


def test_a_gpu_is_refused_after_a_fork(golden):
    # As if the model were on a GPU, which this machine may lack.
    model = SentenceTransformer(golden("st-max"))
    model._info["is_gpu"], model._forks = True, model._forks - 1
    with pytest.raises(DeviceError, match="spawn"):
        model.encode("a")


def test_signals_of_other_kinds_run_their_handlers(minilm):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    try:
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        minilm.encode(["some words of a text " * 40] * 300)
        timer.join()
        assert seen
    finally:
        signal.signal(signal.SIGUSR1, before)
