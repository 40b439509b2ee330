"""Ctrl-C and other signals during long calls."""

import os
import signal
import threading
import time

import pytest
from conftest import MINILM, SMOLLM
from processes import run

# A signal comes after a second of work. Prints how long the work went on after it.
INTERRUPT = """
import sys, time, threading, signal, os
from sconce import Llm, SentenceTransformer
# Background jobs of a shell ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
sent = []
def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
def work_until_interrupted(work):
    threading.Timer(1.0, interrupt).start()
    try:
        while True:
            work()
    except KeyboardInterrupt:
        took = time.monotonic() - sent[0]
    assert took < 5, took
"""

WORK = {
    "encode": """
model = SentenceTransformer(sys.argv[1], device="cpu")
texts = ["some words of a text " * 60] * 20000
work_until_interrupted(lambda: model.encode(texts))
assert model.encode("a").shape == (384,)
""",
    "load": """
work_until_interrupted(lambda: Llm(sys.argv[2], device="cpu", context=512))
assert SentenceTransformer(sys.argv[1], device="cpu").encode("a").shape == (384,)
""",
    "generate": """
llm = Llm(sys.argv[2], device="cpu", context=2048)
long = {"max_tokens": 2000, "ignore_end": True}
work_until_interrupted(lambda: llm.generate("Once upon a time", **long))
assert len(llm.generate("a", max_tokens=2, ignore_end=True).tokens) == 2
""",
    "stream": """
llm = Llm(sys.argv[2], device="cpu", context=2048)
long = {"max_tokens": 2000, "ignore_end": True}
work_until_interrupted(lambda: [text for text in llm.stream("Once upon a time", **long)])
assert len(llm.generate("a", max_tokens=2, ignore_end=True).tokens) == 2
""",
}


@pytest.mark.parametrize("work", WORK)
def test_ctrl_c_returns_at_once(work):
    """And models are usable afterwards."""
    done = run(INTERRUPT + WORK[work] + 'print("interrupted")', MINILM, SMOLLM, timeout=120)
    assert done.stdout.strip() == "interrupted", done.stderr


def test_signals_of_other_kinds_run_their_handlers(minilm):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    try:
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        timer.start()
        minilm.encode(["some words of a text " * 40] * 60)
        timer.join()
        assert seen
    finally:
        signal.signal(signal.SIGUSR1, before)
