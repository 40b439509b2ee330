"""openai: tools."""

import json

from conftest import QUESTION

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "description": "What time it is."}}
ASKED = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


def ask(client, **more):
    more = {"model": "smollm", "messages": ASKED, "tools": [WEATHER, TIME], "temperature": 0, "max_tokens": 128, **more}
    return client.chat.completions.create(**more)


def sound(call):
    assert call.type == "function" and call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert set(arguments) == {"city", "unit"} and arguments["unit"] in ["celsius", "fahrenheit"]
    else:
        assert call.function.name == "get_time" and arguments == {}


def test_a_call_that_is_demanded(client):
    for seed in range(4):
        answer = ask(client, tool_choice="required", temperature=1.0, seed=seed, max_tokens=400)
        choice = answer.choices[0]
        assert choice.message.content is None
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
        for call in choice.message.tool_calls:
            sound(call)
        assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)


def test_a_call_by_name(client):
    for tool in (WEATHER, TIME):
        name = tool["function"]["name"]
        answer = ask(client, tool_choice={"type": "function", "function": {"name": name}}, parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == name
        sound(call)


def test_streaming_is_the_same(client):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    whole = ask(client, tool_choice=choice, parallel_tool_calls=False).choices[0].message.tool_calls[0]
    chunks = list(ask(client, tool_choice=choice, parallel_tool_calls=False, stream=True))
    parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert parts[0].id and parts[0].type == "function" and parts[0].function.name == "get_weather"
    assert all(part.id is None and part.function.name is None and part.index == 0 for part in parts[1:])
    assert len(parts) > 3
    assert "".join(part.function.arguments for part in parts) == whole.function.arguments
    assert not any(chunk.choices[0].delta.content for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_conversation_with_results(client):
    call = ask(client, tool_choice={"type": "function", "function": {"name": "get_weather"}}, parallel_tool_calls=False)
    message = call.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is raining, 12 degrees."}
    answer = ask(client, messages=[*ASKED, message, result], tool_choice="none", max_tokens=40)
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls
    # The model has read the tool's result.
    other = ask(client, messages=[*ASKED, message, {**result, "content": "It is sunny, 40 degrees."}], tool_choice="none", max_tokens=40)
    assert other.usage.prompt_tokens != 0 and other.choices[0].message.content != answer.choices[0].message.content


def test_tools_that_may_be_called(client, greedy):
    answer = ask(client, messages=QUESTION, tool_choice="none", max_tokens=24)
    assert answer.choices[0].message.content == greedy, "tools that may not be called are not shown"
    answer = ask(client, tool_choice="auto", max_tokens=64)
    message = answer.choices[0].message
    assert message.content or message.tool_calls
    assert "<tool_call>" not in (message.content or "") or answer.choices[0].finish_reason == "length"
