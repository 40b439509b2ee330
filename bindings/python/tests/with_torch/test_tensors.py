"""Tensors in and out, where torch is installed (.ci/long)."""

import numpy as np
import torch

from sconce import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder

TEXTS = ["the cat sat on the mat", "a man is eating food", "hello world"]


def test_dense_embeddings(golden):
    model = SentenceTransformer(golden("st-max"))
    want = model.encode(TEXTS)
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert tensor.dtype == torch.float32 and (tensor.numpy() == want).all()
    rows = model.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(rows, list) and all((row.numpy() == one).all() for row, one in zip(rows, want))
    assert torch.is_tensor(model.encode("a", convert_to_numpy=False))
    for given in (tensor, rows):
        similarity = model.similarity(given, given)
        assert torch.is_tensor(similarity) and np.allclose(similarity, model.similarity(want, want), atol=1e-6)
        assert torch.is_tensor(model.similarity_pairwise(given, given))
    assert torch.from_numpy(want).data_ptr() == want.ctypes.data


def test_cross_encoder(golden):
    model, pairs = CrossEncoder(golden("task-rerank")), [("a", "b"), ("c", "d")]
    want = model.predict(pairs)
    assert (model.predict(pairs, convert_to_tensor=True).numpy() == want).all()
    scores = model.predict(pairs, convert_to_numpy=False)
    assert isinstance(scores, list) and torch.is_tensor(scores[0])
    logits = model.predict(pairs, activation_fn=torch.nn.Identity())
    assert np.allclose(model.predict(pairs, activation_fn=torch.sigmoid), want, atol=1e-6)
    assert np.allclose(model.predict(pairs, activation_fn=torch.nn.Tanh()), np.tanh(logits), atol=1e-6)


def test_the_activation_of_the_files_may_be_any_of_torch(golden, tmp_path):
    import json
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(golden("task-rerank"), folder)
    path = "torch.nn.modules.activation.Tanh"
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"activation_fn": path}))
    model = CrossEncoder(folder)
    assert isinstance(model.activation_fn, torch.nn.Tanh)
    logits = model.predict(("a", "b"), activation_fn=torch.nn.Identity())
    assert np.allclose(model.predict(("a", "b")), np.tanh(logits), atol=1e-6)


def test_sparse_embeddings(golden):
    model = SparseEncoder(golden("task-sparse"))
    matrix = model.encode(TEXTS)
    tensor = model.encode(TEXTS, convert_to_tensor=True)
    assert tensor.is_sparse and (tensor.to_dense().numpy() == matrix.to_dense()).all()
    assert not model.encode(TEXTS, convert_to_tensor=True, convert_to_sparse_tensor=False).is_sparse
    one = model.encode(TEXTS[0], convert_to_tensor=True)
    assert one.shape == (model.get_embedding_dimension(),)
    for given in (tensor, [model.encode(text, convert_to_tensor=True) for text in TEXTS]):
        similarity = model.similarity(given, given)
        assert torch.is_tensor(similarity) and np.allclose(similarity, model.similarity(matrix, matrix), atol=1e-5)
        assert torch.is_tensor(model.similarity_pairwise(given, given))
    assert model.decode(tensor) == model.decode(matrix) and model.decode(one) == model.decode(matrix)[0]
    shared = SparseEncoder.intersection(one, tensor)
    assert shared.is_sparse and np.allclose(shared.to_dense(), matrix.to_dense()[0] * matrix.to_dense())
    assert SparseEncoder.sparsity(tensor) == SparseEncoder.sparsity(matrix)


def test_multi_vector_embeddings(golden):
    model = MultiVectorEncoder(golden("task-colbert-native"))
    want = model.encode_document(TEXTS)
    tensors = model.encode_document(TEXTS, convert_to_numpy=False)
    assert all((a.numpy() == b).all() for a, b in zip(tensors, want))
    similarity = model.similarity(tensors, tensors)
    assert torch.is_tensor(similarity) and np.allclose(similarity, model.similarity(want, want), atol=1e-5)
    assert torch.is_tensor(model.similarity_pairwise(tensors, tensors))
