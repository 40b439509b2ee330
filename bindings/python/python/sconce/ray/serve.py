"""Sconce on Ray Serve: the HTTP APIs of `sconce serve` on as many replicas as the load needs.

A replica of `Server` owns a `sconce serve`, which ends with it. `Ingress` passes requests on as they
are. If a replica dies before it has begun to answer, another one gets the request; if it dies in the
middle of a stream, the stream ends with an error event instead of looking complete.
"""

import asyncio
import json
import os
import time
from urllib.parse import quote

import aiohttp
import yarl
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.responses import Response, StreamingResponse

from ..errors import InputError, SconceError
from ..server_process import ServerProcess
from .autoscaling import QueuePolicy, load_of
from .placement import node_resources, place
from .threads import assigned_cpus

# Replicas that a request is sent to before it is refused.
_ATTEMPTS = 3
# How long a server may take to answer a health check, however busy it is.
_HEALTH_TIMEOUT = aiohttp.ClientTimeout(total=5)
# The servers log each request; Ray need not do it twice more.
_QUIET = {"enable_access_log": False}
# The variable with the keys that requests need.
_KEY = "SCONCE_API_KEY"
# Headers of a connection, not of a message (RFC 9110, 7.6.1), and those that are written anew.
_NOT_PASSED = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host "
    "content-length expect x-forwarded-for forwarded".split()
)


class ServerEnded(SconceError):
    """The server of a replica has ended, or does not answer."""


class Server:
    """A replica: a `sconce serve` at a Unix socket."""

    async def __init__(self, arguments, environment=None, start_timeout=600):
        cpus = assigned_cpus()
        threads = ["--threads", str(max(1, int(cpus)))] if cpus is not None and "--threads" not in arguments else []
        self._server = ServerProcess([*arguments, *threads], environment)
        # /metrics needs a key, as every path but /health does. There may be several.
        key = (environment or {}).get(_KEY, os.environ.get(_KEY, "")).partition(",")[0]
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        no_limit = aiohttp.ClientTimeout(total=None, sock_connect=10)  # The server has time-outs of its own.
        connector = aiohttp.UnixConnector(self._server.socket, limit=0)
        self._client = aiohttp.ClientSession(connector=connector, timeout=no_limit, auto_decompress=False)
        try:
            await self._until_ready(time.monotonic() + start_timeout)
        except BaseException:
            await self._client.close()
            self._server.close()
            raise

    async def _until_ready(self, end):
        answer = "nothing yet"
        while time.monotonic() < end:
            self._server.check()
            try:
                async with self._client.get("http://localhost/health", timeout=_HEALTH_TIMEOUT) as response:
                    if response.status == 200:
                        return
                    answer = (await response.text())[:500]
            except (aiohttp.ClientError, asyncio.TimeoutError):
                pass  # It does not listen yet.
            await asyncio.sleep(0.1)
        raise SconceError(f"the models were not loaded in time; the server says: {answer}")

    async def forward(self, method, target, headers, body):
        """Yields `(status, headers, body)`; for a stream of events without the body, and then its parts."""
        url = yarl.URL("http://localhost" + target, encoded=True)
        try:
            async with self._client.request(method, url, headers=headers, data=body, allow_redirects=False) as response:
                kept = [(name, value) for name, value in response.headers.items() if name.lower() not in _NOT_PASSED]
                if not response.content_type == "text/event-stream":
                    # Whole, so that nothing is sent of an answer that another replica may have to give.
                    yield response.status, kept, await response.read()
                    return
                yield response.status, kept, None
                async for part in response.content.iter_any():
                    yield part
        except aiohttp.ClientError as error:
            raise ServerEnded(f"the server of this replica does not answer: {error or type(error).__name__}") from None

    async def check_health(self):
        """Ray Serve replaces a replica whose server has ended, or does not answer several times in a row."""
        self._server.check()
        try:
            async with self._client.get("http://localhost/health", timeout=_HEALTH_TIMEOUT):
                pass  # Any status is an answer: 503 means that a model is being loaded.
        except (aiohttp.ClientConnectionError, asyncio.TimeoutError) as error:
            raise ServerEnded(f"the server does not answer health checks: {error or type(error).__name__}") from None

    async def record_autoscaling_stats(self):
        """The server's own queue."""
        async with self._client.get("http://localhost/metrics", headers=self._headers) as response:
            response.raise_for_status()
            return load_of(await response.text())

    def server_pid(self):
        """The process of the server."""
        return self._server.pid

    def __del__(self):
        if hasattr(self, "_server"):
            self._server.close()


