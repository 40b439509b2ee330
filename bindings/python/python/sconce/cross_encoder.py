"""`CrossEncoder`: scores of text pairs with the API of sentence-transformers."""

import importlib
import importlib.util
import sys

import numpy

from . import _sconce
from .base_model import BaseModel, renamed, tensors
from .errors import InputError
from .progress import logger
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


def named_activation(path):
    """The function that a model's files name, or None if it is not one of PyTorch's."""
    name = path.rsplit(".", 1)[-1]
    if not path.startswith("torch.nn."):
        logger.warning(f"the activation `{path}` of the model's files is code of the model, which is not run")
        return None
    if name in ("Identity", "Sigmoid"):
        return identity if name == "Identity" else sigmoid
    try:
        return getattr(importlib.import_module(path.rsplit(".", 1)[0]), name)()
    except ImportError as e:
        raise InputError(f"the activation `{path}` of the model's files needs torch, or pass activation_fn") from e


def apply_activation(function, x):
    """The function of an array; functions other than our own get a tensor where torch is installed."""
    if not callable(function):
        raise TypeError(f"activation_fn is {type(function).__name__}, not a function")
    if function in (identity, sigmoid):
        return function(x)
    name = type(function).__name__
    if type(function).__module__.startswith("torch.nn.") and name in ("Identity", "Sigmoid"):
        return identity(x) if name == "Identity" else sigmoid(x)
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        return numpy.asarray(function(x))
    result = function(tensors(x))
    return result.detach().cpu().numpy() if is_tensor(result) else numpy.asarray(result)


class CrossEncoder(BaseModel):
    """A model that reads two texts together: a reranker with one score, or a classifier.

    `activation_fn` is the function of the logits, by default that of the model's files, else the
    sigmoid for one label and the identity for several.
    """

    _task = "cross_encoder"
    _organization = "cross-encoder"

    @renamed(
        model_name="model_name_or_path",
        automodel_args="model_kwargs",
        tokenizer_args="processor_kwargs",
        config_args="config_kwargs",
        cache_dir="cache_folder",
        default_activation_function="activation_fn",
    )
    def __init__(
        self, model_name_or_path, num_labels=None, max_length=None, activation_fn=None, device=None, **options
    ):
        super().__init__(model_name_or_path, device=device, **options)
        self.num_labels = len(self._info.get("labels", "1"))
        if num_labels is not None and num_labels != self.num_labels:
            raise InputError(f"the model has {self.num_labels} labels, not {num_labels}")
        self.max_seq_length = max_length
        self.activation_fn = activation_fn if activation_fn is not None else self._default_activation()

    @property
    def max_length(self):
        """An older name of `max_seq_length`."""
        return self.max_seq_length

    @max_length.setter
    def max_length(self, value):
        self.max_seq_length = value

    @property
    def default_activation_function(self):
        """An older name of `activation_fn`."""
        return self.activation_fn

    @renamed(sentences="inputs", activation_fct="activation_fn")
    def predict(
        self,
        inputs,
        prompt_name=None,
        prompt=None,
        batch_size=32,
        show_progress_bar=None,
        activation_fn=None,
        apply_softmax=False,
        convert_to_numpy=True,
        convert_to_tensor=False,
        device=None,
        pool=None,
        chunk_size=None,
        *,
        num_workers=None,
    ):
        """The scores of pairs: one number each, or one for each label of a classifier.

        A prompt is put before the first text of each pair. `batch_size` and `num_workers` have no
        effect.
        """
        self._check_call(device, pool, chunk_size)
        pairs, is_single = _pairs(inputs)
        before = self._resolve_prompt(prompt_name, prompt)
        pairs = [(before + first, second) for first, second in pairs] if before else pairs
        parts = in_windows(self._logits, pairs, show_progress_bar)
        logits = parts[0] if len(parts) == 1 else numpy.concatenate(parts)
        scores = apply_activation(activation_fn if activation_fn is not None else self.activation_fn, logits)
        if apply_softmax and scores.ndim > 1:
            scores = softmax(scores)
        if convert_to_tensor or not convert_to_numpy:
            scores = tensors(scores) if convert_to_tensor else list(tensors(scores))
        return scores[0] if is_single else scores

    @renamed(activation_fct="activation_fn")
    def rank(
        self,
        query,
        documents,
        top_k=None,
        return_documents=False,
        prompt_name=None,
        prompt=None,
        batch_size=32,
        show_progress_bar=None,
        activation_fn=None,
        device=None,
        pool=None,
        chunk_size=None,
        *,
        apply_softmax=None,
        convert_to_numpy=None,
        convert_to_tensor=None,
        num_workers=None,
    ):
        """The documents by their score for the query, best first.

        The last four arguments are of older versions of sentence-transformers and have no effect.
        """
        if self.num_labels != 1:
            raise InputError(f"rank() needs a model with one label, and this one has {self.num_labels}; use predict()")
        documents, _ = as_texts(documents)
        pairs = [(query, document) for document in documents]
        scores = self.predict(
            pairs,
            prompt_name,
            prompt,
            show_progress_bar=show_progress_bar,
            activation_fn=activation_fn,
            device=device,
            pool=pool,
            chunk_size=chunk_size,
        )
        # A stable sort, so that equal documents keep their order.
        order = sorted(range(len(pairs)), key=lambda i: -scores[i])[:top_k]
        results = [{"corpus_id": i, "score": float(scores[i])} for i in order]
        if return_documents:
            for result in results:
                result["text"] = documents[result["corpus_id"]]
        return results

    def _logits(self, pairs):
        run = _sconce.rerank_logits if self._info["task"] == "rerank" else _sconce.logits
        return numpy.asarray(run(self._model, pairs, self._max_seq_length))

    def _default_activation(self):
        config = self._read_json("config.json")
        path = self._config.get("activation_fn") or (config.get("sentence_transformers") or {}).get("activation_fn")
        path = path or config.get("sbert_ce_default_activation_function")
        named = named_activation(path) if path else None
        return named or (sigmoid if self.num_labels == 1 else identity)


def _pairs(inputs):
    """A list of pairs, and whether the input was a single pair."""
    if inputs is None or isinstance(inputs, (str, bytes)):
        raise TypeError("predict() needs pairs of texts")
    pairs = inputs.tolist() if hasattr(inputs, "tolist") else list(inputs)
    is_single = len(pairs) == 2 and all(isinstance(text, str) for text in pairs)
    pairs = [pairs] if is_single else pairs
    for i, pair in enumerate(pairs):
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise TypeError(f"pair {i + 1} is not two texts: {str(pair)[:80]!r}")
    return [tuple(pair) for pair in pairs], is_single
