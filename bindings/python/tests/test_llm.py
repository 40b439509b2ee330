"""Language models and T5: SmolLM2 with real weights, and tiny models."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
from conftest import answers, arrays

from sconce import CancelledError, ClosedError, InputError, Llm, Seq2Seq


def test_generate_chat_and_stream(smollm):
    greedy = {"temperature": 0, "max_tokens": 8}
    answer = smollm.generate("The capital of France is", **greedy)
    assert answer.text.strip().startswith("Paris") and str(answer) == answer.text
    assert answer.finish in ("end", "length") and 0 < len(answer.tokens) <= 8 and answer.prompt_tokens == 5
    stream = smollm.stream("The capital of France is", **greedy)
    pieces = list(stream)
    assert len(pieces) > 1 and "".join(pieces) == answer.text and stream.answer == answer
    assert smollm.generate(smollm.tokenize("The capital of France is"), **greedy).text == answer.text
    chat = smollm.chat("What is the capital of France? One word.", **greedy)
    messages = [{"role": "user", "content": "What is the capital of France? One word."}]
    assert "Paris" in chat.text and smollm.chat(messages, **greedy) == chat
    assert "".join(smollm.stream(messages, **greedy)) == chat.text
    assert "".join(smollm.stream(iter(messages), **greedy)) == chat.text
    assert "<|im_start|>user" in smollm.render(messages)
    tokens = np.array(smollm.tokenize("The capital of France is"))
    numbers = {"temperature": np.float32(0), "max_tokens": np.int64(8)}
    assert smollm.generate(tokens, **numbers).text == answer.text == smollm.stream(iter(tokens), **greedy).wait()[0].text


def test_options(smollm):
    two = smollm.generate("Once", n=2, seed=3, temperature=1.0, max_tokens=4, logprobs=1)
    assert len(two) == 2 and all(len(one.logprobs) == len(one.tokens) == 4 for one in two)
    assert two == smollm.generate("Once", n=2, seed=3, temperature=1.0, max_tokens=4, logprobs=1)
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    schema["additionalProperties"] = False
    answer = smollm.generate("A cat as JSON: ", schema=schema, temperature=0, max_tokens=30)
    assert isinstance(json.loads(answer.text)["age"], int)
    assert smollm.generate("1 2 3", regex="[xy]{3}", max_tokens=9).text.strip("xy") == ""
    stopped = smollm.generate("1, 2, 3,", stop=" 6", temperature=0, max_tokens=20)
    assert stopped.finish == "stop" and "6" not in stopped.text
    for bad in ({"temperature": -1}, {"max_tokens": 0}, {"schema": {}, "regex": "x"}, {"regex": "("}):
        with pytest.raises(InputError):
            smollm.generate("x", **bad)
    with pytest.raises(TypeError, match="temprature"):
        smollm.generate("x", temprature=1)
    with pytest.raises(TypeError):
        smollm.chat([])


def test_async_twins(smollm):
    greedy = {"temperature": 0, "max_tokens": 6}

    async def main():
        generated, chatted = await asyncio.gather(smollm.agenerate("One two", **greedy), smollm.achat("Hi", **greedy))
        streamed = "".join([piece async for piece in smollm.astream("One two", **greedy)])
        # A cancelled task cancels its request and leaves the model usable.
        task = asyncio.create_task(smollm.agenerate("Tell a long story.", max_tokens=400, temperature=0))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return generated, chatted, streamed

    generated, chatted, streamed = asyncio.run(main())
    assert generated.text == streamed == smollm.generate("One two", **greedy).text
    assert chatted.text == smollm.chat("Hi", **greedy).text


def test_threads_share_a_model(tiny_llama):
    with Llm(tiny_llama, device="cpu") as llm:
        options = {"temperature": 0, "max_tokens": 20, "ignore_end": True}
        want, got = llm.generate("the cat", **options).text, []
        threads = [threading.Thread(target=lambda: got.append(llm.generate("the cat", **options).text)) for _ in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert got == [want] * 6


def test_a_closed_stream_ends(tiny_llama):
    llm = Llm(tiny_llama, device="cpu")
    stream = llm.stream("the cat", max_tokens=2000, ignore_end=True, temperature=0)
    next(iter(stream))
    stream.close()
    with pytest.raises((ClosedError, CancelledError)):
        list(stream)
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate("x")


@pytest.fixture(scope="module")
def t5(golden):
    """T5 with a tokenizer of the words w2, w3, …, as testkit's `plain_words`."""
    folder = golden("t5-seq2seq")
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    vocab = {"<pad>": 0, "</s>": 1} | {f"w{i}": i for i in range(2, 67)}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [sequence, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": word} | special for i, word in enumerate(["<pad>", "</s>"])],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": template,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return Seq2Seq(folder, device="cpu")


def test_seq2seq(t5):
    given, want = answers("t5-seq2seq"), arrays("t5-seq2seq")
    bounds = np.cumsum([0] + given["lengths"])
    inputs = [want["ids"][a:b].tolist() for a, b in zip(bounds, bounds[1:])]
    compared = 0
    for beams in given["beams"]:
        ids = inputs[beams["input"]]
        if ids[-1] != 1 or 0 in ids or 1 in ids[:-1] or beams["early_stopping"] not in (True, False):
            continue  # The tokenizer cannot make these tokens.
        text = " ".join(f"w{i}" for i in ids[:-1])
        options = {name: beams[name] for name in ("length_penalty", "early_stopping")}
        options |= {"num_beams": given["num_beams"], "num_return_sequences": 2, "max_tokens": given["max_new_tokens"]}
        (got,) = t5.generate_all([text], **options)
        assert [answer["score"] for answer in got] == pytest.approx(beams["scores"], abs=1e-4)
        assert t5.generate(text, **options) == got[0]["text"]
        compared += 1
    assert compared >= 8
    greedy = t5.generate(["w5 w6", "w7"], num_beams=1, max_tokens=5)
    assert greedy == [t5.generate("w5 w6", num_beams=1, max_tokens=5), t5.generate("w7", num_beams=1, max_tokens=5)]
    assert "".join(t5.stream("w5 w6", temperature=0, max_tokens=5)).split() == greedy[0].split()
    with pytest.raises(InputError, match="beam"):
        t5.stream("w5", num_beams=3)
    async def main():
        first, both = await asyncio.gather(t5.agenerate("w5 w6", num_beams=1, max_tokens=5), t5.agenerate(["w5 w6", "w7"], num_beams=1, max_tokens=5))
        streamed = "".join([piece async for piece in t5.astream("w5 w6", temperature=0, max_tokens=5)])
        # A cancelled task cancels its request.
        task = asyncio.create_task(t5.agenerate_all(["w5 w6"] * 2000, num_beams=4, max_tokens=60))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert t5.generate("w7", num_beams=1, max_tokens=5) == both[1] and time.monotonic() - begun < 5
        return first, both, streamed.split()

    assert asyncio.run(main()) == (greedy[0], greedy, greedy[0].split())
    assert all(len(row) == 3 for row in t5.generate_all(["w5", "w6"], num_beams=4, num_return_sequences=3))
