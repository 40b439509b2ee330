"""openai: completions."""

import httpx
import openai
import pytest
from conftest import URL

PROMPT = "Once upon a time, there was a"


def go_on(client, prompt=PROMPT, **more):
    return client.completions.create(**{"model": "smollm", "prompt": prompt, "temperature": 0, "max_tokens": 12, **more})


def test_prompts_in_every_form(client):
    answer = go_on(client)
    text = answer.choices[0].text
    assert answer.object == "text_completion" and text and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    tokens = httpx.post(URL + "/tokenize", json={"inputs": [PROMPT, "The sea"], "model": "smollm"}).json()
    ids = [[token["id"] for token in one] for one in tokens]
    assert answer.usage.prompt_tokens == len(ids[0])
    sea = go_on(client, "The sea").choices[0].text
    assert [c.text for c in go_on(client, [PROMPT, "The sea"]).choices] == [text, sea]
    assert go_on(client, ids[0]).choices[0].text == text
    assert [c.text for c in go_on(client, ids).choices] == [text, sea]


def test_the_default_length_is_openais(client):
    answer = client.completions.create(model="smollm", prompt=PROMPT, temperature=0)
    assert answer.usage.completion_tokens == 16


def test_streaming_is_the_same(client):
    whole = go_on(client, [PROMPT, "The sea"], n=2, seed=5, temperature=0.8)
    assert len({choice.text for choice in whole.choices}) == 4
    texts = [""] * 4
    chunks = list(go_on(client, [PROMPT, "The sea"], n=2, seed=5, temperature=0.8, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_echo_stop_and_logprobs(client):
    plain = go_on(client).choices[0].text
    assert go_on(client, echo=True).choices[0].text == PROMPT + plain
    word = plain.split()[2]
    assert go_on(client, stop=word).choices[0].text == plain[: plain.index(word)]
    logprobs = go_on(client, logprobs=2).choices[0].logprobs
    assert "".join(logprobs.tokens) == plain
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(12)]
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
        assert len(top) == 2 and max(top, key=top.get) == token and abs(top[token] - logprob) < 1e-5


@pytest.mark.parametrize(
    ("more", "param"),
    [({"suffix": "end"}, "suffix"), ({"best_of": 3}, "best_of"), ({"prompt": []}, "prompt"), ({"prompt": [[99_999_999]]}, None)],
)
def test_bad_requests(client, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        go_on(client, **more)
    assert param is None or caught.value.param == param
