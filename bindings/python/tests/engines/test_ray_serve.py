"""Ray Serve: the dialects of the server, and requests while a replica dies."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np
import openai
import pytest
import ray
from conftest import MINILM
from ray import serve

from sconce import Llm
from sconce.ray.autoscaling import QUEUE, RUNNING, QueuePolicy, load_of
from sconce.ray.serve import app

# .ci/long has more.
SECONDS = float(os.environ.get("SCONCE_TEST_SECONDS", 8))
PORT = 18760
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def served(ray_cluster, tiny_llama):
    """Two replicas of MiniLM and a tiny language model."""
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    models = [f"minilm={MINILM}", f"chat={tiny_llama}"]
    application = app(models, replicas=2, cpus=1, gpus=0, device="cpu", arguments=["--context", "2048"])
    serve.run(application, route_prefix="/")
    yield
    serve.shutdown()


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def replicas(application="default"):
    """The actors of the servers of an application."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [ray.get_actor(**one) for one in named if f"{application}#sconce-server#" in one["name"]]


def wait_for_replicas(count, application="default", seconds=60):
    end = time.monotonic() + seconds
    while len(replicas(application)) != count:
        assert time.monotonic() < end, f"{len(replicas(application))} replicas after {seconds} s, not {count}"
        time.sleep(0.5)


def test_dialects(served, minilm, tiny_llama):
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    got = client.embeddings.create(model="minilm", input=["one", "two"])
    assert np.allclose([one.embedding for one in got.data], minilm.encode(["one", "two"]), atol=1e-5)
    assert np.allclose(post("/embed", {"inputs": ["one"]})[1], minilm.encode(["one"]), atol=1e-5)
    assert {one.id for one in client.models.list()} >= {"minilm", "chat"}
    options = {"model": "chat", "prompt": "the cat", "max_tokens": 20, "temperature": 0}
    want = Llm(tiny_llama, context=2048).generate("the cat", max_tokens=20, temperature=0).text
    assert client.completions.create(**options).choices[0].text == want
    parts = [part.choices[0].text for part in client.completions.create(**options, stream=True) if part.choices]
    assert "".join(parts) == want and len(parts) > 2


def test_refusals_have_a_reason(served):
    client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.embeddings.create(model="nothing", input="x")
    status, body = post("/v1/embeddings", {"model": "minilm", "input": "x" * 3_000_000})
    assert status == 413 and "2000000 bytes" in body["error"]["message"]
    # A request through Ray Serve does not come from the server's machine, and may not manage its models.
    assert post("/v1/models/unload", {"model": "minilm"})[0] == 403


def test_the_queue_is_reported_and_scales(served):
    with urllib.request.urlopen(URL + "/metrics", timeout=60) as response:
        assert load_of(response.read().decode()) == {QUEUE: 0.0, RUNNING: 0.0}
    text = 'te_queue_size 3\nvllm:num_requests_waiting{model_name="a b"} 4\nte_queue_size_else 9\n# te_queue_size 7\n'
    assert load_of(text + 'sconce_requests_running{method="embed"} 2\n') == {QUEUE: 7.0, RUNNING: 2.0}

    def wanted(queues, requests):
        config = SimpleNamespace(get_target_ongoing_requests=lambda: 32)
        context = SimpleNamespace(aggregated_metrics={QUEUE: queues}, total_num_requests=requests, config=config)
        return QueuePolicy(target_queue=8)(context)[0]

    assert wanted({"a": 8, "b": 40}, 60) == 6  # 48 waiting requests
    assert wanted({"a": 0, "b": 0}, 64) == 2  # An empty queue, but both replicas work.
    assert wanted({}, 0) == 0


async def ask(client, kind, number, results, end):
    """Sends requests until the end. A result is a correct answer, a reason, or what is wrong."""
    while time.monotonic() < end:
        key = f"{kind} {number} {random.random()}"
        try:
            if kind == "embed":
                answer = await client.embeddings.create(model="minilm", input=key)
                results.append((kind, key, answer.data[0].embedding))
            else:
                stream = await client.completions.create(
                    model="chat", prompt="the cat", max_tokens=400, temperature=0, stream=True, extra_body={"ignore_eos": True}
                )
                results.append((kind, key, "".join([part.choices[0].text async for part in stream if part.choices])))
        except (openai.APIError, openai.APIConnectionError) as error:
            results.append(("refused", key, str(error)))


