"""cohere: rerank, both API versions, and embeddings."""

import base64
import json
import struct
from pathlib import Path

import cohere
import httpx
import numpy as np
import pytest
from conftest import TEXTS as EMBEDDED
from conftest import URL, same

GOLDEN = Path(__file__).resolve().parents[2] / "crates/testkit/goldens/task-rerank"
CASES = json.loads((GOLDEN / "golden.json").read_text())
# Documents that the model reads without truncation.
KEPT = [0, 1, 2]
QUERY, TEXTS = CASES["queries"][0], [CASES["documents"][i] for i in KEPT]


def golden(name):
    """Reads an array of the golden."""
    data = (GOLDEN / "golden.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin : 8 + size + end])


@pytest.fixture(scope="module")
def ranks():
    """The scores of TEI's API, which are those of sentence-transformers."""
    answer = httpx.post(URL + "/rerank", json={"query": QUERY, "texts": TEXTS, "model": "reranker"})
    answer.raise_for_status()
    ranks = [(rank["index"], rank["score"]) for rank in answer.json()]
    want = [golden("sigmoid")[i] for i in KEPT]
    assert [index for index, _ in ranks] == sorted(range(len(TEXTS)), key=lambda i: -want[i])
    assert all(abs(score - want[index]) < 1e-5 for index, score in ranks)
    return ranks


@pytest.mark.parametrize("client", [cohere.Client, cohere.ClientV2])
def test_ranks(client, ranks):
    client = client(api_key="none", base_url=URL)
    answer = client.rerank(model="reranker", query=QUERY, documents=TEXTS)
    got = [(result.index, result.relevance_score) for result in answer.results]
    assert [index for index, _ in got] == [index for index, _ in ranks]
    assert all(abs(a - b) < 1e-5 for (_, a), (_, b) in zip(got, ranks))
    assert answer.id
    top = client.rerank(model="reranker", query=QUERY, documents=TEXTS, top_n=1).results
    assert [(result.index, result.relevance_score) for result in top] == got[:1]


def test_documents_come_back(ranks):
    client = cohere.Client(api_key="none", base_url=URL)
    answer = client.rerank(model="reranker", query=QUERY, documents=[{"text": text} for text in TEXTS], return_documents=True)
    assert [result.document.text for result in answer.results] == [TEXTS[index] for index, _ in ranks]


def test_embeddings(vectors):
    client = cohere.ClientV2(api_key="none", base_url=URL)
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = client.embed(model="minilm", input_type="search_document", texts=EMBEDDED, embedding_types=types)
    made = answer.embeddings
    same(made.float_, vectors)
    same([np.frombuffer(base64.b64decode(text), dtype="<f4") for text in made.base64], vectors)
    int8 = np.array(made.int8, dtype=np.float32)
    assert np.array_equal(int8 + 128, np.array(made.uint8))
    assert np.abs(int8).max() > 100 and ((int8 * vectors).sum(1) / np.linalg.norm(int8, axis=1)).min() > 0.99
    bits = np.packbits(vectors > 0, axis=1)
    assert np.array_equal(bits, made.ubinary) and np.array_equal(bits.astype(int) - 128, made.binary)
    assert (answer.texts, answer.meta.api_version.version) == (EMBEDDED, "2")
    assert answer.meta.billed_units.input_tokens > 10
    inputs = [{"content": [{"type": "text", "text": text}]} for text in EMBEDDED]
    short = client.embed(model="minilm", input_type="clustering", inputs=inputs, output_dimension=64)
    assert np.array(short.embeddings.float_).shape == (3, 64) and short.embeddings.int8 is None
    with pytest.raises(cohere.BadRequestError):
        client.embed(model="minilm", input_type="search_query", texts=["word " * 2000], truncate="NONE")


def test_errors():
    client = cohere.ClientV2(api_key="none", base_url=URL)
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="no-such-model", query=QUERY, documents=TEXTS)
    with pytest.raises(cohere.BadRequestError):
        client.rerank(model="reranker", query=QUERY, documents=[])
