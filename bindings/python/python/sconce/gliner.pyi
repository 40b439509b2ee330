"""`GLiNER`: entities of any labels, with the method names of the `gliner` package."""

from collections.abc import Sequence
from typing import Any

from .models import Model, Texts

class GLiNER(Model):
    def predict_entities(
        self,
        text: str,
        labels: Sequence[str],
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
    ) -> list[dict[str, Any]]: ...
    def inference(
        self,
        texts: Texts,
        labels: Sequence[str],
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
    ) -> list[list[dict[str, Any]]]: ...
