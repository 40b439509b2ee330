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
    AutoModel,
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

# Two-tower models: the golden, and the side of an image.
TOWERS = [("task-clip", 32), ("task-siglip", 32)]


class Logits(torch.nn.Module):
    """A model with positional inputs and one output, as the exporter wants it."""

    def __init__(self, model: torch.nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, inputs))).logits


class Towers(torch.nn.Module):
    """Both towers of CLIP or SigLIP, or one of them, with the outputs of Optimum's exports."""

    def __init__(self, model: torch.nn.Module, inputs: list[str], outputs: list[str]):
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = dict(zip(self.inputs, values))
        if len(self.outputs) > 1:
            result = self.model(**inputs)
            return tuple(getattr(result, name) for name in self.outputs)
        if "pixel_values" in inputs:
            return pooled(self.model.get_image_features(**inputs))
        return pooled(self.model.get_text_features(**inputs))


def pooled(features) -> tuple[torch.Tensor]:
    """Some versions of transformers wrap the embeddings in an output."""
    return (getattr(features, "pooler_output", features),)


def load(golden: Path, kind: type) -> torch.nn.Module:
    with formula.materialised(golden) as directory:
        return kind.from_pretrained(
            directory, attn_implementation="eager", dtype=torch.float32
        ).eval()


def export_towers(golden: Path, side: int, folder: Path) -> list[Path]:
    """A file with both towers and one for each, with the dynamic axes of Optimum's exports."""
    model = load(golden, AutoModel)
    siglip = model.config.model_type == "siglip"
    texts = {
        "input_ids": torch.tensor([[2, 5, 6, 9, 3, 7], [2, 7, 3, 0, 0, 4]]),
        "attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0]]),
    }
    if siglip:  # Trained on padding, which its texts attend to.
        del texts["attention_mask"]
    images = {"pixel_values": torch.linspace(-1, 1, 9 * side**2).view(3, 3, side, side)}
    axes = {name: {0: "text_batch_size", 1: "sequence_length"} for name in texts}
    axes["pixel_values"] = {
        0: "image_batch_size",
        1: "num_channels",
        2: "height",
        3: "width",
    }
    axes |= {
        "logits_per_image": {0: "image_batch_size", 1: "text_batch_size"},
        "logits_per_text": {0: "text_batch_size", 1: "image_batch_size"},
        "text_embeds": {0: "text_batch_size"},
        "image_embeds": {0: "image_batch_size"},
        "pooler_output": {0: "batch_size"},
    }
    both = ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"]
    # A tower of SigLIP has no projection after its pooling.
    graphs = {
        "": (images | texts, both),
        "-text": (texts, ["pooler_output" if siglip else "text_embeds"]),
        "-vision": (images, ["pooler_output" if siglip else "image_embeds"]),
    }
    files = []
    for suffix, (inputs, outputs) in graphs.items():
        files.append(folder / f"{golden.name}{suffix}.onnx")
        names = list(inputs)
        torch.onnx.export(
            Towers(model, names, outputs),
            tuple(inputs.values()),
            str(files[-1]),
            input_names=names,
            output_names=outputs,
            dynamic_axes={name: axes[name] for name in (*names, *outputs)},
            opset_version=17,
            dynamo=False,
            do_constant_folding=False,
        )
        strip(files[-1], golden)
    return files


def export(golden: Path, kind: type, per_token: bool, target: Path) -> None:
    model = load(golden, kind)
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
    for name, side in TOWERS:
        with tempfile.TemporaryDirectory() as temporary:
            for path in export_towers(GOLDENS / name, side, Path(temporary)):
                (out / path.name).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
