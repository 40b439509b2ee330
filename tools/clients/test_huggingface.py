"""huggingface_hub's InferenceClient."""

import asyncio

import pytest
from conftest import QUESTION, TEXTS, URL, same
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError


def test_feature_extraction(vectors):
    client = InferenceClient()
    same(client.feature_extraction(TEXTS[0], model=URL + "/embed")[0], vectors[0])
    same(client.feature_extraction(TEXTS, model=URL + "/embed"), vectors)
    asyncs = AsyncInferenceClient()
    same(asyncio.run(asyncs.feature_extraction(TEXTS[2], model=URL + "/embed"))[0], vectors[2])


def test_feature_extraction_at_the_root(vectors):
    same(InferenceClient(model=URL).feature_extraction(TEXTS), vectors)


def test_sentence_similarity(vectors):
    got = InferenceClient().sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:], model=URL + "/similarity")
    want = vectors[1:] @ vectors[0]
    assert len(got) == 2 and abs(got - want).max() < 1e-5


def test_chat_completion(greedy):
    client = InferenceClient(base_url=URL + "/v1")
    ask = dict(model="smollm", temperature=0.0, max_tokens=24)
    answer = client.chat_completion(QUESTION, **ask)
    assert answer.choices[0].message.content == greedy
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat_completion(QUESTION, stream=True, **ask))
    assert streamed == greedy


def test_errors():
    with pytest.raises(HfHubHTTPError) as caught:
        InferenceClient().feature_extraction("x", model=URL + "/embed", prompt_name="no-such-prompt")
    assert caught.value.response.status_code == 422
