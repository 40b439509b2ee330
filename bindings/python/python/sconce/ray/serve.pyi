"""Sconce on Ray Serve: the HTTP APIs of `sconce serve` on as many replicas as the load needs."""

from collections.abc import Sequence
from typing import Any

from ..errors import SconceError

class ServerEnded(SconceError): ...

def app(
    models: str | Sequence[str],
    *,
    replicas: int | None = None,
    autoscaling: dict[str, Any] | None = None,
    device: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    api_key: str | None = None,
    arguments: Sequence[str] = (),
    target_queue: float = 8,
    max_ongoing_requests: int = 512,
    max_queued_requests: int = -1,
    payload_limit: int = 2_000_000,
    ingress_replicas: int = 1,
    start_timeout: float = 600,
) -> Any: ...
