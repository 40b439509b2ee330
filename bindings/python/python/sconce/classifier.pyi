"""`Classifier`: sequence classification."""

from typing import Any

from .models import Floats, Model, Texts

class Classifier(Model):
    labels: list[str]
    def classify(self, inputs: Texts | None, top_k: int | None = None, raw: bool = False) -> Any: ...
    def __call__(self, inputs: Texts | None, top_k: int | None = None, raw: bool = False) -> Any: ...
    def logits(self, inputs: Texts | None) -> Floats: ...
