"""`GLiNER`: entities of any labels, with the method names of the `gliner` package."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from .models import Model, Texts

Labels: TypeAlias = Sequence[str] | Mapping[str, str]

class GLiNER(Model):
    def predict_entities(
        self,
        text: str,
        labels: Labels | list[Labels],
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
    ) -> list[dict[str, Any]]: ...
    def inference(
        self,
        texts: Texts,
        labels: Labels | list[Labels],
        flat_ner: bool = True,
        threshold: float = 0.5,
        multi_label: bool = False,
    ) -> list[list[dict[str, Any]]]: ...
