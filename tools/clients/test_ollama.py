"""ollama: chats, completions, embeddings, and the models of the server."""

import asyncio
import json

import numpy as np
import ollama
import pytest
from conftest import LOCKED_KEY, LOCKED_URL, QUESTION, TEXTS, URL, same

GREEDY = {"temperature": 0, "num_predict": 24}


@pytest.fixture(scope="module")
def local():
    return ollama.Client(host=URL, timeout=120)


def ended(answer):
    """Whether the number of tokens fits the reason why the answer ended."""
    return answer.eval_count == 24 if answer.done_reason == "length" else answer.done_reason == "stop" and answer.eval_count <= 24


def test_chat(local, greedy):
    answer = local.chat(model="smollm", messages=QUESTION, options=GREEDY)
    assert (answer.message.role, answer.message.content) == ("assistant", greedy)
    assert answer.done and ended(answer)
    assert answer.prompt_eval_count > 10
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0
    assert answer.model == "smollm"


def test_streamed_chat(local, greedy):
    parts = list(local.chat(model="smollm:latest", messages=QUESTION, options=GREEDY, stream=True))
    assert len(parts) > 5
    assert "".join(part.message.content for part in parts) == greedy
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert ended(parts[-1]) and parts[0].eval_count is None


def test_async_chats_at_once(greedy):
    async def ask():
        client = ollama.AsyncClient(host=URL)
        asked = [client.chat(model="smollm", messages=QUESTION, options=GREEDY) for _ in range(4)]
        return await asyncio.gather(*asked)

    assert {answer.message.content for answer in asyncio.run(ask())} == {greedy}


def test_generate(local, greedy):
    prompt = QUESTION[0]["content"]
    answer = local.generate(model="smollm", prompt=prompt, options=GREEDY)
    assert answer.response == greedy and ended(answer)
    streamed = local.generate(model="smollm", prompt=prompt, options=GREEDY, stream=True)
    assert "".join(part.response for part in streamed) == greedy
    system = local.generate(model="smollm", prompt=prompt, system="Answer in French.", options=GREEDY)
    assert system.prompt_eval_count != answer.prompt_eval_count
    raw = local.generate(model="smollm", prompt="One, two, three,", raw=True, options=GREEDY)
    assert raw.prompt_eval_count < 12 and raw.response


def test_a_schema(local):
    schema = {
        "type": "object",
        "properties": {"colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 3, "maxItems": 3}},
        "required": ["colours"],
        "additionalProperties": False,
    }
    for options in ({"temperature": 0}, {"temperature": 1.5, "seed": 3}):
        answer = local.chat(model="smollm", messages=QUESTION, format=schema, options={"num_predict": 200, **options})
        assert len(json.loads(answer.message.content)["colours"]) == 3
    answer = local.generate(model="smollm", prompt="A JSON object:", format="json", options={"num_predict": 300, "temperature": 0})
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.response), dict)


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: The city.
    """
    return f"It rains in {city}."


def test_tools(local):
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"temperature": 0, "num_predict": 64}
    answer = local.chat(model="smollm", messages=asked, tools=[get_weather], options=options)
    for call in answer.message.tool_calls or ():
        assert call.function.name == "get_weather" and isinstance(call.function.arguments, dict)
    # The result of a call, as the examples of the package send it.
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    asked += [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")},
    ]
    said = local.chat(model="smollm", messages=asked, tools=[get_weather], options=options)
    assert said.prompt_eval_count > answer.prompt_eval_count
    assert said.message.content or said.message.tool_calls


def test_embeddings(local, vectors):
    answer = local.embed(model="minilm", input=TEXTS)
    same(answer.embeddings, vectors)
    assert answer.prompt_eval_count > 10 and answer.total_duration > 0
    same(local.embed(model="minilm:latest", input=TEXTS[0]).embeddings[0], vectors[0])
    short = np.array(local.embed(model="minilm", input=TEXTS[0], dimensions=64).embeddings[0])
    assert short.shape == (64,) and abs(np.linalg.norm(short) - 1) < 1e-5
    plain = np.array(local.embeddings(model="minilm", prompt=TEXTS[0]).embedding)
    assert np.abs(plain / np.linalg.norm(plain) - vectors[0]).max() < 1e-5
    # Too long a text is truncated, unless the request refuses that.
    long = "word " * 2000
    assert local.embed(model="minilm", input=long).prompt_eval_count < 600
    with pytest.raises(ollama.ResponseError) as refused:
        local.embed(model="minilm", input=long, truncate=False)
    assert refused.value.status_code == 400


def test_models(local):
    models = {model.model: model for model in local.list().models}
    assert {"minilm:latest", "smollm:latest", "reranker:latest"} <= set(models)
    smollm = models["smollm:latest"]
    assert smollm.size > 50_000_000 and len(smollm.digest) == 64
    assert (smollm.details.format, smollm.details.family) == ("gguf", "llama")
    assert smollm.details.parameter_size.endswith("M") and smollm.details.quantization_level
    shown = local.show("smollm")
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert shown.modelinfo["general.architecture"] == "llama" and "messages" in shown.template
    assert local.show("minilm:latest").capabilities == ["embedding"]
    running = {model.model: model for model in local.ps().models}
    assert running["smollm:latest"].context_length >= 2048
    assert running["smollm:latest"].expires_at.year > 2100


def test_keep_alive(local):
    assert local.generate(model="reranker", keep_alive=0).done_reason == "unload"
    assert "reranker:latest" not in {model.model for model in local.ps().models}
    assert local.generate(model="reranker", keep_alive=-1).done_reason == "load"
    assert "reranker:latest" in {model.model for model in local.ps().models}


def test_pull_and_delete(local):
    assert local.pull("minilm").status == "success"
    lines = list(local.pull("minilm:latest", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    with pytest.raises(ollama.ResponseError) as refused:
        local.pull("../secret")
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as absent:
        local.delete("no-such-model")
    assert absent.value.status_code == 404
    # The reranker is the user's own folder.
    with pytest.raises(ollama.ResponseError) as own:
        local.delete("reranker")
    assert own.value.status_code == 400 and "delete it yourself" in own.value.error


def test_errors_and_keys(local):
    with pytest.raises(ollama.ResponseError) as absent:
        local.chat(model="no-such-model", messages=QUESTION)
    assert absent.value.status_code == 404 and "no-such-model" in absent.value.error
    with pytest.raises(ollama.ResponseError) as image:
        local.chat(model="smollm", messages=[{"role": "user", "content": "?", "images": ["AAEC"]}])
    assert image.value.status_code == 400 and "images" in image.value.error
    with pytest.raises(ollama.ResponseError) as locked:
        ollama.Client(host=LOCKED_URL).chat(model="smollm", messages=QUESTION)
    assert locked.value.status_code == 401
    keyed = ollama.Client(host=LOCKED_URL, headers={"Authorization": f"Bearer {LOCKED_KEY}"})
    assert keyed.chat(model="smollm", messages=QUESTION, options={"num_predict": 2}).eval_count <= 2
