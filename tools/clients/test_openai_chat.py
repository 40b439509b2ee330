"""openai: chat completions."""

import asyncio
import json
import math

import openai
import pytest
from conftest import QUESTION, URL
from pydantic import BaseModel


def ask(client, **more):
    return client.chat.completions.create(**{"model": "smollm", "messages": QUESTION, "temperature": 0, "max_tokens": 24, **more})


def text(answer):
    return answer.choices[0].message.content


def test_an_answer(client, greedy):
    answer = ask(client)
    assert text(answer) == greedy
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == "smollm"
    assert answer.system_fingerprint.startswith("sconce-")
    choice = answer.choices[0]
    assert (choice.index, choice.message.role, choice.finish_reason) == (0, "assistant", "length")
    usage = answer.usage
    assert usage.completion_tokens == 24 and usage.total_tokens == usage.prompt_tokens + 24
    # The prefix cache has all but the last tokens of a repeated prompt.
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_streaming_is_the_same(client, greedy):
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks[:-1]]
    assert "".join(pieces) == greedy and sum(map(bool, pieces)) > 5
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in ask(client, stream=True))


def test_async_together(greedy):
    async def many():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0) as client:

            async def streamed():
                return "".join([chunk.choices[0].delta.content or "" async for chunk in await ask(client, stream=True)])

            async def whole():
                return text(await ask(client))

            return await asyncio.gather(*[streamed(), whole()] * 4)

    assert asyncio.run(many()) == [greedy] * 8


def test_seeds(client):
    a, b, c = (text(ask(client, temperature=1.0, seed=seed)) for seed in (7, 7, 8))
    assert a == b != c
    # Without a seed, answers differ.
    assert len({text(ask(client, temperature=1.5)) for _ in range(3)}) > 1


def test_several_answers(client):
    answer = ask(client, n=3, temperature=1.0, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens > 24
    streamed = ["", "", ""]
    for chunk in ask(client, n=3, temperature=1.0, seed=1, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in answer.choices]


def test_stop(client, greedy):
    word = greedy.split()[3]
    answer = ask(client, stop=[word, "never said"])
    assert text(answer) == greedy[: greedy.index(word)]
    assert answer.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, stop=word, stream=True))
    assert streamed == text(answer)


def test_logprobs(client, greedy):
    content = ask(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(content) == 24
    assert "".join(token.token for token in content) == greedy
    for token in content:
        assert bytes(token.bytes).decode(errors="replace") == token.token
        # Greedy sampling takes the most likely token, which is the first of the three.
        assert [top.logprob for top in token.top_logprobs] == sorted((top.logprob for top in token.top_logprobs), reverse=True)
        assert token.top_logprobs[0].token == token.token and len(token.top_logprobs) == 3
        assert math.isclose(token.top_logprobs[0].logprob, token.logprob, abs_tol=1e-5) and token.logprob <= 0
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-4
    streamed = [
        token
        for chunk in ask(client, logprobs=True, top_logprobs=3, stream=True)
        for token in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [token.token for token in streamed] == [token.token for token in content]
    assert ask(client).choices[0].logprobs is None


def test_logit_bias_and_penalties(client, greedy):
    first = ask(client, logprobs=True).choices[0].logprobs.content[0].token
    ids = client.completions.create(model="smollm", prompt="x", max_tokens=1)
    assert ids  # responses have no token ids; find the one to ban by trying
    import httpx

    tokens = httpx.post(URL + "/tokenize", json={"inputs": first, "model": "smollm", "add_special_tokens": False}).json()
    banned = ask(client, logit_bias={str(tokens[0][0]["id"]): -100})
    assert not text(banned).startswith(first)
    assert text(ask(client, frequency_penalty=2.0, max_tokens=48)) != text(ask(client, max_tokens=48))


def test_json_object(client):
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=200, seed=3, temperature=0.7)
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text(answer)), dict)
    assert text(answer).lstrip().startswith("{")


class Colours(BaseModel):
    first: str
    count: int


SCHEMA = {
    "type": "object",
    "properties": {"first": {"enum": ["red", "green", "blue"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["first", "count"],
    "additionalProperties": False,
}


def test_json_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "colours", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        answer = ask(client, response_format=form, temperature=1.0, seed=seed, max_tokens=200)
        read = json.loads(text(answer))
        assert read["first"] in ["red", "green", "blue"] and 1 <= read["count"] <= 9 and len(read) == 2


def test_parse(client):
    schema = Colours
    answer = client.chat.completions.parse(model="smollm", messages=QUESTION, response_format=schema, temperature=0, max_tokens=200)
    message = answer.choices[0].message
    assert isinstance(message.parsed, Colours)


def test_structured_outputs(client):
    answer = ask(client, extra_body={"structured_outputs": {"choice": ["perhaps", "never"]}})
    assert text(answer) in ["perhaps", "never"]
    answer = ask(client, extra_body={"structured_outputs": {"regex": "[0-9]{4}-[0-9]{2}"}})
    assert len(text(answer)) == 7 and text(answer)[4] == "-"


def test_parts_and_developers(client, greedy):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Name three colours."}]}]
    assert text(ask(client, messages=parts)) == greedy
    system, developer = (
        text(ask(client, messages=[{"role": role, "content": "You speak French."}, *QUESTION])) for role in ("system", "developer")
    )
    assert system == developer != greedy


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"stop": list("abcde")}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]}, "messages[0].content"),
        ({"logprobs": True, "top_logprobs": 50}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f", "parameters": {}}]}, "functions"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}}, None),
        ({"max_tokens": "many"}, None),
    ],
)
def test_bad_requests(client, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **more)
    assert caught.value.type == "invalid_request_error" and caught.value.message
    assert param is None or caught.value.param == param


def test_too_long(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "colour " * 20_000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, max_tokens=1_000_000)
    assert caught.value.code == "context_length_exceeded"


def test_no_such_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model="gpt-5")
    assert caught.value.code == "model_not_found" and "gpt-5" in caught.value.message


def test_fields_without_effect_are_told(client):
    answer = client.chat.completions.with_raw_response.create(
        model="smollm", messages=QUESTION, max_tokens=1, extra_body={"no_such_field": 1}
    )
    assert answer.headers["x-sconce-ignored"] == "no_such_field"
    assert answer.headers["x-request-id"]
