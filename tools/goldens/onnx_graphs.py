"""Goldens' models exported to ONNX with torch: graphs without their weights.

A graph names its weights as parts of `weights.bin`, which holds the tensors of the golden's formula
one after another, in the order of their names, in f32. A test writes that file
(`sconce_testkit::materialize_onnx`), so a committed graph has no weights. The outputs to compare
with are those of the golden itself, which transformers computed.

The embedder `st-mean-dense` is not among them: MiniLM's real export is compared instead."""

import argparse
import json
import math
import tempfile
from pathlib import Path

import onnx
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import formula

GOLDENS = Path(__file__).resolve().parents[2] / "crates" / "testkit" / "goldens"
WEIGHTS = "weights.bin"

# The golden, its class, and whether its output has a row for each token.
GRAPHS = [
    ("task-rerank", AutoModelForSequenceClassification, False),
    ("task-rerank-roberta", AutoModelForSequenceClassification, False),
    ("task-classify", AutoModelForSequenceClassification, False),
    ("task-tag", AutoModelForTokenClassification, True),
    ("task-sparse", AutoModelForMaskedLM, True),
]


class Logits(torch.nn.Module):
    """A model with positional inputs and one output, as the exporter wants it."""

    def __init__(self, model: torch.nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs))).logits


def export(golden: Path, kind: type, per_token: bool, target: Path) -> None:
    with formula.materialised(golden) as directory:
        model = kind.from_pretrained(
            directory, attn_implementation="eager", dtype=torch.float32
        ).eval()
    ids = torch.tensor([[2, 5, 6, 9, 3], [2, 7, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    names, inputs = ["input_ids", "attention_mask"], [ids, mask]
    if (
        model.config.model_type == "bert"
    ):  # RoBERTa and DistilBERT are exported without types.
        names, inputs = names + ["token_type_ids"], inputs + [torch.zeros_like(ids)]
    axes = {name: {0: "batch", 1: "sequence"} for name in names}
    axes["logits"] = {0: "batch"} | ({1: "sequence"} if per_token else {})
    torch.onnx.export(
        Logits(model, names),
        tuple(inputs),
        str(target),
        input_names=names,
        output_names=["logits"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
        # Folded, a weight would be transposed and would no longer be the formula's.
        do_constant_folding=False,
    )
    strip(target, golden)


def strip(path: Path, golden: Path) -> None:
    """Replaces the weights of a graph by references to the tensors of the golden's formula."""
    tensors = json.loads((golden / formula.FORMULA).read_text())["tensors"]
    places, offset = {}, 0
    for name in sorted(tensors):
        length = 4 * math.prod(tensors[name]["shape"])
        places[name] = (offset, length)
        offset += length
    model = onnx.load(path)
    for weight in model.graph.initializer:
        name = weight.name.removeprefix("model.")
        if name not in places:
            assert len(weight.raw_data) < 2048, f"{name} is not in the formula"
            continue
        offset, length = places[name]
        assert list(weight.dims) == tensors[name]["shape"], name
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (
            ("location", WEIGHTS),
            ("offset", offset),
            ("length", length),
        ):
            weight.external_data.add(key=key, value=str(value))
    shorten(model.graph)
    model.ClearField("producer_version")
    del model.graph.value_info[:]
    path.write_bytes(model.SerializeToString(deterministic=True))


def shorten(graph: onnx.GraphProto) -> None:
    """Gives values short names, and drops where the exporter found each node."""
    short = {port.name: port.name for port in (*graph.input, *graph.output)}

    def rename(names) -> None:
        for i, name in enumerate(names):
            if name:
                names[i] = short.setdefault(name, f"v{len(short)}")

    for weight in graph.initializer:
        weight.name = short.setdefault(weight.name, f"v{len(short)}")
    for node in graph.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        rename(node.input)
        rename(node.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=GOLDENS / "onnx")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name, kind, per_token in GRAPHS:
        with tempfile.TemporaryDirectory() as temporary:
            target = Path(temporary) / "model.onnx"
            export(GOLDENS / name, kind, per_token, target)
            (out / f"{name}.onnx").write_bytes(target.read_bytes())


if __name__ == "__main__":
    main()
