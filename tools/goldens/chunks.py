"""Embeddings of long texts in windows of tokens, and their means: computed by sentence-transformers
from the windows' ids, which Hugging Face's tokenizer or plain Python cuts."""

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from sentence_transformers import SentenceTransformer

from files import write_json_lines

SENTENCES = [
    "The cat sat on the mat, and the dog sat on the cat.",
    "A man is eating food; they said that it was made well.",
    "Hello, World! Caf\u00e9 d\u00e9j\u00e0 vu, 12345 years.",
]
TEXTS = [
    " ".join(SENTENCES * 2),
    "  " + SENTENCES[1] + "\n\n" + SENTENCES[0],
    # One window, and an empty text.
    "hello world",
    "",
]
# Tokens of a window with everything, and tokens that windows share; None: the default.
WINDOWS = [(None, None), (None, 0), (16, 4), (12, 3)]


def write(model: SentenceTransformer, directory: Path) -> None:
    """Writes `chunks.json`, one line per text and kind of window, and `chunks.safetensors`."""
    names = [None, *model.prompts] if any(model.prompts.values()) else [None]
    cases, embeddings, means = [], [], []
    for name in names:
        prompt = model.prompts.get(name or model.default_prompt_name, "")
        for tokens, overlap in WINDOWS:
            for text in TEXTS:
                found = windows(model, prompt, text, tokens, overlap)
                rows = embed(model, prompt, [ids for ids, _ in found])
                cases.append(
                    {
                        "text": text,
                        "prompt_name": name,
                        "tokens": tokens,
                        "overlap": overlap,
                        "windows": [ids for ids, _ in found],
                        "ranges": [list(span(places)) for _, places in found],
                    }
                )
                embeddings.append(rows)
                means.append(mean(model, rows, [len(places) for _, places in found]))
    write_json_lines(directory / "chunks.json", cases)
    arrays = {"embeddings": np.concatenate(embeddings), "means": np.stack(means)}
    save_file(arrays, directory / "chunks.safetensors")


def windows(model, prompt, text, tokens, overlap):
    """Ids and offsets of the text's own tokens, window by window."""
    tokenizer, most = model.tokenizer, tokens or model.max_seq_length
    overlap = most // 8 if overlap is None else overlap
    if not prompt:
        cut = tokenizer(
            text,
            truncation=True,
            max_length=most,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        places = [offsets[1:-1] for offsets in cut["offset_mapping"]]
        return list(zip(cut["input_ids"], places))
    whole = tokenizer(
        prompt + text, add_special_tokens=False, return_offsets_mapping=True
    )
    ids, places = whole["input_ids"], whole["offset_mapping"]
    lead = sum(end <= len(prompt) for _, end in places)
    room = most - 2 - lead
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    result, start = [], lead
    while True:
        end = min(start + room, len(ids))
        own = [(a - len(prompt), b - len(prompt)) for a, b in places[start:end]]
        result.append(([cls, *ids[:lead], *ids[start:end], sep], own))
        if end == len(ids):
            return result
        start += room - overlap


def span(places):
    return (places[0][0], places[-1][1]) if places else (0, 0)


@torch.inference_mode()
def embed(model, prompt, windows) -> np.ndarray:
    rows = []
    for ids in windows:
        features = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        }
        if prompt:
            features["prompt_length"] = model.preprocess(["x"], prompt=prompt)[
                "prompt_length"
            ]
        rows.append(model(features)["sentence_embedding"][0].numpy())
    return np.stack(rows)


def mean(model, rows: np.ndarray, weights: list[int]) -> np.ndarray:
    if len(rows) == 1:
        return rows[0]
    row = np.average(rows.astype(np.float64), axis=0, weights=weights)
    is_normalized = type(model[-1]).__name__ == "Normalize"
    return (row / np.linalg.norm(row) if is_normalized else row).astype(np.float32)