async def load(seconds, kills):
    """100 clients, and replicas that are killed now and then."""
    results, begun = [], time.monotonic()
    client = openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)

    async def kill():
        for number in range(kills):
            await asyncio.sleep(begun + seconds * (number + 1) / (kills + 1) - time.monotonic())
            ray.kill(random.choice(replicas()), no_restart=True)

    clients = [ask(client, "stream" if i % 5 == 0 else "embed", i, results, begun + seconds) for i in range(100)]
    await asyncio.gather(kill(), *clients)
    await client.close()
    return results


def test_a_replica_dies_under_100_clients(served, minilm, tiny_llama):
    llm = Llm(tiny_llama, context=2048)
    want = llm.generate("the cat", max_tokens=400, temperature=0, ignore_end=True).text
    results = asyncio.run(load(SECONDS, kills=max(1, int(SECONDS / 20))))
    embedded = [(key, vector) for kind, key, vector in results if kind == "embed"]
    streams = [text for kind, _, text in results if kind == "stream"]
    refused = [reason for kind, _, reason in results if kind == "refused"]
    assert len(embedded) > 100 and len(streams) > 10, (len(embedded), len(streams), refused[:5])
    worst = np.abs(np.array([vector for _, vector in embedded]) - minilm.encode([key for key, _ in embedded])).max()
    assert worst < 1e-5
    # None is cut off without an error.
    assert all(text == want for text in streams)
    # Embeddings are repeated on the other replica; only streams that had begun can fail.
    assert all("replica failed in the middle" in reason for reason in refused), refused[:5]
    assert len(refused) <= 20 * max(1, int(SECONDS / 20))
    # The dead replica is replaced.
    wait_for_replicas(2)


async def write_at_once(client, requests):
    """Long answers, of which a server can write few at once."""
    options = {"model": "chat", "prompt": "the cat", "max_tokens": 1500, "temperature": 0, "extra_body": {"ignore_eos": True}}
    await asyncio.gather(*(client.completions.create(**options) for _ in range(requests)))


def test_replicas_follow_the_queue_of_servers_with_a_key(served, tiny_llama):
    # Requests in progress alone would never add a replica.
    scaling = {
        "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 500, "metrics_interval_s": 0.5,
        "look_back_period_s": 2, "upscale_delay_s": 1, "downscale_delay_s": 2,
    }
    # The cache has room for about one answer, so the others wait in the server's queue.
    arguments = ["--context", "2048", "--kv-cache-tokens", "2048"]
    application = app(
        f"chat={tiny_llama}", autoscaling=scaling, target_queue=2, api_key="a-key", cpus=1, gpus=0, device="cpu", arguments=arguments
    )
    serve.run(application, name="scaled", route_prefix="/scaled")
    try:
        assert len(replicas("scaled")) == 1
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(URL + "/scaled/metrics", timeout=60)

        async def load():
            client = openai.AsyncOpenAI(base_url=URL + "/scaled/v1", api_key="a-key", max_retries=0, timeout=300)
            end = time.monotonic() + 120
            while len(replicas("scaled")) < 2:
                assert time.monotonic() < end, "no second replica after 120 s of load"
                await write_at_once(client, 24)
            await client.close()

        asyncio.run(load())
        # Without load, one is enough.
        wait_for_replicas(1, "scaled", 120)
    finally:
        serve.delete("scaled")


def test_a_server_ends_with_its_parent(golden):
    code = "import sys, time; from sconce.server_process import ServerProcess;"
    code += "s = ServerProcess(['-m', sys.argv[1], '-d', 'cpu']); print(s.pid, flush=True); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code, str(golden("st-prompts"))], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_cannot_start_says_why():
    from sconce import SconceError
    from sconce.server_process import ServerProcess

    server = ServerProcess(["-m", "/nowhere/model"])
    try:
        server._process.wait(60)
        with pytest.raises(SconceError, match="nowhere"):
            server.check()
    finally:
        server.close()