class Ingress:
    """Passes requests on to the replicas of `Server`."""

    def __init__(self, server, payload_limit):
        self._server = server.options(method_name="forward", stream=True)
        self._payload_limit = payload_limit

    async def __call__(self, request):
        target = _target(request.scope)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._payload_limit:
                return _refusal(target, 413, f"the request is larger than {self._payload_limit} bytes", "too_large")
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_PASSED]
        # The server lets only this machine manage models, and a request that was forwarded is not its.
        headers.append(("x-forwarded-for", request.client.host if request.client else "unknown"))
        arguments = (request.method, target, headers, bytes(body))
        why = None
        for _ in range(_ATTEMPTS):
            parts = self._server.remote(*arguments)
            try:
                status, headers, body = await parts.__anext__()
            except (RayActorError, ServerEnded) as error:
                why = error
                continue
            except BackPressureError as error:
                return _refusal(target, 429, error.message, "rate_limit_exceeded")
            except DeploymentUnavailableError as error:
                return _refusal(target, 503, error.message, "unavailable")
            if body is not None:
                return _with_headers(Response(body, status), headers)
            return _with_headers(StreamingResponse(_events(parts), status), headers)
        return _refusal(target, 503, f"{_ATTEMPTS} replicas failed: {_first_line(why)}", "replica_failed")


async def _events(parts):
    """The rest of a stream of events; an error event where the replica dies."""
    try:
        async for part in parts:
            yield part
    except (RayActorError, ServerEnded) as error:
        message = f"the replica failed in the middle of its answer: {_first_line(error)}"
        body = {"error": {"message": message, "type": "server_error", "param": None, "code": "replica_failed"}}
        # The last event may be incomplete; an empty line ends it.
        yield f"\n\ndata: {json.dumps(body)}\n\n".encode()
    finally:
        parts.cancel()


def app(
    models,
    *,
    replicas=None,
    autoscaling=None,
    device=None,
    cpus=None,
    gpus=None,
    api_key=None,
    arguments=(),
    target_queue=8,
    max_ongoing_requests=512,
    max_queued_requests=-1,
    payload_limit=2_000_000,
    ingress_replicas=1,
    start_timeout=600,
):
    """The application for `serve.run`: a server of `models` (a name, `NAME=MODEL`, or a list of them).

    Each replica has a server with `cpus` threads and `gpus` GPUs; by default those that `map_options`
    would take. `replicas` is their number, or `autoscaling` has Ray's options (`min_replicas`,
    `max_replicas`, …) and replicas follow the queue that the servers report: `target_queue` waiting
    requests per replica. `arguments` are further ones of `sconce serve`.
    """
    if replicas is not None and autoscaling is not None:
        raise InputError("give either replicas or autoscaling")
    models = [models] if isinstance(models, str) else list(models)
    if not models:
        raise InputError("give at least one model")
    if cpus is None or gpus is None:
        placement = place(node_resources(), device=device, cpus=cpus, gpus=gpus)
        cpus, gpus = placement.cpus, placement.gpus
    command = [part for model in models for part in ("--model", _absolute(str(model)))]
    command += ["--payload-limit", str(payload_limit), "--max-concurrent-requests", str(max_ongoing_requests)]
    command += ["--device", str(device)] if device is not None else []
    command += [str(one) for one in arguments]
    options = {
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "max_ongoing_requests": max_ongoing_requests,
        "max_queued_requests": max_queued_requests,
        "health_check_period_s": 2,
        "graceful_shutdown_timeout_s": 30,
        "logging_config": _QUIET,
    }
    if autoscaling is not None:
        options["autoscaling_config"] = _autoscaling(autoscaling, target_queue)
    else:
        options["num_replicas"] = replicas or 1
    # A process list shows arguments, but not the environment.
    environment = {_KEY: api_key} if api_key else None
    server = serve.deployment(Server, name="sconce-server").options(**options)
    # The ingress waits for replicas; it computes nothing.
    ingress = serve.deployment(Ingress, name="sconce").options(
        num_replicas=ingress_replicas,
        max_ongoing_requests=10_000,
        ray_actor_options={"num_cpus": 0},
        logging_config=_QUIET,
    )
    return ingress.bind(server.bind(command, environment, start_timeout), payload_limit)


def _absolute(model):
    """`MODEL` or `NAME=MODEL`, where a folder means the same in the working folder of a replica."""
    name, equals, rest = model.rpartition("=")
    return name + equals + (os.path.abspath(rest) if os.path.exists(rest) else rest)


def _autoscaling(options, target_queue):
    known = {"target_ongoing_requests": 32, "metrics_interval_s": 1, "look_back_period_s": 5} | dict(options)
    policy = AutoscalingPolicy(policy_function=QueuePolicy, policy_kwargs={"target_queue": target_queue})
    return AutoscalingConfig(**{"policy": policy} | known)


def _target(scope):
    """Path and query below the application's prefix."""
    path, root = scope["path"], scope.get("root_path", "")
    if root and path.startswith(root):
        path = path[len(root) :] or "/"
    query = scope.get("query_string", b"").decode("latin-1")
    return quote(path, safe="/:@!$&'()*+,;=~-._") + (f"?{query}" if query else "")


def _with_headers(response, headers):
    """A response with exactly these headers, and its own length."""
    own = [(name, value) for name, value in response.raw_headers if name == b"content-length"]
    response.raw_headers = own + [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return response


def _refusal(target, status, message, code):
    """An error as the API of the path writes it."""
    if target.startswith("/v1/"):
        body = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
    else:
        body = {"error": message, "error_type": "Overloaded" if status == 429 else "Unhealthy"}
    headers = {"retry-after": "1"} if status in (429, 503) else {}
    return Response(json.dumps(body), status, headers, media_type="application/json")


def _first_line(error):
    return str(error).strip().partition("\n")[0][:300]
