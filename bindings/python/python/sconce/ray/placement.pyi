"""Where the models of a run are: one per GPU, or one per group of cores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

@dataclass(frozen=True)
class Placement:
    models: int
    cpus: float
    gpus: float

def node_resources() -> list[tuple[float, float]]: ...
def place(
    nodes: Sequence[tuple[float, float]],
    *,
    device: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    models: int | None = None,
) -> Placement: ...
def map_options(
    *,
    device: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    models: int | None = None,
    batch_size: int = 2048,
    **ray_options: Any,
) -> dict[str, Any]: ...
