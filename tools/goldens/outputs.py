"""sentence-transformers' post-processing of embeddings: quantization, packing into bits, truncation
of dimensions."""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util.quantization import quantize_embeddings
from transformers import BertConfig, BertModel

import formula
import tiny
from files import empty_dir, write_json_sections
from sentence import TEXTS

PRECISIONS = ["int8", "uint8", "binary", "ubinary"]
DIMENSIONS = [1, 7, 8, 20, 32]


def make(out: Path, _work: Path) -> None:
    quantized(out / "task-outputs")
    truncated(out / "task-outputs-truncate")


def quantized(directory: Path) -> None:
    empty_dir(directory)
    # 20 dimensions: the last byte of the packed bits is half empty.
    embeddings = formula.values(141, "embeddings", [9, 20], 1.0, 0.0)
    embeddings[0, :6] = [0.0, -0.0, 1e-38, -1e-38, 1.0, -1.0]  # Only values above 0 become a one.
    embeddings[:, 6] = 0.25  # A dimension whose range is empty.
    embeddings[:, 7] = np.arange(9) / 8 - 0.5  # Values on or next to a quantization step.
    embeddings[1] = embeddings[2]
    calibration = formula.values(142, "calibration", [50, 20], 0.5, 0.1)
    calibration[:, 8] = 0.125
    given = np.stack(
        [np.full(20, -0.75, np.float32), np.linspace(0.1, 1.5, 20, dtype=np.float32)]
    )
    arrays = {"embeddings": embeddings, "calibration": calibration, "ranges": given}
    for precision in PRECISIONS:
        if precision.endswith("binary"):
            arrays[precision] = quantize_embeddings(embeddings, precision)
            continue
        for name, options in {
            "own": {},
            "calibration": {"calibration_embeddings": calibration},
            "ranges": {"ranges": given},
        }.items():
            result = quantize_embeddings(embeddings, precision, **options)
            arrays[f"{precision}.{name}"] = result
    save_file(arrays, directory / "golden.safetensors")
    shapes = {
        name: [str(array.dtype), *array.shape] for name, array in sorted(arrays.items())
    }
    write_json_sections(directory / "golden.json", {"arrays": shapes})


def truncated(directory: Path) -> None:
    empty_dir(directory)
    tokenizer = tiny.wordpiece()
    BertModel(BertConfig(vocab_size=len(tokenizer), **tiny.BERT)).save_pretrained(
        directory
    )
    tokenizer.save_pretrained(directory)
    modules = [Transformer(str(directory)), Pooling(tiny.HIDDEN, "mean")]
    model = SentenceTransformer(modules=modules, device="cpu")
    empty_dir(directory)
    model.save(str(directory), create_model_card=False)
    formula.replace_weights(directory, 143)
    with formula.materialised(directory) as copy:
        model = SentenceTransformer(str(copy), device="cpu", local_files_only=True)
        arrays = {}
        for size in DIMENSIONS:
            for normalize in (False, True):
                rows = [
                    model.encode(
                        text, truncate_dim=size, normalize_embeddings=normalize
                    )
                    for text in TEXTS
                ]
                name = "normalized" if normalize else "plain"
                arrays[f"{name}.{size}"] = np.stack(rows)
        # `precision` applies after truncation and L2-normalize.
        for precision in ("binary", "ubinary"):
            arrays[f"{precision}.20"] = model.encode(
                TEXTS,
                truncate_dim=20,
                normalize_embeddings=True,
                precision=precision,
                batch_size=1,
            )
    # Truncated first, then L2-normalized: not the head of the normalized embedding.
    cut = torch.nn.functional.normalize(torch.from_numpy(arrays["plain.20"])).numpy()
    np.testing.assert_allclose(arrays["normalized.20"], cut, rtol=1e-6)
    write_json_sections(
        directory / "golden.json", {"texts": TEXTS, "dimensions": DIMENSIONS}
    )
    save_file(arrays, directory / "golden.safetensors")
