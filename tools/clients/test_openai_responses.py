"""openai: responses."""

import asyncio
import json

import httpx
import openai
import pytest
from conftest import LOCKED_KEY, LOCKED_URL, QUESTION, URL
from pydantic import BaseModel

ASKED = QUESTION[0]["content"]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}
PARIS = "What is the weather in Paris, in celsius?"


def options(**more):
    return {"model": "smollm", "input": ASKED, "temperature": 0, "max_output_tokens": 24, **more}


def ask(client, **more):
    return client.responses.create(**options(**more))


def test_a_response(client, greedy):
    response = ask(client, metadata={"topic": "colours"}, user="me")
    assert response.output_text == greedy
    assert response.id.startswith("resp_") and (response.object, response.model) == ("response", "smollm")
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens"
    (message,) = response.output
    assert (message.type, message.role, message.content[0].type) == ("message", "assistant", "output_text")
    assert message.content[0].annotations == []
    assert response.metadata == {"topic": "colours"} and response.temperature == 0 and response.store
    usage = ask(client).usage
    assert usage.output_tokens == 24 and usage.total_tokens == usage.input_tokens + 24
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_streaming_is_the_same(client, greedy):
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(kinds[4:-4]) == {"output_text.delta"} and len(kinds) > 12
    assert "".join(event.delta for event in events[4:-4]) == greedy == events[-1].response.output_text
    # The response is stored when its last event arrives.
    assert client.responses.retrieve(events[-1].response.id).to_dict() == events[-1].response.to_dict()


def test_async_together(greedy):
    async def many():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0) as client:

            async def streamed():
                deltas = [event.delta async for event in await ask(client, stream=True) if event.type == "response.output_text.delta"]
                return "".join(deltas)

            async def whole():
                return (await ask(client)).output_text

            return await asyncio.gather(*[streamed(), whole()] * 4)

    assert asyncio.run(many()) == [greedy] * 8


def test_items_and_instructions(client, greedy):
    for items in (
        [{"role": "user", "content": ASKED}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]}],
    ):
        assert ask(client, input=items).output_text == greedy
    french = ask(client, instructions="You speak French.")
    assert french.output_text != greedy and french.instructions == "You speak French."
    system = ask(client, input=[{"role": "system", "content": "You speak French."}, {"role": "user", "content": ASKED}])
    assert system.output_text == french.output_text


def test_conversations_go_on(client):
    first = ask(client, input="My name is Ada.")
    second = ask(client, input="What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    turns = [{"role": "user", "content": "My name is Ada."}, *first.output, {"role": "user", "content": "What is my name?"}]
    whole = ask(client, input=turns, store=False)
    assert whole.output_text == second.output_text and whole.usage.input_tokens == second.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    (item,) = client.responses.input_items.list(second.id).data
    assert (item.role, item.content[0].text) == ("user", "What is my name?")
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, previous_response_id=second.id)
    assert caught.value.code == "previous_response_not_found" and caught.value.param == "previous_response_id"


def test_input_items_have_pages(client):
    response = ask(client, input=[{"role": "user", "content": f"{i}"} for i in range(5)])
    # The iterator follows the pages.
    listed = list(client.responses.input_items.list(response.id, limit=2, order="asc"))
    assert [item.content[0].text for item in listed] == list("01234")


def test_input_tokens(client):
    counted = client.responses.input_tokens.count(model="smollm", input=ASKED, instructions="You speak French.")
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == ask(client, instructions="You speak French.").usage.input_tokens


def test_a_function_that_is_demanded(client):
    asked = {"input": PARIS, "tools": [WEATHER], "parallel_tool_calls": False, "max_output_tokens": 128}
    demanded = {**asked, "tool_choice": {"type": "function", "name": "get_weather"}}
    response = ask(client, **demanded)
    (call,) = response.output
    assert response.status == "completed" and (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ["celsius", "fahrenheit"]
    with client.responses.stream(**options(**demanded)) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 3 and "".join(deltas) == call.arguments == final.output[0].arguments
    # The result goes back with the call, or with the id of the response alone.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It is raining, 12 degrees."}
    rest = {**asked, "tool_choice": "none", "max_output_tokens": 40}
    whole = ask(client, **{**rest, "input": [{"role": "user", "content": PARIS}, call, result]})
    stored = ask(client, **{**rest, "input": [result], "previous_response_id": response.id})
    assert whole.output_text and whole.output_text == stored.output_text
    sunny = {**result, "output": [{"type": "input_text", "text": "It is sunny, 40 degrees."}]}
    other = ask(client, **{**rest, "input": [sunny], "previous_response_id": response.id})
    assert other.output_text != stored.output_text, "the model has read the result"


def test_allowed_tools(client):
    other = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}, "strict": True}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    for seed in range(3):
        response = ask(client, input=PARIS, tools=[WEATHER, other], tool_choice=choice, temperature=1, extra_body={"seed": seed}, max_output_tokens=200)
        assert {call.name for call in response.output} == {"get_time"}


class Colours(BaseModel):
    first: str
    count: int


def test_structured_output(client):
    parsed = client.responses.parse(**options(text_format=Colours, max_output_tokens=200))
    assert isinstance(parsed.output_parsed, Colours)
    with client.responses.stream(**options(text_format=Colours, max_output_tokens=200)) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    schema = {"type": "object", "properties": {"first": {"enum": ["red", "green"]}}, "required": ["first"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "colours", "schema": schema, "strict": True}}
    response = ask(client, text=form, max_output_tokens=200)
    assert json.loads(response.output_text)["first"] in ["red", "green"] and response.text.format.name == "colours"
    assert ask(client, text={"format": {"type": "json_object"}}).output_text.lstrip().startswith("{")


def test_logprobs(client, greedy):
    response = ask(client, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response.output[0].content[0].logprobs
    assert "".join(token.token for token in logprobs) == greedy and all(len(token.top_logprobs) == 2 for token in logprobs)
    events = ask(client, include=["message.output_text.logprobs"], top_logprobs=2, stream=True)
    streamed = [token.token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    assert streamed == [token.token for token in logprobs]


def test_reasoning_is_accepted(client, greedy):
    response = ask(client, reasoning={"effort": "low", "summary": "auto"}, include=["reasoning.encrypted_content"])
    # This model does not reason.
    assert response.output_text == greedy and [item.type for item in response.output] == ["message"]
    assert (response.reasoning.effort, response.reasoning.summary) == ("low", "auto")


def test_truncation(client):
    items = [{"role": "user", "content": "colour " * 1_000} for _ in range(12)]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, input=items)
    assert caught.value.code == "context_length_exceeded"
    assert ask(client, input=items, truncation="auto").usage.input_tokens > 1_000


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"temperature": -1}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "detail": "auto", "image_url": "data:,"}]}]}, "input[0].content[0].type"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_bad_requests(client, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **more)
    assert caught.value.type == "invalid_request_error" and caught.value.param == param


def test_no_such_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model="gpt-5")
    assert caught.value.code == "model_not_found"


def test_keys(locked):
    patient = locked.with_options(max_retries=8)
    response = ask(patient, max_output_tokens=1)
    assert patient.responses.retrieve(response.id).id == response.id
    assert httpx.get(f"{LOCKED_URL}/v1/responses/{response.id}").status_code == 401
    wrong = openai.OpenAI(base_url=LOCKED_URL + "/v1", api_key=LOCKED_KEY + "x", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.responses.retrieve(response.id)
    patient.responses.delete(response.id)
