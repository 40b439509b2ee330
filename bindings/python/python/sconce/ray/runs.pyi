"""Whole runs on Ray Data: `embed`, `rerank`, `classify` and `generate`, with checkpoints."""

from dataclasses import dataclass
from typing import Any

from ..models import Path

@dataclass(frozen=True)
class Summary:
    output: str
    blocks: int
    blocks_before: int
    rows: int
    seconds: float

def embed(data: Any, model: Path, **options: Any) -> Any: ...
def rerank(data: Any, model: Path, **options: Any) -> Any: ...
def classify(data: Any, model: Path, **options: Any) -> Any: ...
def generate(data: Any, model: Path, **options: Any) -> Any: ...
