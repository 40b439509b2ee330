"""Rate of `SentenceTransformer.encode` beside that of `sconce embed`, from the same wheel.

usage: python benches/python.py [--model minilm] [--texts 10000] [--rounds 5]

Run it on an idle machine, in an environment with the wheel. A second thread runs Python all the
while: it wakes every millisecond and counts, so it notices if the GIL is held. Both sides run in
turns; the command's time is the one that it reports, without start and loading. Exits with 1 if the
median of encode is below 0.97 of the command's, or if the second thread ran less than 100 times a
second: with the GIL held during a pass it would run a few times.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from sconce import SentenceTransformer
from sconce.__main__ import program


def command_rate(model, path, count):
    """Texts per second that `sconce embed` reports."""
    command = [program(), "embed", "-m", model, "-d", "cpu", "-f", str(path), "-o", str(path.with_suffix(".out.jsonl"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = re.search(r"tokens in ([\d.,]+) s", done.stderr)
    if seconds is None:
        sys.exit(f"no time in the command's summary: {done.stderr}")
    return count / float(seconds.group(1).replace(",", ""))


def encode_rate(model, texts):
    """Texts per second of `encode`, and the ticks per second of a second thread."""
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.perf_counter()
    model.encode(texts)
    took = time.perf_counter() - begun
    stop.set()
    thread.join()
    return len(texts) / took, ticks[0] / took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    words = "the man woman child dog eats drives reads a red large old small book car house in of near".split()
    texts = [" ".join(words[(i * 7 + k * (i % 5 + 1)) % len(words)] for k in range(4 + i % 9)) for i in range(options.texts)]
    model = SentenceTransformer(options.model, device="cpu")
    model.encode(texts[:500])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        command, encode, ticks = [], [], []
        for _ in range(options.rounds):
            command.append(command_rate(options.model, path, len(texts)))
            rate, beside = encode_rate(model, texts)
            encode.append(rate)
            ticks.append(beside)
    ratio = statistics.median(encode) / statistics.median(command)
    print(f"sconce embed  {statistics.median(command):8.0f} texts/s   {[round(rate) for rate in command]}")
    print(f"encode        {statistics.median(encode):8.0f} texts/s   {[round(rate) for rate in encode]}")
    print(f"ratio         {ratio:8.3f}           the second thread ran {statistics.median(ticks):.0f} times a second")
    sys.exit(ratio < 0.97 or statistics.median(ticks) < 100)


if __name__ == "__main__":
    main()
