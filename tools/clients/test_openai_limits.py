"""openai: API keys, limits, and clients that disconnect."""

import time

import httpx
import openai
import pytest
from conftest import LOCKED_KEY, LOCKED_URL, QUESTION, URL


def long_answer(client):
    return client.chat.completions.create(
        model="smollm", messages=QUESTION, max_tokens=1500, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )


def short(client):
    return client.chat.completions.create(model="smollm", messages=QUESTION, max_tokens=2)


def test_keys(locked):
    assert locked.models.list().data
    for key in ("wrong", "s3creT", LOCKED_KEY + "x"):
        with pytest.raises(openai.AuthenticationError) as caught:
            openai.OpenAI(base_url=LOCKED_URL + "/v1", api_key=key, max_retries=0).models.list()
        assert caught.value.code == "invalid_api_key"
    assert httpx.post(LOCKED_URL + "/v1/chat/completions", json={}).status_code == 401
    assert httpx.get(LOCKED_URL + "/health").status_code == 200


def test_one_at_a_time_and_a_client_who_leaves(locked):
    stream = long_answer(locked)
    next(stream)
    with pytest.raises(openai.RateLimitError) as caught:
        short(locked)
    assert caught.value.code == "rate_limit_exceeded" and int(caught.value.response.headers["retry-after"]) >= 1
    # When a client disconnects, its request is cancelled and its concurrency permit is free at
    # once.
    stream.close()
    left = time.monotonic()
    while True:
        try:
            short(locked)
            break
        except openai.RateLimitError:
            assert time.monotonic() - left < 2, "the answer of a client who left is still being written"
            time.sleep(0.02)


def test_a_retry_is_the_clients_own(locked):
    # The library retries after a 429.
    patient = locked.with_options(max_retries=8)
    stream = long_answer(locked)
    next(stream)
    stream.close()
    assert short(patient).usage.completion_tokens == 2


def test_bodies_that_cannot_be(url):
    post = lambda **how: httpx.post(URL + "/v1/chat/completions", **how)
    wrong = post(content=b"{", headers={"content-type": "application/json"})
    assert wrong.status_code == 400 and wrong.json()["error"]["type"] == "invalid_request_error"
    assert post(content=b"[" * 100_000, headers={"content-type": "application/json"}).status_code == 400
    assert post(content=b"x" * 3_000_000, headers={"content-type": "application/json"}).status_code == 413
    assert post(content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert httpx.get(URL + "/v1/chat/completions").status_code == 405
    assert httpx.get(URL + "/v1/nothing").json()["error"]["message"]
