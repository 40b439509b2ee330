"""examples/scale/pool.py BINARY SECONDS EVERY: see pool.sh. Needs the standard library alone."""

import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

BINARY, SECONDS, EVERY = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
CLIENTS = 8
TEXTS = [f"Text number {n} of a small collection." for n in range(50)]

# Texts in other batches are summed in another order.
TOLERANCE = 1e-5

# How long a pool may take to send requests to a host that is back.
RETURN = 30


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(port, method, path, body=None, timeout=120):
    """Status, headers and text of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, path, data, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def embed(port, n):
    return call(port, "POST", "/v1/embeddings", {"model": "minilm", "input": TEXTS[n]})


def vector(text):
    return json.loads(text)["data"][0]["embedding"]


def is_near(got, expected):
    return len(got) == len(expected) and all(abs(a - b) < TOLERANCE for a, b in zip(got, expected))


def wait_until(what, condition, limit=180):
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > limit:
            sys.exit(f"waited {limit} s until {what}")
        time.sleep(0.05)


def healthy(port):
    try:
        return call(port, "GET", "/health", timeout=5)[0] == 200
    except OSError:
        return False


class Machine:
    """The processes: two hosts and the pool."""

    def __init__(self, folder):
        self.folder, self.ports = folder, [free_port(), free_port()]
        self.environment = {**os.environ, "SCONCE_THREADS": "1", "RUST_LOG": "warn"}
        self.hosts = [self.host(n) for n in range(2)]
        blocks = ["[[model]]\nmodel = 'minilm'\ndevice = 'cpu'\n"]
        for n, port in enumerate(self.ports):
            blocks.append(f"[[host]]\nname = 'host-{n}'\nurl = 'http://127.0.0.1:{port}'\nmodels = ['minilm']\n")
        (folder / "pool.toml").write_text("\n".join(blocks))
        self.port = free_port()
        arguments = ["pool", "serve", "-c", "pool.toml", "--port", str(self.port), "--state", "state"]
        self.pool = self.start("pool", arguments)

    def start(self, name, arguments):
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [BINARY, *arguments], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )

    def host(self, n):
        return self.start(f"host-{n}", ["serve", "-m", "minilm", "--port", str(self.ports[n])])

    def stop(self):
        self.pool.terminate()
        self.pool.wait(timeout=120)
        for host in self.hosts:
            host.kill()
            host.wait()


class Load:
    """Clients that send one request after the other, and what came of them."""

    def __init__(self, port, expected):
        self.port, self.expected, self.over = port, expected, threading.Event()
        self.lock, self.good, self.refused, self.wrong, self.workers = threading.Lock(), 0, [], [], []
        self.threads = [threading.Thread(target=self.client, args=(n,), daemon=True) for n in range(CLIENTS)]

    def client(self, seed):
        choice = random.Random(seed)
        while not self.over.is_set():
            n = choice.randrange(len(TEXTS))
            try:
                status, headers, text = embed(self.port, n)
            except OSError as error:
                with self.lock:
                    self.wrong.append(f"no answer: {error}")
                continue
            with self.lock:
                if status == 200 and is_near(vector(text), self.expected[n]):
                    self.good += 1
                    self.workers.append((time.monotonic(), headers.get("x-sconce-worker", "")))
                elif status == 200:
                    self.wrong.append(f"another vector for text {n}")
                elif status >= 429 and "error" in text:
                    self.refused.append(f"{status} {text[:200]}")
                else:
                    self.wrong.append(f"{status} {text[:200]}")

    def answered_by(self, since):
        with self.lock:
            return {worker for at, worker in self.workers if at >= since}


def run(machine):
    for port in machine.ports:
        wait_until("the hosts are ready", lambda port=port: healthy(port))
    wait_until("the pool is ready", lambda: healthy(machine.port))
    expected = [vector(embed(machine.ports[0], n)[2]) for n in range(len(TEXTS))]
    load = Load(machine.port, expected)
    begun, kills = time.monotonic(), 0
    for thread in load.threads:
        thread.start()
    wait_until("all three answer", lambda: len(load.answered_by(begun)) >= 3, RETURN)
    everyone = load.answered_by(begun)
    try:
        while time.monotonic() - begun < SECONDS:
            time.sleep(EVERY / 2)
            n = kills % 2
            machine.hosts[n].kill()
            machine.hosts[n].wait()
            kills += 1
            time.sleep(EVERY / 2)
            back = time.monotonic()
            machine.hosts[n] = machine.host(n)
            wait_until("a host that is back answers", lambda back=back: load.answered_by(back) >= everyone, RETURN)
    finally:
        load.over.set()
        for thread in load.threads:
            thread.join()
    print(f"{load.good} answers of {sorted(everyone)}, {len(load.refused)} refusals, {len(load.wrong)} wrong; {kills} kills")
    if load.wrong or len(load.refused) > kills * CLIENTS or load.good < 100:
        sys.exit("\n".join(load.wrong[:5] + load.refused[:5]) or "too few answers")


with tempfile.TemporaryDirectory() as folder:
    running = Machine(pathlib.Path(folder))
    try:
        run(running)
    finally:
        running.stop()
