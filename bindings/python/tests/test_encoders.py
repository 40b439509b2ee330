"""The other encoders on tiny models, against sentence-transformers, transformers and ColBERT."""

import json
import pickle
import shutil

import numpy as np
import pytest
from conftest import GOLDENS, answers, arrays, texts

from sconce import (
    Classifier,
    Clip,
    CrossEncoder,
    GLiNER,
    InputError,
    LateInteractionTextEmbedding,
    MultiVectorEncoder,
    SparseEmbedding,
    SparseEncoder,
    SparseTextEmbedding,
    Tagger,
    TextCrossEncoder,
    TextEmbedding,
)
from sconce.cross_encoder import identity, sigmoid

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


@pytest.mark.parametrize(("name", "between"), [("task-rerank", 1), ("task-rerank-roberta", 2), ("task-classify", 1)])
def test_tokens_of_pairs(golden, name, between):
    model = TextCrossEncoder(str(golden(name)))
    pairs = [("the cat", "sat on the mat."), ("", "a"), ("a man", "is eating food " * 100)]
    # Each text without its two special tokens; those at the ends; and `between` tokens in the middle.
    length = lambda text: len(model.model._model.tokenize(text, True)[0]) - 2
    counts = [length(first) + length(second) + 2 + between for first, second in pairs]
    for most in (model.model.max_seq_length, 9):
        model.model.max_seq_length = most
        assert model.token_count(iter(pairs)) == sum(min(count, most) for count in counts)


def test_the_activation_of_the_files_is_used(golden, tmp_path):
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


