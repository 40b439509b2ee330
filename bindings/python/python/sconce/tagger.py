"""`Tagger`: token classification (NER)."""

import json

from . import _sconce
from .models import Model
from .texts import as_texts


class Tagger(Model):
    """A model that labels the tokens of a text: names, places, parts of speech."""

    _task = "tag"

    @property
    def labels(self):
        """The labels, in the order of the model's outputs."""
        return list(self._info["labels"])

    def tag(self, inputs, strategy="simple", threshold=0.0, stride=None):
        """The entities of each text: dicts of `label`, `score`, `word`, `start`, `end` and `index`.

        `start` and `end` count characters. `strategy` is `none`, `simple`, `first`, `average` or
        `max`, as in transformers' pipeline. `stride` reads texts that are longer than the model in
        windows that share so many tokens, instead of truncating them.
        """
        texts, is_single = as_texts(inputs)
        rows = json.loads(_sconce.tag(self._model, texts, strategy, threshold, stride))
        return rows[0] if is_single else rows

    __call__ = tag
