"""Goldens whose weights are a formula: a model of real width costs the repository nothing but its answers."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import PreTrainedModel

from files import empty_dir, write_json

# 1, 2 and 17: no neighbour, one neighbour, one past a vector of 16.
LENGTHS = [7, 1, 17, 2]
HEAD_LENGTHS = [1, 2, 17]
LONG_LENGTHS = [1, 2, 17, 300]
WIDE_LENGTHS = [1, 2, 9]


def fnv1a64(text: str) -> int:
    hash = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        hash = (hash ^ byte) * 0x100000001B3 % 2**64
    return hash


def values(
    name: str, seed: int, shape: list[int], scale: float, shift: float
) -> np.ndarray:
    """The tensor `name`: SplitMix64 started from its name, spread evenly over `shift` +- `scale`."""
    count = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    z = count * np.uint64(0x9E3779B97F4A7C15) + np.uint64(fnv1a64(name) ^ seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # 24 bits, so that every step up to the product is exact in float32.
    u = (z >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    return (np.float32(shift) + np.float32(scale) * u).reshape(shape)


Rule = tuple[str, float, float]


def spread(
    name: str, shape: list[int], rules: list[Rule] | None = None
) -> dict[str, Any]:
    """Scale and shift that make weights as uneven as trained ones; see `bert.randomize` for why.

    A rule is a pattern, a gain over 1/sqrt(inputs) or (for a negative number) minus the scale itself, and the shift.
    """
    inputs = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    lower = name.lower()
    for pattern, gain, shift in rules or []:
        if re.search(pattern, name):
            scale = -gain if gain < 0 else gain * (3 / inputs) ** 0.5
            return entry(shape, scale, shift)
    if lower.endswith(("bias", "beta")):
        return entry(shape, 0.2, 0.0)
    if len(shape) == 1:
        return entry(shape, 0.3, 1.0)
    if "embed" in lower and "project" not in lower:
        return entry(shape, 1.2, 0.0)
    gain = (
        1.4
        if re.search("query|key|q_lin|k_lin|attn[.][qk][.]|[qk]_proj", lower)
        else 1.0
    )
    return entry(shape, gain * (3 / inputs) ** 0.5, 0.0)


def entry(shape: list[int], scale: float, shift: float) -> dict[str, Any]:
    """In steps of 1/4096, so that the decimals of the JSON are exact in float32 however they are read."""
    return {
        "shape": list(shape),
        "scale": max(round(scale * 4096), 1) / 4096,
        "shift": round(shift * 4096) / 4096,
    }


@dataclass
class Variant:
    """One directory. `config` is what its config.json says, as the hub's own file would."""

    name: str
    seed: int
    # The reference class; None where `write_plain` makes the golden.
    model: type[PreTrainedModel] | None
    config: dict[str, Any]
    lengths: list[int] = field(default_factory=lambda: LENGTHS)
    # Sequences that chance would not give, after those of `lengths`.
    sequences: list[list[int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    # From the name that transformers saves to the name in the hub's files.
    hub_name: Callable[[str], str] = lambda name: name
    # Tensors that the hub's files have and the model ignores.
    extra: dict[str, list[int]] = field(default_factory=dict)
    # Tensors that the model names and the hub's files leave out because they are tied.
    tied: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    # The config the reference is built from, where it cannot read the hub's own.
    reference_config: Any = None
    # What is left to do to the loaded reference before it runs.
    prepare: Callable[[PreTrainedModel], None] = lambda model: None
    # Whether the head's output is kept, where there is a head.
    logits: bool = True
    # Ids below this are special ones: only `sequences` hold them.
    first_id: int = 5


def write_tensors(path: Path, seed: int, tensors: dict[str, dict[str, Any]]) -> None:
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(tensors[name])}" for name in sorted(tensors)
    )
    path.write_text(
        f'{{\n "seed": {seed},\n "tensors": {{\n{lines}\n }}\n}}\n', encoding="ascii"
    )


def weights(seed: int, tensors: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: values(name, seed, **tensor) for name, tensor in tensors.items()}


