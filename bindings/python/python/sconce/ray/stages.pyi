"""Callable classes for `map_batches`: each loads a model once per actor and adds columns to batches."""

from typing import Any, Literal

from typing_extensions import Unpack

from ..base_model import ModelOptions
from ..models import Path

Errors = Literal["raise", "null"]
Kind = Literal["query", "document"]

class Stage:
    model: Any
    column: str
    errors: Errors
    def __call__(self, batch: Any) -> Any: ...

class Embed(Stage):
    def __init__(
        self,
        model: Path,
        *,
        text: str = "text",
        column: str = "embedding",
        kind: Kind | None = None,
        encode_options: dict[str, Any] | None = None,
        threads: int | None = None,
        errors: Errors = "raise",
        device: str | None = None,
        truncate_dim: int | None = None,
        **options: Unpack[ModelOptions],
    ) -> None: ...

class Rerank(Stage):
    def __init__(
        self,
        model: Path,
        *,
        query: str = "query",
        document: str = "document",
        column: str = "score",
        predict_options: dict[str, Any] | None = None,
        threads: int | None = None,
        errors: Errors = "raise",
        device: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> None: ...

class Classify(Stage):
    def __init__(
        self,
        model: Path,
        *,
        text: str = "text",
        pair: str | None = None,
        column: str = "label",
        score: str = "score",
        top_k: int | None = None,
        threads: int | None = None,
        errors: Errors = "raise",
        device: str | None = None,
        **options: Any,
    ) -> None: ...

class Generate(Stage):
    def __init__(
        self,
        model: Path,
        *,
        prompt: str = "prompt",
        column: str = "answer",
        finish: str | None = "finish",
        chat: bool = True,
        generate_options: dict[str, Any] | None = None,
        requests: int = 64,
        threads: int | None = None,
        errors: Errors = "raise",
        device: str | None = None,
        **options: Any,
    ) -> None: ...

def as_table(batch: Any) -> Any: ...
def values(table: Any, name: str) -> list[Any]: ...
