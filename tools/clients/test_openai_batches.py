"""openai: batches."""

import json
import os
import time

import httpx
import openai
import pytest
from conftest import QUESTION, TEXTS, URL, same

# A server with the keys `ours` and `theirs`.
KEYS_URL = os.environ["SCONCE_KEYS_URL"]


def line(custom_id, url, body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def begin(client, lines, endpoint, **more):
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def wait(client, batch):
    end = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < end, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def results(client, file_id):
    """The results of a file by `custom_id`, which occurs once."""
    if file_id is None:
        return {}
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    assert len({line["custom_id"] for line in lines}) == len(lines)
    return {line["custom_id"]: line for line in lines}


def test_chat(client, greedy):
    body = {"model": "smollm", "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    lines = [line(f"chat-{i}", "/v1/chat/completions", body) for i in range(6)]
    lines.append(line("wrong", "/v1/chat/completions", {**body, "temperature": "hot"}))
    began = begin(client, lines, "/v1/chat/completions", metadata={"of": "test"})
    assert began.object == "batch" and began.status == "validating" and began.metadata == {"of": "test"}
    assert began.expires_at == began.created_at + 86_400
    batch = wait(client, began)
    assert batch.status == "completed" and batch.errors is None and batch.model == "smollm"
    assert batch.request_counts.to_dict() == {"total": 7, "completed": 6, "failed": 1}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    good, bad = results(client, batch.output_file_id), results(client, batch.error_file_id)
    assert set(good) == {f"chat-{i}" for i in range(6)} and set(bad) == {"wrong"}
    for result in good.values():
        assert result["error"] is None and result["response"]["status_code"] == 200 and result["response"]["request_id"]
        completion = openai.types.chat.ChatCompletion.model_validate(result["response"]["body"])
        assert completion.choices[0].message.content == greedy
    assert bad["wrong"]["response"]["status_code"] == 400
    assert bad["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    usage = batch.usage
    assert usage.output_tokens > 0 and usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"


def test_embeddings_and_completions(client, vectors):
    lines = [line(str(i), "/v1/embeddings", {"model": "minilm", "input": text}) for i, text in enumerate(TEXTS)]
    batch = wait(client, begin(client, lines, "/v1/embeddings", output_expires_after={"anchor": "created_at", "seconds": 3600}))
    assert batch.status == "completed" and batch.error_file_id is None
    got = results(client, batch.output_file_id)
    same([got[str(i)]["response"]["body"]["data"][0]["embedding"] for i in range(len(TEXTS))], vectors)
    output = client.files.retrieve(batch.output_file_id)
    assert output.expires_at == output.created_at + 3600
    body = {"model": "smollm", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    batch = wait(client, begin(client, [line("a", "/v1/completions", body)], "/v1/completions"))
    alone = client.completions.create(**body)
    assert results(client, batch.output_file_id)["a"]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text


def test_errors_of_lines(client):
    body = {"model": "smollm", "messages": QUESTION}
    good = line("a", "/v1/chat/completions", body)
    lines = [good, good, "no json", line("b", "/v1/embeddings", body), line("c", "/v1/chat/completions", {**body, "model": "gpt-0"})]
    batch = wait(client, begin(client, lines, "/v1/chat/completions"))
    assert batch.status == "failed" and batch.failed_at and batch.output_file_id is None
    errors = [(error.line, error.code) for error in batch.errors.data]
    assert errors == [(2, "duplicate_custom_id"), (3, "invalid_json_line"), (4, "invalid_url"), (5, "model_not_found")]
    assert all(error.message for error in batch.errors.data)


def test_cancel_list_and_delete(client):
    body = {"model": "smollm", "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}
    began = begin(client, [line(str(i), "/v1/completions", body) for i in range(300)], "/v1/completions")
    # A client's request is answered beside the batch.
    client.completions.create(model="smollm", prompt="x", max_tokens=1)
    assert client.batches.cancel(began.id).status in ("cancelling", "cancelled")
    batch = wait(client, began)
    assert batch.status == "cancelled" and batch.cancelling_at <= batch.cancelled_at
    rest = results(client, batch.error_file_id)
    assert len(results(client, batch.output_file_id)) + len(rest) in (0, 300)
    assert all(line["error"]["code"] == "batch_cancelled" for line in rest.values())
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(began.id)
    others = [wait(client, begin(client, ["{}"], "/v1/completions")).id for _ in range(3)]
    # The iterator follows the pages, newest first.
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:4] == [*reversed(others), began.id]
    for id in listed:
        assert httpx.delete(f"{URL}/v1/batches/{id}").json() == {"id": id, "object": "batch", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve(began.id)


def test_wrong_requests(client):
    file = client.files.create(file=b"x", purpose="user_data")
    for status, param, body in [
        (openai.BadRequestError, "input_file_id", {"input_file_id": file.id}),
        (openai.NotFoundError, "input_file_id", {"input_file_id": "file-0"}),
        (openai.BadRequestError, "endpoint", {"endpoint": "/v1/moderations"}),
        (openai.BadRequestError, "completion_window", {"completion_window": "1h"}),
    ]:
        body = {"input_file_id": file.id, "endpoint": "/v1/completions", "completion_window": "24h"} | body
        with pytest.raises(status) as caught:
            client.batches.create(**body)
        assert caught.value.param == param
    client.files.delete(file.id)


def test_keys_are_apart():
    ours, theirs = (openai.OpenAI(base_url=KEYS_URL + "/v1", api_key=key, max_retries=0) for key in ("ours", "theirs"))
    body = {"model": "minilm", "input": TEXTS}
    batch = wait(ours, begin(ours, [line(str(i), "/v1/embeddings", body) for i in range(5)], "/v1/embeddings"))
    assert batch.status == "completed" and batch.request_counts.completed == 5
    again = {"input_file_id": batch.input_file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    for request in (
        lambda: theirs.batches.retrieve(batch.id),
        lambda: theirs.batches.cancel(batch.id),
        lambda: theirs.batches.create(**again),
        lambda: theirs.files.content(batch.output_file_id),
        lambda: theirs.files.retrieve(batch.input_file_id),
        lambda: theirs.files.delete(batch.input_file_id),
    ):
        with pytest.raises(openai.NotFoundError):
            request()
    assert not theirs.batches.list().data and not theirs.files.list().data
    assert [listed.id for listed in ours.batches.list()] == [batch.id]
