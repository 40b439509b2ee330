"""openai: embeddings and models."""

import asyncio

import httpx
import numpy as np
import openai
import pytest
from conftest import TEXTS, URL, same


def test_models(client):
    models = {model.id: model for model in client.models.list()}
    assert {"minilm", "smollm", "reranker"} <= set(models)
    assert client.models.retrieve("minilm") == models["minilm"]
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


# The library requests base64 by default and decodes it.
@pytest.mark.parametrize("kind", ["float", "base64", None])
def test_the_vectors_are_teis(client, vectors, kind):
    extra = {} if kind is None else {"encoding_format": kind}
    answer = client.embeddings.create(model="minilm", input=TEXTS, **extra)
    assert [item.index for item in answer.data] == [0, 1, 2]
    if kind == "base64":
        import base64

        got = [np.frombuffer(base64.b64decode(item.embedding), dtype="<f4") for item in answer.data]
    else:
        got = [item.embedding for item in answer.data]
    same(got, vectors)
    assert answer.model == "minilm"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3 * 5


def test_one_text_and_async(client, vectors):
    one = client.embeddings.create(model="minilm", input=TEXTS[0]).data
    assert len(one) == 1
    same(one[0].embedding, vectors[0])

    async def many():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(client.embeddings.create(model="minilm", input=text) for text in TEXTS * 8))

    got = asyncio.run(many())
    same([answer.data[0].embedding for answer in got], np.concatenate([vectors] * 8))


def test_dimensions_cut_and_scale(client, vectors):
    got = client.embeddings.create(model="minilm", input=TEXTS, dimensions=64)
    cut = vectors[:, :64] / np.linalg.norm(vectors[:, :64], axis=1, keepdims=True)
    same([item.embedding for item in got.data], cut)


def test_token_ids(client, vectors):
    tokens = httpx.post(URL + "/tokenize", json={"inputs": TEXTS, "model": "minilm"}).json()
    ids = [[token["id"] for token in text] for text in tokens]
    got = client.embeddings.create(model="minilm", input=ids)
    same([item.embedding for item in got.data], vectors)
    same(client.embeddings.create(model="minilm", input=ids[1]).data[0].embedding, vectors[1])


@pytest.mark.parametrize(
    "bad", [{"input": []}, {"input": "x", "dimensions": 0}, {"input": "x", "dimensions": 10_000}, {"input": "x", "encoding_format": "hex"}]
)
def test_bad_requests(client, bad):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="minilm", **bad)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.message


def test_a_model_for_something_else(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="smollm", input="x")
    assert caught.value.param == "model"
