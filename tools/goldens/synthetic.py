"""Goldens with weights by formula: a model of realistic size costs the repository only its
outputs."""

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
from formula import values

# Lengths 1, 2 and 17: no neighbour, one neighbour, one more than a vector of 16.
LENGTHS = [7, 1, 17, 2]
HEAD_LENGTHS = [1, 2, 17]
LONG_LENGTHS = [1, 2, 17, 300]
WIDE_LENGTHS = [1, 2, 9]


Rule = tuple[str, float, float]


def spread(
    name: str, shape: list[int], rules: list[Rule] | None = None
) -> dict[str, Any]:
    """Scale and shift that give weights the spread of trained ones; see `bert.randomize` for why.

    A rule has a pattern, a gain over 1/sqrt(inputs) or (if negative) minus the scale itself, and
    the shift.
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
    """Rounds to steps of 1/4096, so that the decimals of the JSON are exact in float32."""
    return {
        "shape": list(shape),
        "scale": max(round(scale * 4096), 1) / 4096,
        "shift": round(shift * 4096) / 4096,
    }


@dataclass
class Variant:
    """One golden directory. `config` is the content of its config.json, as in the hub's files."""

    name: str
    seed: int
    # The reference class; None if `write_plain` computes the golden.
    model: type[PreTrainedModel] | None
    config: dict[str, Any]
    lengths: list[int] = field(default_factory=lambda: LENGTHS)
    # Additional sequences after those of `lengths`, which random ids would not give.
    sequences: list[list[int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    # From the tensor names of transformers to those of the hub's files.
    hub_name: Callable[[str], str] = lambda name: name
    # Tensors that the hub's files have and the model ignores.
    extra: dict[str, list[int]] = field(default_factory=dict)
    # Tensors that the model has and the hub's files omit because they are tied.
    tied: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    # The config of the reference, if it cannot read the hub's own.
    reference_config: Any = None
    # Adjusts the loaded reference before it runs.
    prepare: Callable[[PreTrainedModel], None] = lambda model: None
    # Whether to store the output of the head, if there is one.
    logits: bool = True
    # Ids below this are special: only `sequences` has them.
    first_id: int = 5


def write_tensors(path: Path, seed: int, tensors: dict[str, dict[str, Any]]) -> None:
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(tensors[name])}" for name in sorted(tensors)
    )
    path.write_text(
        f'{{\n "seed": {seed},\n "tensors": {{\n{lines}\n }}\n}}\n', encoding="ascii"
    )


def weights(seed: int, tensors: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: values(seed, name, **tensor) for name, tensor in tensors.items()}


def saved_shapes(variant: Variant, config: Any) -> dict[str, list[int]]:
    """The tensors that the reference would save, under the names of the hub's files."""
    with tempfile.TemporaryDirectory() as directory:
        variant.model(config, **variant.options).save_pretrained(directory)
        with safe_open(Path(directory) / "model.safetensors", "np") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}


def load(variant: Variant, directory: Path) -> PreTrainedModel:
    """Writes config.json and tensors.json into `directory` and returns the reference with those
    weights, in float64."""
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
    # A tensor that the reference initializes or ignores would make this the golden of another
    # model.
    assert not info["missing_keys"] or set(info["missing_keys"]) <= set(variant.tied), (
        info
    )
    assert set(info["unexpected_keys"]) <= set(variant.extra), info
    assert not info["mismatched_keys"], info
    variant.prepare(model)
    return model.eval()


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Undoes the float32 steps that transformers forces whatever the model's dtype: their noise is
    as large as that of the code under test."""
    kept = torch.Tensor.float, torch.nn.functional.softmax

    def softmax(values: torch.Tensor, dim: int, **_: Any) -> torch.Tensor:
        return kept[1](values, dim=dim)

    # Integers still become float32: the logarithm of a distance is rounded there, which selects its
    # bucket.
    def to_float(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dtype == torch.float64 else kept[0](tensor)

    torch.Tensor.float, torch.nn.functional.softmax = to_float, softmax
    try:
        yield
    finally:
        torch.Tensor.float, torch.nn.functional.softmax = kept


def frequencies(theta: float, size: int) -> torch.Tensor:
    """The RoPE frequency of each pair of a head's elements, in float64."""
    return 1 / theta ** (torch.arange(0, size, 2, dtype=torch.float64) / size)


class Packed:
    """Concatenates the rows of the sequences, without padding."""

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
    """Ids and token types of every sequence, as batches of one."""
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
    """For families that transformers does not have: `forward` is our own implementation of their
    published code."""
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
    # One sequence at a time, so without padding and mask.
    for ids, types in inputs(variant, config):
        given = {"input_ids": ids}
        if getattr(config, "type_vocab_size", 0) > 1:
            given["token_type_ids"] = types
        with all_in_float64():
            result = encoder(**given, output_hidden_states=True)
        last, hidden = result.last_hidden_state, result.hidden_states
        assert len(hidden) == config.num_hidden_layers + 1, len(hidden)
        # If there is a norm after the last block, `hidden.L` is its output.
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
