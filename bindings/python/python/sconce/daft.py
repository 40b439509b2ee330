"""Daft: `SconceProvider`, the provider of `embed_text` and `classify_text`.

After `import sconce.daft`, Daft knows it as `provider="sconce"` too.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy
from daft import DataType
from daft.ai.protocols import TextClassifier, TextClassifierDescriptor, TextEmbedder, TextEmbedderDescriptor
from daft.ai.provider import PROVIDERS, Provider
from daft.ai.typing import EmbeddingDimensions, UDFOptions
from daft.ai.utils import get_gpu_udf_options

from .base_model import full_name
from .classifier import Classifier
from .errors import InputError
from .machine import plan
from .sentence_transformer import SentenceTransformer
from .shared_models import shared_model

# What Daft itself reads of the options of a call.
_OF_DAFT = ("batch_size", "max_retries", "on_error", "concurrency", "num_gpus")
# Rows of a call. The engine packs its micro-batches by tokens.
_ROWS = 1024
# What `encode` takes; the rest are options of loading.
_OF_ENCODE = ("normalize_embeddings", "prompt_name", "prompt", "pooling", "task")
_HYPOTHESIS = "This example is {}."


class SconceProvider(Provider):
    """Models of this package in Daft. `options` are those of every model: `device`, `dtype`, …"""

    def __init__(self, name=None, **options):
        self._name, self._options = name or "sconce", options

    @property
    def name(self):
        return self._name

    def get_text_embedder(self, model=None, dimensions=None, **options):
        """`options` are those of Daft (`batch_size`, …), of loading, and of `encode`."""
        of_daft, rest = _split(self._options | options)
        kind = rest.pop("kind", None)
        if kind not in (None, "query", "document"):
            raise InputError(f"kind is {kind!r}; use 'query', 'document' or None")
        encode = {name: rest.pop(name) for name in _OF_ENCODE if name in rest}
        return _Embedder(self._name, model or "minilm", of_daft, rest, dimensions, kind, encode)

    def get_text_classifier(self, model=None, **options):
        """`model` has the labels of a call among its own, or is an NLI model (zero-shot)."""
        if model is None:
            raise InputError("classify_text needs a model: classify_text(…, provider='sconce', model=…)")
        of_daft, rest = _split(self._options | options)
        hypothesis = rest.pop("hypothesis_template", _HYPOTHESIS)
        return _Labeler(self._name, model, of_daft, rest, hypothesis)


@dataclass
class _Description:
    """What Daft sends to the processes that run a model."""

    provider: str
    model: str
    of_daft: dict[str, Any]
    load: dict[str, Any]

    def get_provider(self):
        return self.provider

    def get_model(self):
        return self.model

    def get_options(self):
        return self.of_daft | self.load

    def get_udf_options(self):
        """One model per GPU; on CPUs one per process, with all cores."""
        device = str(self.load.get("device") or "auto")
        options = UDFOptions() if device == "cpu" else get_gpu_udf_options()
        options.batch_size = _ROWS
        for name, value in self.of_daft.items():
            setattr(options, name, value)
        return options


@dataclass
class _Embedder(_Description, TextEmbedderDescriptor):
    dimensions: int | None = None
    kind: str | None = None
    encode: dict[str, Any] = field(default_factory=dict)

    def get_dimensions(self):
        size = self.dimensions
        if size is None:
            # From the model's files, which are not loaded.
            name = full_name(self.model, SentenceTransformer._organization)
            names = ("cache_folder", "revision", "local_files_only", "token", "engine", "onnx_file")
            files = {key: self.load[key] for key in names if key in self.load}
            size = plan(name, task="embed", device="cpu", **files)["dimension"]
        return EmbeddingDimensions(size=size, dtype=DataType.float32())

    def instantiate(self):
        return _TextEmbedder(self)


class _TextEmbedder(TextEmbedder):
    def __init__(self, description):
        self._model = shared_model(SentenceTransformer, description.model, **description.load)
        method = {None: "encode", "query": "encode_query", "document": "encode_document"}[description.kind]
        self._encode = getattr(self._model, method)
        self._options = description.encode | {"truncate_dim": description.dimensions, "show_progress_bar": False}

    def embed_text(self, text):
        # Truncated embeddings have unit length, as those of OpenAI have.
        given = [one for one in text if one is not None]
        rows = self._encode(given, **self._options)
        if self._options["truncate_dim"] is not None:
            rows = rows / numpy.maximum(numpy.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return _with_nulls(text, rows)


@dataclass
class _Labeler(_Description, TextClassifierDescriptor):
    hypothesis: str = _HYPOTHESIS

    def instantiate(self):
        return _TextClassifier(self)


class _TextClassifier(TextClassifier):
    def __init__(self, description):
        self._name, self._hypothesis = description.model, description.hypothesis
        self._model = shared_model(Classifier, description.model, **description.load)

    def classify_text(self, text, labels):
        labels = [labels] if isinstance(labels, str) else list(labels)
        given = [one for one in text if one is not None]
        if not given:
            return [None] * len(text)
        own = [label.casefold() for label in self._model.labels]
        if all(label.casefold() in own for label in labels):
            scores = self._model.logits(given)[:, [own.index(label.casefold()) for label in labels]]
        elif (entailment := next((i for i, label in enumerate(own) if label.startswith("entail")), None)) is not None:
            # Zero-shot: whether a text entails the hypothesis of each label, as transformers' pipeline does.
            pairs = [(one, self._hypothesis.format(label)) for one in given for label in labels]
            scores = self._model.logits(pairs)[:, entailment].reshape(-1, len(labels))
        else:
            known = ", ".join(self._model.labels)
            unknown = next(label for label in labels if label.casefold() not in own)
            raise InputError(
                f"{self._name} has no label `{unknown}`, but {known}; for labels of your own take a model of natural "
                "language inference, such as facebook/bart-large-mnli"
            )
        return _with_nulls(text, [labels[i] for i in scores.argmax(1)])


def _split(options):
    """The options that Daft reads, and the others."""
    of_daft = {name: value for name, value in options.items() if name in _OF_DAFT}
    return of_daft, {name: value for name, value in options.items() if name not in of_daft}


def _with_nulls(text, results):
    """Results for the texts that are not null, and null for the others."""
    results = iter(results)
    return [None if one is None else next(results) for one in text]


PROVIDERS.setdefault("sconce", SconceProvider)
