"""Weights by formula instead of a file: small enough to commit at any size, and the same bits in
every language."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

FORMULA = "tensors.json"
WEIGHTS = "model.safetensors"

Spec = Mapping[str, Mapping[str, Any]]


def values(
    seed: int, name: str, shape: list[int], scale: float, shift: float
) -> np.ndarray:
    """Element i is `shift + scale * u_i`, u_i in [-1, 1): SplitMix64 over the FNV-1a hash of the
    name and the seed."""
    count = math.prod(shape)
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = np.uint64(fnv1a64(name.encode()) ^ seed) + steps
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    # 24 bits and a power of two: every u is exact in float32, so only the two operations after it
    # round.
    u = (z >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    return (np.float32(shift) + np.float32(scale) * u).reshape(shape)


def fnv1a64(data: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def write(directory: Path, seed: int, spec: Spec, file: str = WEIGHTS) -> None:
    """Writes a `tensors.json` that describes the content of `file` in `directory`, one tensor per
    line."""
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(tensor)}"
        for name, tensor in sorted(spec.items())
    )
    head = f' "seed": {seed},\n'
    if file != WEIGHTS:
        head += f' "file": {json.dumps(file)},\n'
    text = "{\n" + head + ' "tensors": {\n' + lines + "\n }\n}\n"
    (directory / FORMULA).write_text(text, encoding="ascii")


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a `tensors.json`."""
    return json.loads(path.read_text(encoding="ascii"))["tensors"]


@contextmanager
def materialised(directory: Path) -> Iterator[Path]:
    """A temporary copy of a model directory, with the weights that its formulas describe."""
    with TemporaryDirectory() as temporary:
        copy = Path(temporary) / directory.name
        shutil.copytree(directory, copy)
        for path in sorted(copy.rglob(FORMULA)):
            formula = json.loads(path.read_text())
            tensors = {
                name: values(formula["seed"], name, **tensor)
                for name, tensor in formula["tensors"].items()
            }
            target = path.parent / formula.get("file", WEIGHTS)
            save_file(tensors, target, metadata={"format": "pt"})
        yield copy


def replace_weights(
    directory: Path, seed: int, gains: Mapping[str, float] | None = None
) -> None:
    """Replaces every saved `model.safetensors` under `directory` by a formula for the same names
    and shapes."""
    for path in sorted(directory.rglob(WEIGHTS)):
        with safe_open(path, "np") as file:
            shapes = {
                name: list(file.get_slice(name).get_shape()) for name in file.keys()
            }
        path.unlink()
        write(path.parent, seed, uneven(shapes, gains or {}))


def uneven(shapes: Mapping[str, list[int]], gains: Mapping[str, float]) -> Spec:
    """Random weights with the spread of trained ones (bert.py has the reasons); `gains` multiplies
    tensors whose name matches, so that a head's outputs spread."""
    spec = {}
    for name, shape in shapes.items():
        scale, shift = law(name, shape)
        for part, gain in gains.items():
            if part in name:
                scale *= gain
        spec[name] = {"shape": shape, "scale": float(f"{scale:.3g}"), "shift": shift}
    return spec


def law(name: str, shape: list[int]) -> tuple[float, float]:
    lower = name.lower()
    if name.endswith("bias"):
        return 0.2, 0.0
    if "norm" in lower or "layrnorm" in lower:
        return 0.3, 1.0
    if name == "logit_scale":
        return 0.0, 1.5
    if len(shape) == 4:  # A convolution over patches.
        return 1.7 / math.prod(shape[1:]) ** 0.5, 0.0
    if "embedding" in lower or "probe" in lower or len(shape) < 2:
        return 1.2, 0.0
    sharp = any(part in lower for part in ("query", "key", "q_", "k_", "in_proj"))
    return (2.4 if sharp else 1.7) / shape[-1] ** 0.5, 0.0
