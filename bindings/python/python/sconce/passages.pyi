"""What an index returns: hits, passages and documents."""

from collections.abc import Sequence
from typing import Any

class Hit:
    chunk: int
    document: int
    path: str
    text: str
    score: float
    title: str | None
    heading: str | None
    line: int | None
    page: int | None
    row: int | None
    snippet: str
    highlights: list[list[int]]
    ranks: dict[str, dict[str, float]]
    metadata: dict[str, Any]
    bytes: Sequence[int]

class IndexedDocument:
    id: int
    path: str
    row: int | None
    title: str | None
    kind: str
    metadata: dict[str, Any]
    bytes: int
    chunks: int
    modified: float | None
    text: str | None

class Passage:
    document: IndexedDocument
    text: str
    passage: Sequence[int]
    bytes: Sequence[int]
    heading: str | None
    line: int | None
    page: int | None
