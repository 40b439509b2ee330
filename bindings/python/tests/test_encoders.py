"""The other encoders on tiny models, against sentence-transformers, transformers and ColBERT."""

import numpy as np
import pytest
from conftest import GOLDENS, answers, arrays, texts

from sconce import (
    Classifier,
    Clip,
    CrossEncoder,
    InputError,
    LateInteractionTextEmbedding,
    MultiVectorEncoder,
    SparseEncoder,
    SparseTextEmbedding,
    Tagger,
    TextCrossEncoder,
    TextEmbedding,
)

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", ["task-rerank", "task-rerank-roberta"])
def test_cross_encoder(golden, name):
    model, given, want = CrossEncoder(golden(name)), answers(name), arrays(name)
    queries, documents = given["queries"], given["documents"]
    pairs = [(query, document) for query in queries for document in documents]
    # The files of the second name the identity as activation; the first has none, which is sigmoid.
    expected = want["sigmoid" if name == "task-rerank" else "logits"].reshape(-1)
    assert np.abs(model.predict(pairs) - expected).max() <= TOLERANCE
    for query, order, scores in zip(queries, given["ranking"], expected.reshape(len(queries), -1)):
        ranked = model.rank(query, documents, return_documents=True)
        assert [hit["corpus_id"] for hit in ranked] == order
        assert all(abs(hit["score"] - scores[hit["corpus_id"]]) <= TOLERANCE for hit in ranked)
        assert all(hit["text"] == documents[hit["corpus_id"]] for hit in ranked)
        assert model.rank(query, documents, top_k=2) == [
            {"corpus_id": hit["corpus_id"], "score": hit["score"]} for hit in ranked[:2]
        ]
    assert model.predict(pairs[0]).shape == () and model.rank("q", []) == []
    raw = list(TextCrossEncoder(str(golden(name))).rerank(queries[0], iter(documents)))
    logits = want["pooler" if name == "task-rerank" else "logits"].reshape(-1)
    assert np.abs(np.array(raw) - logits[: len(documents)]).max() <= TOLERANCE


def test_the_activation_of_the_files_is_used(golden, tmp_path):
    import json
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(golden("task-rerank"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config))
    given, want = answers("task-rerank"), arrays("task-rerank")
    pairs = [(given["queries"][0], document) for document in given["documents"]]
    logits = want["pooler"].reshape(-1)[: len(pairs)]
    assert np.abs(CrossEncoder(folder).predict(pairs) - logits).max() <= TOLERANCE
    doubled = CrossEncoder(folder).predict(pairs, activation_fn=lambda x: np.asarray(x) * 2)
    assert np.abs(doubled - 2 * logits).max() <= 2 * TOLERANCE


def test_cross_encoder_with_several_labels(golden):
    name = "task-classify"
    model, given, want = CrossEncoder(golden(name)), answers(name)["cases"], arrays(name)["logits"]
    rows = [i for i, case in enumerate(given) if "text_pair" in case]
    pairs = [(given[i]["text"], given[i]["text_pair"]) for i in rows]
    assert rows and model.num_labels == want.shape[1]
    assert np.abs(model.predict(pairs) - want[rows]).max() <= TOLERANCE
    soft = model.predict(pairs, apply_softmax=True)
    assert np.allclose(soft.sum(1), 1) and (soft.argmax(1) == want[rows].argmax(1)).all()
    with pytest.raises(InputError, match="one label"):
        model.rank("a", ["b"])


@pytest.mark.parametrize("kind", ["", "-multi", "-one", "-single", "-regression"])
def test_classifier(golden, kind):
    name = "task-classify" + kind
    model, given, want = Classifier(golden(name)), answers(name)["cases"], arrays(name)["logits"]
    inputs = [(case["text"], case["text_pair"]) if "text_pair" in case else case["text"] for case in given]
    assert np.abs(model.logits(inputs) - want).max() <= TOLERANCE
    for case, got in zip(given, model.classify(inputs)):
        assert [label["label"] for label in got] == [label["label"] for label in case["scores"]]
        scores = [[label["score"] for label in labels] for labels in (got, case["scores"])]
        assert np.abs(np.subtract(*scores)).max() <= TOLERANCE
    assert len(model.classify("hello", top_k=1)) == 1


@pytest.mark.parametrize("kind", ["", "-cased", "-bpe", "-unigram"])
def test_tagger(golden, kind):
    name = "task-tag" + kind
    model, given = Tagger(golden(name)), answers(name)["cases"]
    for strategy in ("none", "simple", "first", "average", "max"):
        for case, got in zip(given, model.tag(texts(given), strategy=strategy)):
            want = [(e.get("entity") or e["entity_group"], e["start"], e["end"], e["word"]) for e in case[strategy]]
            assert [(e["label"], e["start"], e["end"], e["word"]) for e in got] == want
            assert all(abs(a["score"] - b["score"]) <= TOLERANCE for a, b in zip(got, case[strategy]))
    with pytest.raises(InputError, match="average"):
        model.tag("a", strategy="sum")


