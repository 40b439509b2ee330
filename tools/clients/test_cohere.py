"""cohere: rerank, both versions."""

import cohere
import httpx
import pytest
from conftest import TEXTS, URL

QUERY = "Who is eating?"


@pytest.fixture(scope="module")
def ranks():
    """As TEI gives them."""
    answer = httpx.post(URL + "/rerank", json={"query": QUERY, "texts": TEXTS, "model": "reranker"})
    answer.raise_for_status()
    ranks = [(rank["index"], rank["score"]) for rank in answer.json()]
    assert sorted(ranks, key=lambda rank: -rank[1]) == ranks and {index for index, _ in ranks} == {0, 1, 2}
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


def test_errors():
    client = cohere.ClientV2(api_key="none", base_url=URL)
    with pytest.raises(cohere.NotFoundError):
        client.rerank(model="no-such-model", query=QUERY, documents=TEXTS)
    with pytest.raises(cohere.BadRequestError):
        client.rerank(model="reranker", query=QUERY, documents=[])
