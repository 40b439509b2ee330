"""`Seq2Seq`: sequence-to-sequence models (T5)."""

from collections.abc import AsyncIterator
from typing import Any

from .llm import Stream
from .models import Model, Path, Texts

class Seq2Seq(Model):
    def __init__(
        self,
        model: Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        max_input_tokens: int | None = None,
        max_output_tokens: int | None = None,
        sequences: int | None = None,
        cache_folder: Path | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        fallback: bool = False,
    ) -> None: ...
    def generate(self, inputs: Texts | None, **options: Any) -> Any: ...
    def generate_all(self, inputs: Texts | None, **options: Any) -> list[list[dict[str, Any]]]: ...
    def stream(self, text: str, **options: Any) -> Stream: ...
    async def agenerate(self, inputs: Texts | None, **options: Any) -> Any: ...
    async def agenerate_all(self, inputs: Texts | None, **options: Any) -> list[list[dict[str, Any]]]: ...
    def astream(self, text: str, **options: Any) -> AsyncIterator[str]: ...
