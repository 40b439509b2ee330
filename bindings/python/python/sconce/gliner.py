"""`GLiNER`: entities of any labels, with the method names of the `gliner` package."""

import json
from collections.abc import Mapping

from . import _sconce
from .errors import InputError
from .models import Model
from .texts import as_texts


class GLiNER(Model):
    """A model that finds entities of the labels that each call gives.

    `labels` are a list of `str`, or a dict of labels and the descriptions that the model reads
    instead. A list of several of these has labels for each text.
    """

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
        if not (isinstance(labels, list) and any(isinstance(label, (list, Mapping)) for label in labels)):
            return self._find(texts, labels, options)
        if len(labels) != len(texts):
            raise InputError(f"labels for {len(labels)} texts, and there are {len(texts)}")
        return [self._find([text], own, options)[0] for text, own in zip(texts, labels)]

    def _find(self, texts, labels, options):
        names = None
        if isinstance(labels, Mapping):
            names = {description: label for label, description in labels.items()}
            if len(names) != len(labels):
                raise InputError("two labels have the same description")
        prompts = [labels] if isinstance(labels, str) else list(names or labels)
        rows = json.loads(_sconce.gliner_tag(self._model, texts, prompts, options))
        for entity in (entity for row in rows if names for entity in row):
            entity["label"] = names[entity["label"]]
        return rows