def saved_shapes(variant: Variant, config: Any) -> dict[str, list[int]]:
    """The tensors that the reference itself would save, and so under the names that the hub has."""
    with tempfile.TemporaryDirectory() as directory:
        variant.model(config, **variant.options).save_pretrained(directory)
        with safe_open(Path(directory) / "model.safetensors", "np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}


def load(variant: Variant, directory: Path) -> PreTrainedModel:
    """Writes config.json and tensors.json into `directory` and gives the reference with those weights, in float64."""
    write_json(directory / "config.json", variant.config)
    config = variant.reference_config or variant.model.config_class.from_pretrained(
        directory
    )
    tensors = {
        variant.hub_name(name): shape
        for name, shape in saved_shapes(variant, config).items()
        if name not in variant.tied
    } | variant.extra
    specs = {
        name: spread(name, shape, variant.rules) for name, shape in tensors.items()
    }
    write_tensors(directory / "tensors.json", variant.seed, specs)
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        save_file(
            weights(variant.seed, specs),
            Path(temporary) / "model.safetensors",
            metadata={"format": "pt"},
        )
        model, info = variant.model.from_pretrained(
            temporary,
            config=config,
            attn_implementation="eager",
            dtype=torch.float64,
            output_loading_info=True,
            **variant.options,
        )
    # A tensor that the reference invents or ignores would make a golden of some other model.
    assert not info["missing_keys"] or set(info["missing_keys"]) <= set(variant.tied), (
        info
    )
    assert set(info["unexpected_keys"]) <= set(variant.extra), info
    assert not info["mismatched_keys"], info
    variant.prepare(model)
    return model.eval()


@contextmanager
def all_in_float64() -> Iterator[None]:
    """transformers forces some steps into float32 whatever the model's dtype, and their noise is that of the tested."""
    kept = torch.Tensor.float, torch.nn.functional.softmax

    def softmax(values: torch.Tensor, dim: int, **_: Any) -> torch.Tensor:
        return kept[1](values, dim=dim)

    # Integers still become float32: the logarithm of a distance is rounded there, and so falls into its bucket.
    def to_float(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dtype == torch.float64 else kept[0](tensor)

    torch.Tensor.float, torch.nn.functional.softmax = to_float, softmax
    try:
        yield
    finally:
        torch.Tensor.float, torch.nn.functional.softmax = kept


def frequencies(theta: float, size: int) -> torch.Tensor:
    """How fast each pair of a head's rotary numbers turns, in float64."""
    return 1 / theta ** (torch.arange(0, size, 2, dtype=torch.float64) / size)


class Packed:
    """Rows of one sequence after another, without padding."""

    def __init__(self) -> None:
        self.rows: dict[str, list[torch.Tensor]] = {}
        self.lengths: list[int] = []

    def add(self, name: str, rows: torch.Tensor) -> None:
        self.rows.setdefault(name, []).append(rows)

    def write(self, directory: Path, about: dict[str, Any]) -> None:
        tensors = {}
        for name, rows in self.rows.items():
            array = torch.cat(rows).detach().numpy()
            kind = np.float32 if array.dtype.kind == "f" else np.uint32
            tensors[name] = np.ascontiguousarray(array.astype(kind))
            assert np.isfinite(tensors[name]).all(), name
        if self.lengths:
            tensors["cu_seqlens"] = np.cumsum([0, *self.lengths]).astype(np.uint32)
            about["lengths"] = self.lengths
        save_file(tensors, directory / "golden.safetensors")
        about["tensors"] = {
            name: list(tensor.shape) for name, tensor in sorted(tensors.items())
        }
        write_json(directory / "golden.json", about)


def inputs(variant: Variant, config: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Ids and types of every sequence, as batches of one."""
    chance = torch.Generator().manual_seed(variant.seed)
    types = max(getattr(config, "type_vocab_size", 0) or 0, 1)

    def drawn(low: int, high: int, length: int) -> torch.Tensor:
        return torch.randint(low, high, (1, length), generator=chance)

    ids = [
        drawn(variant.first_id, config.vocab_size, length) for length in variant.lengths
    ]
    ids += [torch.tensor([sequence]) for sequence in variant.sequences]
    return [(one, drawn(0, types, one.shape[1])) for one in ids]


@torch.inference_mode()
def write_plain(
    out: Path,
    variant: Variant,
    shapes: dict[str, list[int]],
    forward: Callable[..., dict[str, Any]],
) -> None:
    """For the families that transformers does not have: `forward` is our own reading of their published code."""
    directory = empty_dir(out / variant.name)
    write_json(directory / "config.json", variant.config)
    specs = {name: spread(name, shape, variant.rules) for name, shape in shapes.items()}
    write_tensors(directory / "tensors.json", variant.seed, specs)
    filled = {
        name: torch.from_numpy(array).double()
        for name, array in weights(variant.seed, specs).items()
    }
    packed = Packed()
    for ids, types in inputs(variant, SimpleNamespace(**variant.config)):
        result = forward(variant.config, filled, ids[0], types[0])
        packed.lengths.append(ids.shape[1])
        packed.add("ids", ids[0])
        packed.add("type_ids", types[0])
        for layer, rows in enumerate(result.pop("hidden")):
            packed.add(f"hidden.{layer}", rows)
        for name, rows in result.items():
            packed.add(name, rows)
    about = {"architecture": variant.config["architectures"][0], "model": "plain torch"}
    packed.write(directory, about)


@torch.inference_mode()
def write(out: Path, variant: Variant) -> None:
    directory = empty_dir(out / variant.name)
    model = load(variant, directory)
    config, encoder = model.config, model.base_model
    packed = Packed()
    # One sequence at a time: no padding, no mask, nothing to leave out afterwards.
    for ids, types in inputs(variant, config):
        given = {"input_ids": ids}
        if getattr(config, "type_vocab_size", 0) > 1:
            given["token_type_ids"] = types
        with all_in_float64():
            result = encoder(**given, output_hidden_states=True)
        last, hidden = result.last_hidden_state, result.hidden_states
        assert len(hidden) == config.num_hidden_layers + 1, len(hidden)
        # With a norm after the last block, `hidden.L` is what comes after that norm.
        assert torch.equal(hidden[-1], last)
        packed.lengths.append(ids.shape[1])
        packed.add("ids", ids[0])
        packed.add("type_ids", types[0])
        for layer, rows in enumerate(hidden):
            packed.add(f"hidden.{layer}", rows[0])
        if getattr(result, "pooler_output", None) is not None:
            packed.add("pooler", result.pooler_output)
        if model is not encoder and variant.logits:
            with all_in_float64():
                logits = model(**given).logits
            packed.add("logits", logits if logits.dim() == 2 else logits[0])
    about = {
        "architecture": variant.config.get("architectures", [None])[0],
        "model": variant.model.__name__,
    }
    packed.write(directory, about)
