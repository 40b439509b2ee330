"""Forked processes: models, streams and locks of the parent."""

import multiprocessing
import os

import numpy as np
import pytest
from processes import run

from sconce import DeviceError, SentenceTransformer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

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


# What a child does with objects of its parent. It prints nothing if all is well.
CHILD = """
import os, sys, threading, time
from sconce import ClosedError, Llm, SentenceTransformer
closed = SentenceTransformer(sys.argv[1], device="cpu")
closed.close()
held = SentenceTransformer(sys.argv[1], device="cpu")
llm = Llm(sys.argv[2], device="cpu")
stream = llm.stream("the cat", max_tokens=2000, ignore_end=True)
next(iter(stream))
# Another thread is inside of the stream, and one holds the model's lock, while this one forks.
reader = threading.Thread(target=stream.wait, daemon=True)
reader.start()
taken = threading.Event()
def hold():
    with held._lock:
        taken.set()
        time.sleep(1)
threading.Thread(target=hold, daemon=True).start()
taken.wait()
pid = os.fork()
if pid == 0:
    code = 0
    for number, call in enumerate((lambda: closed.encode("a"), lambda: next(stream.parts())), 1):
        try:
            call()
            code = number
        except ClosedError:
            pass
    stream.close()
    del stream
    if held.encode("a").ndim != 1:
        code = 3
    os._exit(code)
for _ in range(600):
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    time.sleep(0.05)
else:
    os.kill(pid, 9)
    sys.exit("the child hangs")
print(os.waitstatus_to_exitcode(status))
stream.close()
assert len(llm.generate("the cat", max_tokens=2, ignore_end=True).tokens) == 2
"""


def test_objects_of_the_parent(golden, tiny_llama):
    for _ in range(3):
        done = run(CHILD, golden("st-max"), tiny_llama, timeout=120)
        assert done.stdout.strip() == "0", (done.stdout, done.stderr)


# Layer norm in Candle's operations, as after a verdict of `sconce doctor` against our kernel. Candle
# runs element-wise operations on 65,536 elements and more on threads of its own.
CANDLE = """
import json, os, signal, sys
from pathlib import Path
# Several threads, even on a machine with one core.
os.environ |= {"RAYON_NUM_THREADS": "4", "SCONCE_CACHE": sys.argv[2]}
os.environ.pop("CANDLE_NUM_THREADS", None)
import numpy as np
import sconce
cpu = next(device for device in sconce.devices() if device["device"] == "cpu")
withdrawn = [{"op": "layer_norm", "dtype": "f32", "rung": "fused"}]
# The description without the number of threads.
checked = {"device": "cpu", "description": cpu["description"].rpartition(", ")[0], "withdrawn": withdrawn}
Path(sys.argv[2], "doctor.json").write_text(json.dumps({"version": sconce.__version__, "devices": [checked]}))
model = sconce.SentenceTransformer(sys.argv[1], device="cpu")
texts = ["the cat sat on the mat"] * 1000
want = model.encode(texts)
assert {row["rung"] for row in model.counts() if row["op"] == "layer_norm"} == {"composed"}, model.counts()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os._exit(0 if np.abs(model.encode(texts) - want).max() < 1e-6 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_large_operations_of_candle_work_after_a_fork(golden, tmp_path):
    done = run(CANDLE, golden("st-max"), tmp_path, timeout=120)
    assert done.stdout.strip() == "0", (done.stdout, done.stderr)
