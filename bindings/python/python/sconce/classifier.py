"""`Classifier`: sequence classification."""

import numpy

from . import _sconce
from .models import Model
from .texts import as_texts


class Classifier(Model):
    """A model that labels texts or pairs of texts."""

    _task = "classify"

    @property
    def labels(self):
        """The labels, in the order of the logits."""
        return list(self._info["labels"])

    def classify(self, inputs, top_k=None, raw=False):
        """The labels of each text, best first: `{"label", "score"}`; `raw` gives logits as scores.

        An input is a text or a pair of texts (a tuple). A single text gives a single list.
        """
        texts = _inputs(inputs)
        rows = _sconce.classify(self._model, texts, raw, None)
        rows = [[{"label": label, "score": score} for label, score in row[:top_k]] for row in rows]
        return rows[0] if isinstance(inputs, str) else rows

    __call__ = classify

    def logits(self, inputs):
        """The logits, a row per text and a column per label."""
        return numpy.asarray(_sconce.logits(self._model, _inputs(inputs), None))


def _inputs(inputs):
    if isinstance(inputs, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in inputs):
        for i, one in enumerate(inputs):
            if not isinstance(one, str) and (len(one) != 2 or not all(isinstance(text, str) for text in one)):
                raise TypeError(f"input {i + 1} is neither a text nor two texts")
        return [(one, None) if isinstance(one, str) else tuple(one) for one in inputs]
    return [(text, None) for text in as_texts(inputs)[0]]
