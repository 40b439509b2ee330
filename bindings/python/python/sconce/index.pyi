"""`Index`: documents, embeddings, full text and search in one file."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, overload

from typing_extensions import Self

from .cross_encoder import CrossEncoder
from .models import Model, Path, Texts
from .passages import Hit, IndexedDocument, Passage

_Mode = Literal["hybrid", "dense", "bm25", "sparse", "multi_vector"]
_Filter = str | dict[str, Any]

class Index:
    def __init__(
        self,
        path: Path,
        model: Path | Model | None = None,
        *,
        create: bool = True,
        read_only: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        cache_folder: Path | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        batch_tokens: int | None = None,
    ) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def model(self) -> dict[str, Any] | None: ...
    def update(
        self,
        paths: Path | Iterable[Path],
        *,
        progress: bool | Callable[[dict[str, Any]], Any] | None = None,
        hidden: bool = False,
        ignore_files: bool = True,
        chunk_tokens: int | None = None,
        chunk_overlap: int | None = None,
        prune: bool = True,
        rebuild: bool = False,
    ) -> dict[str, Any]: ...
    def add(
        self,
        documents: Texts | dict[str, Any] | Sequence[dict[str, Any]],
        ids: str | Iterable[str] | None = None,
        metadata: dict[str, Any] | Iterable[dict[str, Any] | None] | None = None,
        *,
        titles: Iterable[str | None] | None = None,
        kind: str = "text",
    ) -> list[str]: ...
    def remove(self, ids: str | Iterable[str]) -> int: ...
    def search(
        self,
        query: str,
        limit: int = 10,
        mode: _Mode | None = None,
        filter: _Filter | Sequence[_Filter] | None = None,
        rerank: CrossEncoder | Path | None = None,
        *,
        vector: Any | None = None,
        candidates: int | None = None,
    ) -> list[Hit]: ...
    def passage(self, chunk: Hit | int, before: int = 1, after: int = 1) -> Passage | None: ...
    def documents(self, prefix: str | None = None) -> Iterator[IndexedDocument]: ...
    @overload
    def get(self, ids: str, *, text: bool = True) -> IndexedDocument | None: ...
    @overload
    def get(self, ids: Iterable[str], *, text: bool = True) -> list[IndexedDocument | None]: ...
    def status(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: Any) -> None: ...
