"""Writes a tiny model of crates/testkit/goldens as a model folder: reranker.py FOLDER [GOLDEN], by
default the reranker `task-rerank`.

Its weights are a formula (see tools/goldens/formula.py), here without numpy because this runs
before anything is installed.
"""

import json
import math
import shutil
import struct
import sys
from pathlib import Path

GOLDENS = Path(__file__).resolve().parents[2] / "crates/testkit/goldens"
WORD = (1 << 64) - 1


def values(seed, name, count, scale, shift):
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x0100000001B3 & WORD
    state ^= seed
    for i in range(1, count + 1):
        z = state + i * 0x9E3779B97F4A7C15 & WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
        yield shift + scale * (((z ^ z >> 31) >> 40) / (1 << 23) - 1)


def main(folder, golden="task-rerank"):
    folder.mkdir(parents=True)
    for file in (GOLDENS / golden).glob("*.json"):
        if file.name not in ("golden.json", "tensors.json"):
            shutil.copy(file, folder)
    spec = json.loads((GOLDENS / golden / "tensors.json").read_text())
    head, data = {}, b""
    for name, tensor in spec["tensors"].items():
        count = math.prod(tensor["shape"])
        begin = len(data)
        data += struct.pack(f"<{count}f", *values(spec["seed"], name, count, tensor["scale"], tensor["shift"]))
        head[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [begin, len(data)]}
    text = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
