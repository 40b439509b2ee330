"""Spark: pandas UDFs that embed, rerank and label texts."""

from typing import Any, Literal

from .models import Path

def embed_udf(
    model: Path,
    *,
    kind: Literal["query", "document"] | None = None,
    encode_options: dict[str, Any] | None = None,
    threads: int | None = None,
    **options: Any,
) -> Any: ...
def rerank_udf(model: Path, *, threads: int | None = None, **options: Any) -> Any: ...
def classify_udf(model: Path, *, threads: int | None = None, **options: Any) -> Any: ...
