"""Fixtures: the servers that `run` started, and reference answers."""

import os

import httpx
import numpy as np
import openai
import pytest

os.environ.pop("OPENAI_API_KEY", None)

URL = os.environ["SCONCE_URL"]
LOCKED_URL = os.environ["SCONCE_LOCKED_URL"]
LOCKED_KEY = os.environ["SCONCE_LOCKED_KEY"]

TEXTS = ["A man is eating food.", "Someone is having a meal.", "The stock market fell today."]
QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="session")
def url():
    return URL


@pytest.fixture(scope="session")
def client():
    with openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def locked():
    with openai.OpenAI(base_url=LOCKED_URL + "/v1", api_key=LOCKED_KEY, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def vectors():
    """The embeddings of TEXTS from TEI's API; every other client must get the same."""
    answer = httpx.post(URL + "/embed", json={"inputs": TEXTS, "model": "minilm"}, timeout=60)
    answer.raise_for_status()
    vectors = np.array(answer.json(), dtype=np.float32)
    assert vectors.shape == (3, 384)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    # Sanity check: the first two texts are similar, the third is not.
    assert vectors[0] @ vectors[1] > 0.5 > vectors[0] @ vectors[2]
    return vectors


def same(a, b):
    """Embeddings from different batches differ by rounding only."""
    a, b = np.asarray(a, dtype=np.float32), np.asarray(b, dtype=np.float32)
    assert a.shape == b.shape
    assert np.abs(a - b).max() < 2e-6, np.abs(a - b).max()


@pytest.fixture(scope="session")
def greedy(client):
    """The greedy answer to QUESTION; every client must get the same."""
    answer = client.chat.completions.create(model="smollm", messages=QUESTION, temperature=0, max_tokens=24)
    assert len(answer.choices[0].message.content) > 10
    return answer.choices[0].message.content
