"""The API of fastembed: `TextEmbedding`, `SparseTextEmbedding`, `LateInteractionTextEmbedding`,
`TextCrossEncoder`. Results are generators, and inputs may be generators too."""

import json
from dataclasses import dataclass

import numpy

from . import _sconce
from .cross_encoder import CrossEncoder, identity
from .errors import InputError
from .machine import plan, set_threads
from .multi_vector_encoder import MultiVectorEncoder
from .sentence_transformer import SentenceTransformer
from .sparse_encoder import SparseEncoder
from .texts import as_texts, windows


def _device(providers, cuda, device_ids):
    """The device that fastembed's arguments choose; None for the best."""
    cuda = getattr(cuda, "value", cuda)  # An enum in fastembed.
    if providers is not None:
        for provider in providers:
            name, options = (provider, {}) if isinstance(provider, str) else provider
            if name == "CPUExecutionProvider":
                return "cpu"
            if name == "CUDAExecutionProvider":
                return f"cuda:{options.get('device_id', (device_ids or [0])[0])}"
        raise InputError(f"providers {providers}: use CPUExecutionProvider or CUDAExecutionProvider, or device=…")
    if cuda is True or cuda == "cuda":
        return f"cuda:{device_ids[0]}" if device_ids else "cuda"
    return "cpu" if cuda is False or cuda == "cpu" else None


class _Fastembed:
    _encoder = None
    _default = None
    # Our short names of models of this class.
    _short_names = ()

    def __init__(
        self,
        model_name=None,
        cache_dir=None,
        threads=None,
        providers=None,
        cuda="auto",
        device_ids=None,
        lazy_load=False,
        *,
        device=None,
        local_files_only=False,
        dtype=None,
    ):
        if threads is not None:
            set_threads(threads)
        device = device if device is not None else _device(providers, cuda, device_ids)
        self.model_name = model_name or self._default
        self._arguments = dict(
            cache_folder=cache_dir, device=device, local_files_only=local_files_only, dtype=dtype
        )
        self._loaded = None
        if not lazy_load:
            self.model

    @property
    def model(self):
        """The encoder, loaded on first use if `lazy_load`."""
        if self._loaded is None:
            self._loaded = self._encoder(self.model_name, **self._arguments)
        return self._loaded

    @classmethod
    def list_supported_models(cls):
        """The models of this class that have a short name. Others work by their name on the hub."""
        names = json.loads(_sconce.short_names())
        return [
            {"model": entry["repo"], "short_name": entry["name"], "sources": {"hf": entry["repo"]}}
            for entry in names
            if entry["name"] in cls._short_names
        ]

    def close(self):
        """Unloads the model."""
        if self._loaded is not None:
            self._loaded.close()


class _Embedding(_Fastembed):
    """Classes that embed texts."""

    def token_count(self, texts, batch_size=1024, **_):
        """The tokens of all texts, special tokens included, each truncated as for the model."""
        texts, most = [texts] if isinstance(texts, str) else texts, self.model.max_seq_length
        return sum(min(len(self.model._model.tokenize(text, True)[0]), most) for text in texts)

    def _each(self, texts, encode):
        """The results for all texts, read and encoded in windows."""
        texts = as_texts(texts)[0] if isinstance(texts, str) or hasattr(texts, "__array__") else texts
        for window in windows(texts):
            yield from encode(window)


class _Sized(_Embedding):
    """Classes whose embeddings have a dimension."""

    @property
    def embedding_size(self):
        """The dimension of an embedding, or of each vector of one."""
        return self.model.get_embedding_dimension()

    @classmethod
    def get_embedding_size(cls, model_name):
        """The dimension of a model's embeddings, from its files, which are not loaded."""
        return plan(model_name, task=cls._encoder._task, device="cpu")["dimension"]


class TextEmbedding(_Sized):
    """Dense embeddings, L2-normalized if the model's files say so."""

    _encoder, _default = SentenceTransformer, "BAAI/bge-small-en-v1.5"
    _short_names = ("minilm", "mpnet", "e5-small", "bge-small", "bge-m3", "nomic", "qwen3-embedding")

    def embed(self, documents, batch_size=256, parallel=None, **_):
        """An array for each document."""
        return self._each(documents, self.model.encode)

    def query_embed(self, query, **_):
        """An array for each query."""
        return self._each(query, self.model.encode_query)

    def passage_embed(self, texts, **_):
        """An array for each passage."""
        return self._each(texts, self.model.encode_document)


@dataclass
class SparseEmbedding:
    """Weights of tokens."""

    values: numpy.ndarray
    indices: numpy.ndarray

    def as_object(self):
        """Both arrays, by name."""
        return {"values": self.values, "indices": self.indices}

    def as_dict(self):
        """Weights by token id."""
        return dict(zip(self.indices.tolist(), self.values.tolist()))

    @classmethod
    def from_dict(cls, data):
        """From weights by token id."""
        return cls(numpy.array(list(data.values()), float), numpy.array(list(data), numpy.int64))


class SparseTextEmbedding(_Embedding):
    """Sparse embeddings (SPLADE)."""

    _encoder, _default = SparseEncoder, "prithivida/Splade_PP_en_v1"
    _short_names = ("bge-m3",)

    def embed(self, documents, batch_size=256, parallel=None, **_):
        """A `SparseEmbedding` for each document."""

        def encode(window):
            matrix = self.model.encode(window)
            for i in range(len(matrix)):
                indices, values = matrix.row(i)
                yield SparseEmbedding(values=values, indices=indices)

        return self._each(documents, encode)

    def query_embed(self, query, **options):
        """A `SparseEmbedding` for each query."""
        return self.embed(query, **options)

    def passage_embed(self, texts, **options):
        """A `SparseEmbedding` for each passage."""
        return self.embed(texts, **options)


class LateInteractionTextEmbedding(_Sized):
    """Multi-vector embeddings (ColBERT)."""

    _encoder, _default = MultiVectorEncoder, "colbert-ir/colbertv2.0"
    _short_names = ("bge-m3",)

    def embed(self, documents, batch_size=256, parallel=None, **_):
        """A matrix for each document, a row per token."""
        return self._each(documents, self.model.encode_document)

    def passage_embed(self, texts, **_):
        """A matrix for each passage, a row per token."""
        return self._each(texts, self.model.encode_document)

    def query_embed(self, query, **_):
        """A matrix for each query."""
        return self._each(query, self.model.encode_query)


class TextCrossEncoder(_Fastembed):
    """Scores of documents for a query, not between 0 and 1 but logits, as in fastembed."""

    _encoder, _default = CrossEncoder, "cross-encoder/ms-marco-MiniLM-L6-v2"
    _short_names = ("bge-reranker",)

    def rerank(self, query, documents, batch_size=64, **_):
        """A score for each document, in their order."""
        return self.rerank_pairs(((query, document) for document in documents), batch_size)

    def rerank_pairs(self, pairs, batch_size=64, parallel=None, **_):
        """A score for each pair of a query and a document."""
        for window in windows(pairs):
            yield from self.model.predict([tuple(pair) for pair in window], activation_fn=identity).tolist()

    def token_count(self, pairs, batch_size=1024, **_):
        """The tokens of all pairs, special tokens included, each truncated as for the model."""
        model, most = self.model._model, self.model._max_seq_length
        return sum(sum(_sconce.count_pair_tokens(model, list(map(tuple, window)), most)) for window in windows(pairs))
