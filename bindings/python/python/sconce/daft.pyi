"""Daft: `SconceProvider`, the provider of `embed_text` and `classify_text`."""

from typing import Any

from daft.ai.protocols import TextClassifierDescriptor, TextEmbedderDescriptor
from daft.ai.provider import Provider

class SconceProvider(Provider):
    def __init__(self, name: str | None = None, **options: Any) -> None: ...
    @property
    def name(self) -> str: ...
    def get_text_embedder(
        self, model: str | None = None, dimensions: int | None = None, **options: Any
    ) -> TextEmbedderDescriptor: ...
    def get_text_classifier(self, model: str | None = None, **options: Any) -> TextClassifierDescriptor: ...
