"""`Tagger`: token classification (NER)."""

from typing import Any

from .models import Model, Path, Texts

class Tagger(Model):
    labels: list[str]
    def __init__(
        self,
        model: Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        cache_folder: Path | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        token: str | bool | None = None,
        fallback: bool = False,
        batch_tokens: int | None = None,
    ) -> None: ...
    def tag(self, inputs: Texts | None, strategy: str = 'simple', threshold: float = 0.0) -> Any: ...
    def __call__(self, inputs: Texts | None, strategy: str = 'simple', threshold: float = 0.0) -> Any: ...
