#!/usr/bin/env python3
"""Takes the place of `llama-server` in llama.cpp's tests: translates its flags, starts `sconce
serve`, and translates its HTTP paths.

It renames fields and paths and adds no behaviour: whatever a test checks beyond names is checked
against Sconce, except the server's start time, which `/metrics` has in a header of llama.cpp.
Models that the tests would download are replaced: MiniLM for embeddings, a tiny reranker, SmolLM2
for everything else.
"""

import http.client
import json
import os
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
PORT, HOST = int(FLAGS["port"]), FLAGS["host"]
KIND = "embed" if "embedding" in FLAGS else "rerank" if "reranking" in FLAGS else "chat"
ALIAS = FLAGS.get("alias", "model").split(",")[0]


def start():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    model = {"embed": "minilm", "rerank": RERANKER, "chat": "smollm"}[KIND]
    command = [BINARY, "serve", "-p", str(port), "-m", f"{ALIAS}={model}"]
    if KIND == "chat" and "ctx-size" in FLAGS:
        # llama.cpp divides its context among its slots.
        room = int(FLAGS["ctx-size"]) // (1 if "kv-unified" in FLAGS else int(FLAGS.get("parallel", 1)))
        command += ["--context", str(room)]
    command += ["--cors-allow-origin", FLAGS.get("cors-origins", "*")]
    env = {**os.environ, "SCONCE_API_KEY": FLAGS["api-key"]} if "api-key" in FLAGS else os.environ
    return subprocess.Popen(command, env=env), port


SERVER, INNER = start()
BEGUN = int(time.time())


def common(body):
    """Renames the fields that llama.cpp accepts on every path."""
    body = dict(body)
    # llama.cpp has one model, and accepts any name for it.
    body["model"] = ALIAS
    body.setdefault("temperature", float(FLAGS.get("temp", 0.8)))
    body.setdefault("seed", int(FLAGS.get("seed", 0)))
    if isinstance(body.get("logit_bias"), list):
        body["logit_bias"] = {str(token): bias for token, bias in body["logit_bias"]}
    if "grammar" in body:
        body["structured_outputs"] = {"grammar": body.pop("grammar")}
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_object" and "schema" in form:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": form["schema"]}}
    if "json_schema" in body:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": body.pop("json_schema")}}
    most = int(FLAGS.get("n-predict", -1))
    if "n_predict" in body:
        body["max_tokens"] = body.pop("n_predict")
    if most > 0:
        body.setdefault("max_tokens", most)
    if body.get("max_tokens", 0) < 0:
        del body["max_tokens"]
    return body


def completion(body):
    """/completion → /v1/completions."""
    asked = common(body)
    asked["logprobs"] = asked.pop("n_probs", None)
    asked["prompt"] = texts(asked.get("prompt"))
    asked.setdefault("max_tokens", 128)
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    return asked


def texts(given):
    """A prompt in any of llama.cpp's forms, or a list of such."""
    if isinstance(given, list):
        return [texts(each) for each in given]
    if isinstance(given, dict) and set(given) == {"prompt_string"}:
        return given["prompt_string"]
    if isinstance(given, dict) and isinstance(given.get("content"), list):
        parts = given["content"]
        if all(isinstance(part, dict) and part.get("type") == "text" for part in parts):
            return "".join(part["text"] for part in parts)
    return given


def likely(logprobs):
    """Parallel lists → a list of objects. Sconce reports no token ids."""
    word = lambda token, logprob: {"token": token, "logprob": logprob, "bytes": list(token.encode())}
    each = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
    return [{**word(token, logprob), "top_logprobs": [word(*one) for one in top.items()]} for token, logprob, top in each]


