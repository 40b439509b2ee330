"""anthropic: messages."""

import asyncio
import json

import anthropic
import httpx
import pytest
from conftest import LOCKED_KEY, LOCKED_URL, QUESTION, URL
from pydantic import BaseModel

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@pytest.fixture(scope="module")
def claude():
    with anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120) as client:
        yield client


def greedy_options(**more):
    # The client's methods have no parameter for the temperature.
    return {"model": "smollm", "messages": QUESTION, "max_tokens": 24, "extra_body": {"temperature": 0}, **more}


def ask(client, **more):
    return client.messages.create(**greedy_options(**more))


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message(claude, greedy):
    message = ask(claude)
    assert text(message) == greedy
    assert message.id.startswith("msg_") and message._request_id
    assert (message.type, message.role, message.model) == ("message", "assistant", "smollm")
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    usage = message.usage
    assert usage.output_tokens == 24 and usage.output_tokens_details.thinking_tokens == 0
    again = ask(claude).usage
    # The prefix cache has all but the last tokens of a repeated prompt.
    assert again.cache_read_input_tokens > 0 and again.cache_creation_input_tokens == 0
    assert again.input_tokens + again.cache_read_input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_streaming_is_the_same(claude, greedy):
    with claude.messages.stream(**greedy_options()) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert text(final) == greedy and final.stop_reason == "max_tokens" and final.usage.output_tokens == 24
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and kinds.count("text") > 5
    raw = list(ask(claude, stream=True))
    assert [event.type for event in raw][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(event.delta.text for event in raw if event.type == "content_block_delta") == greedy
    assert raw[-2].delta.stop_reason == "max_tokens"


def test_async_together(greedy):
    async def many():
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0) as client:

            async def streamed():
                async with client.messages.stream(**greedy_options()) as stream:
                    return "".join([part async for part in stream.text_stream])

            async def whole():
                return text(await ask(client))

            return await asyncio.gather(*[streamed(), whole()] * 4)

    assert asyncio.run(many()) == [greedy] * 8


def test_system_prompts_and_blocks(claude, greedy):
    blocks = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"], "cache_control": {"type": "ephemeral"}}]}]
    assert text(ask(claude, messages=blocks)) == greedy
    whole = ask(claude, system="You speak French.")
    parts = ask(claude, system=[{"type": "text", "text": "You speak French."}])
    assert text(whole) == text(parts) != greedy


def test_stop_sequences(claude, greedy):
    word = greedy.split()[3]
    message = ask(claude, stop_sequences=["never said", word])
    assert text(message) == greedy[: greedy.index(word)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)


def test_count_tokens(claude):
    usage = ask(claude, system="You speak French.").usage
    counted = claude.messages.count_tokens(model="smollm", messages=QUESTION, system="You speak French.")
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    with_tools = claude.messages.count_tokens(model="smollm", messages=QUESTION, tools=[WEATHER])
    assert with_tools.input_tokens > counted.input_tokens


def test_a_tool_that_is_demanded(claude):
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    asked = {"messages": ASKED, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 128}
    message = ask(claude, **asked)
    (call,) = message.content
    assert message.stop_reason == "tool_use" and call.type == "tool_use" and call.id.startswith("toolu_")
    assert set(call.input) == {"city", "unit"} and call.input["unit"] in ["celsius", "fahrenheit"]
    with claude.messages.stream(**greedy_options(**asked)) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = stream.get_final_message().content
    assert len(parts) > 3 and json.loads("".join(parts)) == streamed.input == call.input
    # The result goes back, with the call.
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "It is raining, 12 degrees."}]
    turns = [*ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    answer = ask(claude, messages=turns, tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=40)
    assert text(answer) and answer.stop_reason in ("end_turn", "max_tokens")
    sunny = [{**results[0], "content": [{"type": "text", "text": "It is sunny, 40 degrees."}]}]
    other = ask(claude, messages=[*turns[:-1], {"role": "user", "content": sunny}], tools=[WEATHER], tool_choice={"type": "none"}, max_tokens=40)
    assert text(other) != text(answer), "the model has read the result"


def test_any_tool(claude):
    nothing = {"name": "get_time", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
    for seed in range(3):
        message = claude.messages.create(
            model="smollm",
            messages=ASKED,
            tools=[WEATHER, nothing],
            tool_choice={"type": "any"},
            max_tokens=400,
            extra_body={"temperature": 1, "seed": seed},
        )
        assert message.stop_reason == "tool_use", seed
        for call in message.content:
            assert call.type == "tool_use" and set(call.input) == ({"city", "unit"} if call.name == "get_weather" else set())


class Colours(BaseModel):
    first: str
    count: int


def test_structured_outputs(claude):
    parsed = claude.messages.parse(model="smollm", messages=QUESTION, max_tokens=200, output_format=Colours, extra_body={"temperature": 0})
    assert isinstance(parsed.parsed_output, Colours)


def test_thinking_is_accepted(claude, greedy):
    for thinking in [{"type": "disabled"}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 16}]:
        message = ask(claude, thinking=thinking)
        # This model does not reason.
        assert text(message) == greedy and {block.type for block in message.content} == {"text"}


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "Red,"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a"}}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": list("abcde")}, "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 24}}, "thinking.budget_tokens"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
    ],
)
def test_bad_requests(claude, more, named):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, **more)
    assert caught.value.type == "invalid_request_error" and caught.value.request_id
    assert caught.value.body["error"]["message"].startswith(named)


def test_a_prompt_that_is_too_long(claude):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, messages=[{"role": "user", "content": "colour " * 20_000}])
    assert "prompt is too long" in caught.value.message
    # A limit beyond the context is none.
    assert ask(claude, max_tokens=1_000_000, stop_sequences=[" "]).stop_reason == "stop_sequence"


def test_no_such_model(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(claude, model="claude-sonnet-4-5")
    assert caught.value.type == "not_found_error" and "claude-sonnet-4-5" in caught.value.message


def test_keys():
    locked = {"base_url": LOCKED_URL, "max_retries": 8}
    for credentials in ({"api_key": LOCKED_KEY}, {"auth_token": LOCKED_KEY}):
        with anthropic.Anthropic(**locked, **credentials) as client:
            assert ask(client).usage.output_tokens == 24
    with pytest.raises(anthropic.AuthenticationError) as caught:
        ask(anthropic.Anthropic(**locked, api_key="wrong"))
    assert caught.value.type == "authentication_error"
    body = {"model": "smollm", "max_tokens": 1, "messages": QUESTION}
    head = {"x-api-key": LOCKED_KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    assert httpx.post(LOCKED_URL + "/v1/messages?beta=true", json=body, headers=head, timeout=60).status_code in (200, 429)
    large = httpx.post(URL + "/v1/messages", json={**body, "messages": [{"role": "user", "content": "x" * 3_000_000}]})
    assert large.status_code == 413 and large.json()["error"]["type"] == "request_too_large"


def test_one_at_a_time():
    with anthropic.Anthropic(base_url=LOCKED_URL, api_key=LOCKED_KEY, max_retries=0) as client:
        story = [{"role": "user", "content": "Tell a very long story."}]
        stream = client.messages.create(model="smollm", messages=story, max_tokens=1500, stream=True)
        next(iter(stream))
        with pytest.raises(anthropic.RateLimitError) as caught:
            ask(client)
        assert caught.value.type == "rate_limit_error" and int(caught.value.response.headers["retry-after"]) >= 1
        stream.close()
        with client.with_options(max_retries=8) as patient:
            assert ask(patient).usage.output_tokens == 24
