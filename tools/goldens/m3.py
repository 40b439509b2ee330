"""A tiny bge-m3: dense, sparse and multi-vector outputs of one forward pass, by FlagEmbedding's
rules."""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import XLMRobertaConfig, XLMRobertaModel

import formula
import tiny
from files import empty_dir, write_json_sections
from sentence import TEXTS

SEED = 171
DIM = 16
# Words that occur twice: the larger of their two weights counts.
MORE = ["the cat and the dog and the man", "caf\u00e9 \U0001f600 caf\u00e9 <s> </s>"]


def make(out: Path, _work: Path) -> None:
    directory = empty_dir(out / "task-m3")
    tokenizer = tiny.unigram()
    config = XLMRobertaConfig(vocab_size=len(tokenizer), **tiny.ROBERTA)
    XLMRobertaModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    modules = [Transformer(str(directory)), Pooling(tiny.HIDDEN, "cls"), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    empty_dir(directory)
    model.save(str(directory), create_model_card=False)
    formula.replace_weights(directory, SEED)
    # In half precision and by torch.save, as the model is published.
    torch.save(linear("sparse_linear", 1), directory / "sparse_linear.pt")
    torch.save(linear("colbert_linear", DIM), directory / "colbert_linear.pt")
    with formula.materialised(directory) as copy:
        write_golden(directory, copy)


def linear(name: str, size: int) -> dict[str, torch.Tensor]:
    weight = formula.values(SEED, f"{name}.weight", [size, tiny.HIDDEN], 0.4, 0.0)
    bias = formula.values(SEED, f"{name}.bias", [size], 0.2, 0.0)
    return {
        "weight": torch.from_numpy(weight).half(),
        "bias": torch.from_numpy(bias).half(),
    }


@torch.inference_mode()
def write_golden(directory: Path, copy: Path) -> None:
    model = SentenceTransformer(str(copy), device="cpu", local_files_only=True)
    tokenizer = model.tokenizer
    heads = {}
    for name in ("sparse_linear", "colbert_linear"):
        state = torch.load(copy / f"{name}.pt", weights_only=True)
        heads[name] = torch.nn.Linear(tiny.HIDDEN, len(state["bias"]))
        heads[name].load_state_dict(state)
    unused = {
        tokenizer.cls_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    }
    cases, dense, multi = [], [], []
    texts = [*TEXTS, *MORE]
    for text in texts:
        features = model.preprocess([text])
        ids = features["input_ids"][0].tolist()
        hidden = model[0].model(input_ids=features["input_ids"]).last_hidden_state[0]
        dense.append(torch.nn.functional.normalize(hidden[0], dim=0).numpy())
        np.testing.assert_allclose(dense[-1], model.encode(text), atol=1e-6)
        weights = torch.relu(heads["sparse_linear"](hidden))[:, 0].tolist()
        sparse: dict[int, float] = {}
        for token, weight in zip(ids, weights, strict=True):
            if token not in unused and weight > sparse.get(token, 0.0):
                sparse[token] = weight
        # All tokens but the first: the end token keeps its vector.
        vectors = heads["colbert_linear"](hidden[1:])
        multi.append(torch.nn.functional.normalize(vectors, dim=-1).numpy())
        cases.append(
            {
                "text": text,
                "ids": ids,
                "sparse": {str(token): sparse[token] for token in sorted(sparse)},
                "vectors": len(vectors),
            }
        )
    sparse = [case["sparse"] for case in cases]
    arrays = {
        "dense": np.stack(dense),
        "multi": np.concatenate(multi),
        "dense_scores": np.stack(dense) @ np.stack(dense).T,
        # The mean over the query's vectors, not the sum: here bge-m3 differs from ColBERT.
        "multi_scores": matrix(multi, lambda q, d: (q @ d.T).max(axis=1).mean()),
        "sparse_scores": matrix(
            sparse, lambda q, d: sum(w * d[t] for t, w in q.items() if t in d)
        ),
    }
    write_json_sections(directory / "golden.json", {"cases": cases})
    save_file(
        {
            name: np.ascontiguousarray(array, np.float32)
            for name, array in arrays.items()
        },
        directory / "golden.safetensors",
    )


def matrix(items: list, score) -> np.ndarray:
    return np.array([[score(query, document) for document in items] for query in items])
