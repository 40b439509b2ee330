"""`GLiNER`: entities of any labels, with the method names of the `gliner` package."""

import json

from . import _sconce
from .models import Model
from .texts import as_texts


class GLiNER(Model):
    """A model that finds entities of the labels that each call gives."""

    _task = "gliner"

    def predict_entities(self, text, labels, flat_ner=True, threshold=0.5, multi_label=False):
        """The entities of a text: dicts of `start`, `end`, `text`, `label` and `score`.

        `start` and `end` count characters.
        """
        return self.inference([text], labels, flat_ner, threshold, multi_label)[0]

    def inference(self, texts, labels, flat_ner=True, threshold=0.5, multi_label=False):
        """The entities of each text, as in `predict_entities`."""
        texts, _ = as_texts(texts)
        options = (threshold, not flat_ner, multi_label)
        return json.loads(_sconce.gliner_tag(self._model, texts, list(labels), options))
