"""`Tagger`: token classification (NER)."""

from typing import Any

from .models import Model, Texts

class Tagger(Model):
    labels: list[str]
    def tag(self, inputs: Texts | None, strategy: str = 'simple', threshold: float = 0.0, stride: int | None = None) -> Any: ...
    def __call__(self, inputs: Texts | None, strategy: str = 'simple', threshold: float = 0.0, stride: int | None = None) -> Any: ...
