"""Writes a tiny model of each kind that has no real one here: models.py FOLDER.

The labels of the classifier and of the tagger are markup, which the page must show as text.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients"))
import reranker

HOSTILE = "<img src=x onerror=pwned()>"


def main(folder):
    for golden in ("task-rerank", "task-classify", "task-tag", "gliner-mean", "task-clip"):
        reranker.main(folder / golden, golden)
    for golden in ("task-classify", "task-tag"):
        path = folder / golden / "config.json"
        config = json.loads(path.read_text())
        labels = {i: label if label == "O" else label + HOSTILE for i, label in config["id2label"].items()}
        config["id2label"], config["label2id"] = labels, {label: int(i) for i, label in labels.items()}
        path.write_text(json.dumps(config))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