@pytest.mark.parametrize("kind", ["", "-legacy", "-log1p-sum", "-plain"])
def test_sparse_encoder(golden, kind):
    name = "task-sparse" + kind
    model, given = SparseEncoder(golden(name)), answers(name)["cases"]
    matrix = model.encode(texts(given))
    dense = matrix.to_dense()
    want = np.zeros_like(dense)
    for row, case in zip(want, given):
        for token, weight in case["weights"].items():
            row[int(token)] = weight
    assert matrix.shape == want.shape and np.abs(dense - want).max() <= 2e-5
    assert np.abs(model.similarity(matrix, matrix) - want @ want.T).max() <= 1e-3
    assert model.similarity(matrix[0], matrix[1:3]).shape == (1, 2)
    stats = SparseEncoder.sparsity(matrix)
    assert stats["active_dims"] == pytest.approx((dense > 0).sum(1).mean())
    assert stats["sparsity_ratio"] == pytest.approx((dense == 0).mean())
    few = model.encode(texts(given), max_active_dims=3)
    assert (np.diff(few.indptr) == 3).all()
    (token, weight), *rest = model.decode(few[0])
    assert len(rest) == 2 and weight == pytest.approx(dense[0].max()) and isinstance(token, str)
    sparse = list(SparseTextEmbedding(str(golden(name))).embed(iter(texts(given))))
    assert len(sparse) == len(given) and (sparse[2].as_dict().keys() == set(np.flatnonzero(dense[2]).tolist()))


@pytest.mark.parametrize("kind", ["", "-pylate", "-native"])
def test_multi_vector_encoder(golden, kind):
    name = "task-colbert" + kind
    model, given, want = MultiVectorEncoder(golden(name)), answers(name), arrays(name)
    queries, documents = model.encode_query(texts(given["queries"])), model.encode_document(texts(given["documents"]))
    assert np.abs(np.concatenate(queries) - want["queries"]).max() <= TOLERANCE
    assert np.abs(np.concatenate(documents) - want["documents"]).max() <= TOLERANCE
    scores = model.similarity(queries, documents)
    want_scores = want["scores"].reshape(scores.shape)
    assert np.abs(scores - want_scores).max() <= 1e-4
    assert np.allclose(model.similarity_pairwise(queries[:2], documents[:2]), scores[[0, 1], [0, 1]])
    ranked = model.rank(given["queries"][0]["text"], texts(given["documents"]))
    assert np.allclose([hit["score"] for hit in ranked], np.sort(want_scores[0])[::-1], atol=1e-4)
    late = LateInteractionTextEmbedding(str(golden(name)))
    assert all((a == b).all() for a, b in zip(late.query_embed(texts(given["queries"])), queries))
    assert all((a == b).all() for a, b in zip(late.embed(texts(given["documents"])), documents))


def test_text_embedding(golden):
    model = TextEmbedding(str(golden("st-max")), lazy_load=True)
    rows = model.embed(f"text {i}" for i in range(5))
    assert not isinstance(rows, (list, np.ndarray))
    rows = list(rows)
    assert len(rows) == 5 and all(abs(np.linalg.norm(row) - 1) < 1e-6 for row in rows)
    assert (next(model.query_embed("text 3")) == rows[3]).all() and len(list(model.passage_embed(["a"]))) == 1
    assert model.embedding_size == rows[0].shape[0]


@pytest.mark.parametrize("name", ["task-clip", "task-siglip"])
def test_clip(golden, name):
    model, given, want = Clip(golden(name)), answers(name), arrays(name)
    labels = texts(given["texts"])
    assert np.abs(model.encode_text(labels) - want["text_embeds"]).max() <= TOLERANCE
    # Another decoder's JPEG may differ by a few levels of 255.
    files = [i for i, file in enumerate(given["images"]) if file.endswith(".png")]
    paths = [GOLDENS / "task-images" / given["images"][i] for i in files]
    assert np.abs(model.encode_image(paths) - want["image_embeds"][files]).max() <= TOLERANCE
    assert (model.encode_image(paths[0].read_bytes()) == model.encode_image(str(paths[0]))).all()
    scores = model.classify(paths, labels)
    assert np.abs(scores - want["probabilities"].reshape(len(given["images"]), -1)[files]).max() <= 1e-4
    square = np.zeros((20, 30, 3), np.uint8)
    assert model.encode_image(square).shape == (model.get_embedding_dimension(),)
    with pytest.raises(TypeError, match="uint8"):
        model.encode_image(np.zeros((2, 2)))
    with pytest.raises(InputError, match="image 2"):
        model.encode_image([paths[0], b"no image"])
