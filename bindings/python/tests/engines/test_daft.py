"""Daft: the results of the provider are those of the direct API."""

import json
import shutil

import daft
import numpy as np
import pytest
from daft.functions import classify_text, embed_text

from sconce import Classifier, SentenceTransformer
from sconce.daft import SconceProvider

TEXTS = ["the cat sat on the mat", None, "a man is eating food", "hello world"]
GIVEN = [text for text in TEXTS if text is not None]


def column(expression):
    frame = daft.from_pydict({"row": list(range(len(TEXTS))), "text": TEXTS}).with_column("result", expression)
    # Daft's runner on Ray returns batches in any order.
    return frame.sort("row").to_pydict()["result"]


def test_embed_text(golden):
    name = str(golden("st-prompts"))
    model, provider = SentenceTransformer(name), SconceProvider(device="cpu")
    # By name, which importing the module makes known, and as an object.
    for given in ("sconce", provider):
        got = column(embed_text(daft.col("text"), provider=given, model=name))
        assert got[1] is None and np.array_equal([one for one in got if one is not None], model.encode(GIVEN))
    queries = column(embed_text(daft.col("text"), provider=provider, model=name, kind="query", batch_size=2))
    assert np.allclose([one for one in queries if one is not None], model.encode_query(GIVEN), atol=1e-6)
    short = column(embed_text(daft.col("text"), provider=provider, model=name, dimensions=8))
    want = model.encode(GIVEN)[:, :8]
    want /= np.linalg.norm(want, axis=1, keepdims=True)
    assert np.allclose([one for one in short if one is not None], want, atol=1e-6)


def test_classify_text(golden, tmp_path):
    name = str(golden("task-classify"))
    model = Classifier(name)
    labels = model.labels
    got = column(classify_text(daft.col("text"), [label.upper() for label in labels], provider="sconce", model=name))
    assert got[1] is None
    assert [one for one in got if one is not None] == [row[0]["label"].upper() for row in model.classify(GIVEN)]
    # Some of the labels: the best of those.
    got = column(classify_text(daft.col("text"), labels[:2], provider="sconce", model=name))
    assert [one for one in got if one is not None] == [labels[i] for i in model.logits(GIVEN)[:, :2].argmax(1)]
    # The same weights as a model of natural language inference.
    folder = tmp_path / "nli"
    shutil.copytree(name, folder)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "contradiction", "1": "neutral", "2": "entailment"}
    config["label2id"] = {label: int(i) for i, label in config["id2label"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    own = ["food", "animals", "greeting"]
    pairs = [(text, f"This example is {label}.") for text in GIVEN for label in own]
    want = [own[i] for i in Classifier(folder).logits(pairs)[:, 2].reshape(-1, 3).argmax(1)]
    got = column(classify_text(daft.col("text"), own, provider="sconce", model=str(folder)))
    assert [one for one in got if one is not None] == want
    with pytest.raises(Exception, match=f"no label `food`, but {', '.join(labels)}"):
        column(classify_text(daft.col("text"), own, provider="sconce", model=name, max_retries=0))