def test_activations(golden, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(golden("task-rerank"), folder)
    config = folder / "config_sentence_transformers.json"
    logits = CrossEncoder(folder, activation_fn=identity).predict(("a", "b"))
    # The newer place of the name.
    config.write_text(json.dumps({"activation_fn": "torch.nn.modules.linear.Identity"}))
    model = CrossEncoder(folder)
    assert model.activation_fn is identity and model.predict(("a", "b")) == logits
    assert pickle.loads(pickle.dumps(model)).activation_fn is identity
    # A function of this file survives pickling, too; code that a model's files name is not run.
    assert pickle.loads(pickle.dumps(CrossEncoder(folder, activation_fn=np.tanh))).predict(("a", "b")) == np.tanh(logits)
    config.write_text(json.dumps({"activation_fn": "os.abort"}))
    assert CrossEncoder(folder, trust_remote_code=True).activation_fn is sigmoid


def test_prompts_and_older_names_of_the_cross_encoder(golden):
    folder = golden("task-rerank")
    model = CrossEncoder(model_name=str(folder), max_length=20, prompts={"web": "find: "}, tokenizer_args={})
    want = model.predict([("find: a", "b")])
    assert model.predict([("a", "b")], "web") == model.predict(sentences=[("a", "b")], prompt="find: ") == want
    assert model.rank("a", ["b"], prompt_name="web")[0]["score"] == pytest.approx(float(want[0]))
    assert model.max_length == model.max_seq_length == 20
    model.max_length = 5
    assert model.predict(("a b c d e f g", "h")) == CrossEncoder(folder, max_length=5).predict(("a b c d e f g", "h"))
    assert len(model.rank("a", ["b", "c"], num_workers=2, convert_to_tensor=True, activation_fct=identity)) == 2
    assert model.predict(np.array(["a", "b"])).shape == () and model.predict(np.array([["a", "b"]])).shape == (1,)
    for call in (lambda: model.predict([("a", "b")], unknown=1), lambda: CrossEncoder(folder, unknown=1)):
        with pytest.raises(TypeError, match="unknown"):
            call()


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


@pytest.mark.parametrize("name", ["gliner-deberta", "gliner-token"])
def test_gliner(golden, name):
    model, given = GLiNER(golden(name)), answers(name)
    for i, options in enumerate(given["options"]):
        rows = model.inference(texts(given["cases"]), given["labels"], **options)
        for case, got in zip(given["cases"], rows):
            want = case["found"][i]
            fields = ("start", "end", "text", "label")
            assert [[e[f] for f in fields] for e in got] == [[e[f] for f in fields] for e in want]
            assert all(abs(a["score"] - b["score"]) <= TOLERANCE for a, b in zip(got, want))
        assert model.predict_entities(given["cases"][0]["text"], given["labels"], **options) == rows[0]
    # Descriptions stand for labels, and each text may have labels of its own.
    text, labels = given["cases"][0]["text"], given["labels"]
    described = model.predict_entities(text, {label.upper(): label for label in labels}, **options)
    assert [e["label"] for e in described] == [e["label"].upper() for e in rows[0]]
    own = [labels[:2], {"x": labels[0]}]
    found = model.inference([text, text], own, **options)
    assert found == [model.predict_entities(text, labels, **options) for labels in own]
    assert model.predict_entities(text, labels[0], **options) == model.predict_entities(text, labels[:1], **options)
    for labels in ([], [["a"], ["b"]], {"a": "c", "b": "c"}):
        with pytest.raises(InputError):
            model.predict_entities("a", labels)
    with pytest.raises(InputError, match="threshold"):
        model.predict_entities("a", ["b"], threshold=1.5)


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
    assert model.decode(few) == [model.decode(row) for row in few] and len(model.decode(few[:1])) == 1
    sparse = list(SparseTextEmbedding(str(golden(name))).embed(iter(texts(given))))
    assert len(sparse) == len(given) and (sparse[2].as_dict().keys() == set(np.flatnonzero(dense[2]).tolist()))


def test_sparse_vectors(golden):
    model = SparseEncoder(golden("task-sparse"))
    one, two = model.encode("the cat sat"), model.encode(["the cat sat", "a man"])
    assert one.shape == (model.get_embedding_dimension(),) and two.shape == (2, *one.shape)
    assert (one.to_dense() == two.to_dense()[0]).all() and (two[0].data == one.data).all()
    dense = two.to_dense()
    assert (model.encode("the cat sat", convert_to_sparse_tensor=False) == dense[0]).all()
    # Lists of rows, arrays and matrices are the same to the similarity functions.
    for given in (two, list(two), dense, list(dense)):
        assert np.allclose(model.similarity(given, two), dense @ dense.T, atol=1e-4)
        assert np.allclose(model.similarity_pairwise(given, two), (dense**2).sum(1), atol=1e-4)
    cosine = SparseEncoder(golden("task-sparse"), similarity_fn_name="cosine")
    assert np.allclose(np.diag(cosine.similarity(two, two)), 1, atol=1e-6)
    assert np.allclose(cosine.similarity_pairwise(two, two[::-1]), cosine.similarity(two[0], two[1])[0, 0], atol=1e-6)
    shared = SparseEncoder.intersection(two[0], two[1])
    assert shared.shape == one.shape and np.allclose(shared.to_dense(), dense[0] * dense[1])
    assert np.allclose(SparseEncoder.intersection(one, two).to_dense(), dense[0] * dense)
    with_prompt = SparseEncoder(golden("task-sparse"), prompts={"query": "the "})
    assert (with_prompt.encode_query("cat sat").data == one.data).all()
    assert (with_prompt.encode_document("the cat sat").data == one.data).all()
    with pytest.raises(InputError, match="max_active_dims"):
        model.encode("a", max_active_dims=0)


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


def test_arguments_of_the_multi_vector_encoder(golden):
    model = MultiVectorEncoder(golden("task-colbert-native"))
    assert model.prompts["query"] == "[Q] " and model.similarity_fn_name == "maxsim"
    query, document = model.encode_query("the cat"), model.encode_document("the cat")
    assert (model.encode(["the cat"], "query", task="query")[0] == query).all() and query.shape != document.shape
    # A prompt comes after the marker, which the engine inserts.
    assert (model.encode_query("cat", prompt="[Q] the ") == query).all()
    with pytest.raises(InputError, match="marker"):
        model.encode_query("cat", prompt="the ")
    mean = MultiVectorEncoder(golden("task-colbert-native"), similarity_fn_name="meanmaxsim")
    assert np.allclose(mean.similarity(query, document) * len(query), model.similarity(query, document), atol=1e-5)


def test_text_embedding(golden):
    model = TextEmbedding(str(golden("st-max")), lazy_load=True)
    rows = model.embed(f"text {i}" for i in range(5))
    assert not isinstance(rows, (list, np.ndarray))
    rows = list(rows)
    # L2-normalized only where the model's files say so.
    assert len(rows) == 5 and (np.array(rows) == model.model.encode([f"text {i}" for i in range(5)])).all()
    assert abs(np.linalg.norm(next(TextEmbedding(str(golden("st-prompts"))).embed("a"))) - 1) < 1e-6
    assert (next(model.query_embed("text 3")) == rows[3]).all() and len(list(model.passage_embed(texts=["a"]))) == 1
    assert model.embedding_size == rows[0].shape[0] == TextEmbedding.get_embedding_size(str(golden("st-max")))
    assert model.token_count(["text 3", "a"]) == sum(len(model.model.tokenize([t])["input_ids"][0]) for t in ("text 3", "a"))
    assert "minilm" in [entry["short_name"] for entry in TextEmbedding.list_supported_models()]


def test_devices_of_fastembed():
    chosen = {
        "cpu": [{"cuda": False}, {"providers": ["CPUExecutionProvider"]}, {"providers": [("CPUExecutionProvider", {})]}],
        "cuda": [{"cuda": True}, {"cuda": "cuda"}],
        "cuda:3": [{"cuda": True, "device_ids": [3]}, {"providers": [("CUDAExecutionProvider", {"device_id": 3})]}],
        None: [{}, {"cuda": "auto"}],
    }
    for device, options in chosen.items():
        for given in options:
            assert TextEmbedding(lazy_load=True, **given)._arguments["device"] == device, given
    with pytest.raises(InputError, match="Tensorrt"):
        TextEmbedding(lazy_load=True, providers=["TensorrtExecutionProvider"])


def test_sparse_embedding_from_weights():
    assert SparseEmbedding.from_dict({3: 0.5, 7: 1.0}).as_dict() == {3: 0.5, 7: 1.0}
    assert len(SparseEmbedding.from_dict({}).indices) == 0


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
