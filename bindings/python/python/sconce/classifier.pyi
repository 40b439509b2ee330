"""`Classifier`: sequence classification."""

from typing import Any

from .models import Floats, Model, Path, Texts

class Classifier(Model):
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
    def classify(self, inputs: Texts | None, top_k: int | None = None, raw: bool = False) -> Any: ...
    def __call__(self, inputs: Texts | None, top_k: int | None = None, raw: bool = False) -> Any: ...
    def logits(self, inputs: Texts | None) -> Floats: ...
