#!/usr/bin/env python3
"""Takes the place of `llama-server` in llama.cpp's tests: translates its flags, starts `sconce
serve`, and passes requests on.

It adds what llama-server's flags set to requests, and no behaviour: whatever a test checks is
checked against Sconce, except the names of metrics, and the server's start time, which `/metrics`
has in a header of llama.cpp.
Models that the tests would download are replaced: MiniLM for embeddings, a tiny reranker, SmolLM2
for everything else.
"""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BINARY = os.environ["SCONCE_BINARY"]
RERANKER = os.environ["SCONCE_RERANKER"]


def flags(given):
    """Parses `--name value` and `--name`."""
    found, i = {}, 0
    while i < len(given):
        name = given[i].lstrip("-")
        alone = i + 1 == len(given) or (given[i + 1].startswith("-") and not given[i + 1].lstrip("-").isdigit())
        found[name] = True if alone else given[i + 1]
        i += 1 if alone else 2
    return found


FLAGS = flags(sys.argv[1:])
PORT, HOSTS = int(FLAGS["port"]), FLAGS["host"].split(",")
KIND = "embed" if "embedding" in FLAGS else "rerank" if "reranking" in FLAGS else "chat"
ALIAS = FLAGS.get("alias", "model").split(",")[0]


def start():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    model = {"embed": "minilm", "rerank": RERANKER, "chat": "smollm"}[KIND]
    command = [BINARY, "serve", "-p", str(port), "-m", f"{ALIAS}={model}"]
    for host in HOSTS:
        command += ["--hostname", host]
    if KIND == "chat":
        slots = int(FLAGS.get("parallel", 1))
        command += ["--parallel", str(slots)]
        if "ctx-size" in FLAGS:
            # llama.cpp divides its context among its slots.
            command += ["--context", str(int(FLAGS["ctx-size"]) // (1 if "kv-unified" in FLAGS else slots))]
        if "chat-template-file" in FLAGS:
            command += ["--chat-template", FLAGS["chat-template-file"]]
        if "batch-size" in FLAGS:
            command += ["--batch-tokens", FLAGS["batch-size"]]
    # With tools, only pages of this machine may read responses by default.
    command += ["--cors-allow-origin", FLAGS.get("cors-origins", "localhost" if "tools" in FLAGS else "*")]
    env = {**os.environ, "SCONCE_API_KEY": FLAGS["api-key"]} if "api-key" in FLAGS else os.environ
    return subprocess.Popen(command, env=env), port


SERVER, INNER = start()
BEGUN = int(time.time())


def named(body):
    """llama.cpp has one model, and accepts any name for it."""
    return {**body, "model": ALIAS}


def defaults(body, limit):
    """The settings that are flags of llama-server, in a request that has none. `limit` is the field
    with the most tokens."""
    body = named(body)
    body.setdefault("temperature", float(FLAGS.get("temp", 0.8)))
    body.setdefault("seed", int(FLAGS.get("seed", 0)))
    if FLAGS.get("reasoning") == "off":
        body.setdefault("reasoning_effort", "none")
    if int(FLAGS.get("n-predict", -1)) > 0 and not {"n_predict", "max_tokens"} & set(body):
        body[limit] = int(FLAGS["n-predict"])
    return body


def texts(given):
    """An input of /v1/embeddings in the forms that only llama.cpp has."""
    if isinstance(given, list):
        return [texts(each) for each in given]
    if isinstance(given, dict) and set(given) == {"prompt_string"}:
        return given["prompt_string"]
    if isinstance(given, dict) and isinstance(given.get("content"), list):
        parts = given["content"]
        if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            return "".join(part["text"] for part in parts)
    return given


def begins(answer):
    """The first chunk of a streamed chat: null content in llama.cpp, empty content in OpenAI's
    API."""
    for choice in answer.get("choices", []):
        if "role" in choice.get("delta", {}) and choice["delta"].get("content") == "":
            choice["delta"]["content"] = None
    return answer


# llama.cpp's names for vLLM's metrics.
METRICS = {
    "vllm:prompt_tokens_total": "llamacpp:prompt_tokens_total",
    "vllm:generation_tokens_total": "llamacpp:tokens_predicted_total",
    "vllm:num_requests_running": "llamacpp:requests_processing",
    "vllm:num_requests_waiting": "llamacpp:requests_deferred",
}


def renamed(metrics):
    """Appends llama.cpp's metrics, for the one model, to ours."""
    lines = []
    for line in metrics.splitlines():
        words = line.split(" ")
        name = words[2] if line.startswith("#") else words[0].partition("{")[0]
        if name in METRICS and line.startswith("#"):
            lines.append(line.replace(name, METRICS[name], 1))
        elif name in METRICS:
            lines.append(f"{METRICS[name]} {words[-1]}")
    return metrics + "\n".join(lines) + "\n"


class Shim(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def ask(self, method, path, body=None):
        inner = http.client.HTTPConnection(self.server.inner_host, INNER, timeout=600)
        passed = ("authorization", "x-api-key", "origin", "access-control-request-method", "access-control-request-headers")
        headers = {name: value for name, value in self.headers.items() if name.lower() in passed}
        if body is not None:
            headers["content-type"] = "application/json"
        inner.request(method, path, None if body is None else json.dumps(body), headers)
        answered = threading.Event()
        threading.Thread(target=self.watch, args=(inner.sock, answered), daemon=True).start()
        try:
            return inner, inner.getresponse()
        finally:
            answered.set()

    def watch(self, inner, answered):
        """When the client disconnects before the response, disconnects from Sconce."""
        while not answered.wait(0.05):
            readable, _, _ = select.select([self.connection], [], [], 0)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                inner.shutdown(socket.SHUT_RDWR)
                return

    def pass_on(self, method, path, body=None, words=lambda answer: answer):
        """Sends a request to Sconce and relays the response, translated by `words` if it
        succeeded."""
        try:
            inner, reply = self.ask(method, path, body)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            return
        kind = reply.getheader("content-type", "")
        streams = kind.startswith("text/event-stream")
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                # In llama.cpp's capitalization, which its tests check.
                self.send_header(name.title(), value)
        if streams:
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                for line in reply:
                    data = line.strip()
                    if data.startswith(b"data: {"):
                        worded = words(json.loads(data[6:]))
                        line = b"" if worded is None else b"data: " + json.dumps(worded).encode() + b"\n\n"
                    elif not data:
                        continue
                    self.wfile.write(line if line.endswith(b"\n\n") or not line else line + b"\n")
                    self.wfile.flush()
            except OSError:
                # When the client disconnects, disconnect from Sconce.
                inner.close()
            return
        answer = reply.read()
        if path == "/metrics" and reply.status == 200:
            self.send_header("Process-Start-Time-Unix", str(BEGUN))
            answer = renamed(answer.decode()).encode()
        if reply.status != 200 and kind.startswith("application/json") and "message" in json.loads(answer):
            # Cohere's error format, as in llama.cpp.
            answer = json.dumps({"error": json.loads(answer)}).encode()
        if reply.status == 200 and kind.startswith("application/json"):
            answer = json.dumps(words(json.loads(answer))).encode()
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self):
        self.pass_on("GET", self.path)

    def do_OPTIONS(self):
        self.pass_on("OPTIONS", self.path)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        if not isinstance(body, dict):
            self.pass_on("POST", self.path, body)
        elif self.path in ("/completion", "/completions", "/infill"):
            self.pass_on("POST", self.path, defaults(body, "n_predict"))
        elif self.path.endswith("/completions") or self.path == "/apply-template":
            self.pass_on("POST", self.path, defaults(body, "max_tokens"), begins)
        elif self.path.endswith("/embeddings") or self.path == "/embedding":
            own = {"pooling": "none"} if FLAGS.get("pooling") == "none" else {}
            if self.path.startswith("/v1"):
                own["input"] = texts(body.get("input"))
            self.pass_on("POST", self.path, {**named(body), **own})
        elif self.path in ("/rerank", "/reranking"):
            # Truncates what is longer than the tiny model's limit.
            self.pass_on("POST", self.path, {**named(body), **({"truncate": True} if "texts" in body else {})})
        else:
            self.pass_on("POST", self.path, named(body))


class Front(ThreadingHTTPServer):
    """Listens at one of the addresses, and asks Sconce there."""

    def __init__(self, host):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.inner_host = host
        super().__init__((host, PORT), Shim)


def end(*_):
    SERVER.terminate()
    SERVER.wait()
    os._exit(0)


signal.signal(signal.SIGTERM, end)
fronts = [Front(host) for host in HOSTS]
for front in fronts[1:]:
    threading.Thread(target=front.serve_forever, daemon=True).start()
threading.Thread(target=lambda: (SERVER.wait(), os._exit(1)), daemon=True).start()
fronts[0].serve_forever()