def content(choice, usage, model):
    """A response of /v1/completions in the form of /completion."""
    usage = usage or {}
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    probabilities = choice.get("logprobs")
    return {
        "content": choice["text"],
        "index": choice["index"],
        "stop": choice["finish_reason"] is not None,
        "stop_type": {"length": "limit", "stop": "eos", None: "none"}[choice["finish_reason"]],
        "model": model,
        "truncated": False,
        "has_new_line": "\n" in choice["text"],
        "timings": {"prompt_n": usage.get("prompt_tokens", 0) - cached, "cache_n": cached, "predicted_n": usage.get("completion_tokens")},
        **({"completion_probabilities": likely(probabilities)} if probabilities else {}),
    }


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
        inner = http.client.HTTPConnection("127.0.0.1", INNER, timeout=600)
        passed = ("authorization", "x-api-key", "origin", "access-control-request-method", "access-control-request-headers")
        headers = {name: value for name, value in self.headers.items() if name.lower() in passed}
        if body is not None:
            headers["content-type"] = "application/json"
        inner.request(method, path, None if body is None else json.dumps(body), headers)
        return inner, inner.getresponse()

    def pass_on(self, method, path, body=None, words=lambda answer: answer):
        """Sends a request to Sconce and relays the response, translated by `words` if it
        succeeded."""
        inner, reply = self.ask(method, path, body)
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
        self.pass_on("GET", {"/models": "/v1/models"}.get(self.path, self.path))

    def do_OPTIONS(self):
        self.pass_on("OPTIONS", "/v1" + self.path)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or "{}")
        path = self.path.removeprefix("/v1")
        if self.path in ("/completion", "/completions"):
            asked = completion(body)
            several = isinstance(asked.get("prompt"), list) and not all(isinstance(p, int) for p in asked["prompt"])
            last = {}

            def worded(answer):
                if answer["object"] != "text_completion":
                    return answer
                usage, model = answer.get("usage"), answer["model"]
                if asked.get("stream"):
                    # llama.cpp reports usage with the last chunk; Sconce sends it in a chunk after
                    # that.
                    if not answer["choices"]:
                        return content(last["end"], usage, model)
                    choice = answer["choices"][0]
                    if choice["finish_reason"] is not None:
                        last["end"] = choice
                        return None
                    return content(choice, usage, model)
                all_ = [content(choice, usage, model) for choice in answer["choices"]]
                return all_ if several else all_[0]

            self.pass_on("POST", "/v1/completions", asked, worded)
        elif path in ("/chat/completions", "/completions"):
            named = body.get("model")
            self.pass_on("POST", "/v1" + path, common(body), lambda answer: begins({**answer, "model": named or answer["model"]}))
        elif self.path in ("/embeddings", "/embedding"):
            asked = texts(body.get("input", body.get("content")))
            listed = lambda vectors: [{"index": i, "embedding": each} for i, each in enumerate(vectors)]
            if FLAGS.get("pooling") == "none":
                self.pass_on("POST", "/embed_all", {"inputs": asked, "model": ALIAS}, listed)
            else:
                self.pass_on("POST", "/embed", {"inputs": asked, "model": ALIAS}, lambda answer: listed([v] for v in answer))
        elif path == "/embeddings":
            self.pass_on("POST", "/v1/embeddings", {**body, "input": texts(body.get("input")), "model": ALIAS})
        elif path in ("/rerank", "/reranking"):
            # Truncates what is longer than the tiny model's limit.
            own = {"truncate": True} if "texts" in body else {}
            self.pass_on("POST", "/v1/rerank" if "documents" in body else "/rerank", {**body, "model": ALIAS, **own})
        elif path == "/tokenize":
            asked = {"inputs": body["content"], "add_special_tokens": body.get("add_special", False), "model": ALIAS}

            def tokens(answer):
                pieces = body.get("with_pieces", False)
                return {"tokens": [{"id": t["id"], "piece": t["text"]} if pieces else t["id"] for t in answer[0]]}

            self.pass_on("POST", "/tokenize", asked, tokens)
        elif path == "/detokenize":
            self.pass_on("POST", "/decode", {"ids": body["tokens"], "model": ALIAS}, lambda answer: {"content": answer[0]})
        else:
            self.pass_on("POST", self.path, body)


def end(*_):
    SERVER.terminate()
    SERVER.wait()
    os._exit(0)


signal.signal(signal.SIGTERM, end)
server = ThreadingHTTPServer((HOST.split(",")[0], PORT), Shim)
threading.Thread(target=lambda: (SERVER.wait(), os._exit(1)), daemon=True).start()
server.serve_forever()
