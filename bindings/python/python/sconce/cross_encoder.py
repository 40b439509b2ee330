"""`CrossEncoder`: scores of text pairs with the API of sentence-transformers."""

import numpy

from . import _sconce
from .errors import InputError
from .models import Model
from .sentence_transformer import dtype_of, read_json
from .similarity import is_tensor
from .texts import as_texts, in_windows


def sigmoid(x):
    """1 / (1 + e^-x), without overflow."""
    x = numpy.asarray(x, numpy.float32)
    e = numpy.exp(-numpy.abs(x))
    return numpy.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(numpy.float32)


def softmax(x):
    """Softmax over the last axis."""
    e = numpy.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def identity(x):
    """The logits themselves."""
    return x


def activation(given):
    """A function of numpy arrays from a name, a torch module or a function."""
    name = given if isinstance(given, str) else type(given).__name__
    name = name.rsplit(".", 1)[-1]
    if name in ("Identity", "Sigmoid"):
        return identity if name == "Identity" else sigmoid
    if isinstance(given, str):
        raise InputError(f"the activation `{given}` of the model's files is not supported; pass activation_fn")
    if not callable(given):
        raise TypeError(f"activation_fn is {name}, not a function")

    def apply(x):
        try:
            import torch
        except ImportError:
            return numpy.asarray(given(x))
        result = given(torch.from_numpy(x))
        return result.detach().cpu().numpy() if is_tensor(result) else numpy.asarray(result)

    return apply


class CrossEncoder(Model):
    """A model that reads two texts together: a reranker with one score, or a classifier."""

    _task = "cross_encoder"

    def __init__(
        self,
        model_name_or_path,
        *,
        num_labels=None,
        max_length=None,
        device=None,
        activation_fn=None,
        cache_folder=None,
        revision=None,
        local_files_only=False,
        token=None,
        model_kwargs=None,
        dtype=None,
        fallback=False,
        batch_tokens=None,
    ):
        self._load(
            model_name_or_path,
            device=device,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            dtype=dtype or dtype_of(model_kwargs),
            fallback=fallback,
            batch_tokens=batch_tokens,
        )
        self.num_labels = len(self._info.get("labels", "1"))
        if num_labels is not None and num_labels != self.num_labels:
            raise InputError(f"the model has {self.num_labels} labels, not {num_labels}")
        self.max_length = max_length
        config = read_json(self._info, "config.json")
        own = (config.get("sentence_transformers") or {}).get("activation_fn")
        own = own or config.get("sbert_ce_default_activation_function")
        self._activation = activation_fn if activation_fn is not None else own
        self._set_activation()

    def predict(
        self,
        inputs=None,
        batch_size=32,
        show_progress_bar=None,
        activation_fn=None,
        apply_softmax=False,
        convert_to_numpy=True,
        convert_to_tensor=False,
        *,
        sentences=None,
    ):
        """The scores of pairs: one number each, or one for each label of a classifier."""
        pairs = inputs if inputs is not None else sentences
        if pairs is None or isinstance(pairs, (str, bytes)):
            raise TypeError("predict() needs pairs of texts")
        pairs = list(pairs)
        is_single = len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
        pairs = _pairs([pairs] if is_single else pairs)
        parts = in_windows(self._logits, pairs, show_progress_bar)
        logits = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        scores = (activation(activation_fn) if activation_fn is not None else self.activation_fn)(logits)
        if apply_softmax and scores.ndim > 1:
            scores = softmax(scores)
        scores = scores[0] if is_single else scores
        if convert_to_tensor:
            import torch

            return torch.as_tensor(scores)
        return scores if convert_to_numpy else list(scores)

    def rank(
        self,
        query,
        documents,
        top_k=None,
        return_documents=False,
        batch_size=32,
        show_progress_bar=None,
        activation_fn=None,
        apply_softmax=False,
        **_,
    ):
        """The documents by their score for the query, best first."""
        if self.num_labels != 1:
            raise InputError(f"rank() needs a model with one label, and this one has {self.num_labels}; use predict()")
        documents, _single = as_texts(documents)
        pairs = [(query, document) for document in documents]
        options = {"activation_fn": activation_fn, "apply_softmax": apply_softmax}
        scores = self.predict(pairs, show_progress_bar=show_progress_bar, **options) if pairs else []
        # A stable sort, so that equal documents keep their order.
        order = sorted(range(len(pairs)), key=lambda i: -scores[i])[:top_k]
        results = [{"corpus_id": i, "score": float(scores[i])} for i in order]
        if return_documents:
            for result in results:
                result["text"] = documents[result["corpus_id"]]
        return results

    def _logits(self, pairs):
        if self._info["task"] == "rerank":
            return numpy.asarray(_sconce.rerank_logits(self._model, pairs, self.max_length))
        return numpy.asarray(_sconce.logits(self._model, pairs, self.max_length))

    def __getstate__(self):
        # A local function cannot be pickled, but what it was made from can.
        return {name: value for name, value in super().__getstate__().items() if name != "activation_fn"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self._set_activation()

    def _set_activation(self):
        default = sigmoid if self.num_labels == 1 else identity
        self.activation_fn = default if self._activation is None else activation(self._activation)


def _pairs(pairs):
    for i, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise TypeError(f"pair {i + 1} is not two texts: {str(pair)[:80]!r}")
    return [tuple(pair) for pair in pairs]
