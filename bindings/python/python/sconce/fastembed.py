"""The API of fastembed: `TextEmbedding`, `SparseTextEmbedding`, `LateInteractionTextEmbedding`,
`TextCrossEncoder`. Results are generators, and inputs may be generators too."""

from dataclasses import dataclass

import numpy

from .cross_encoder import CrossEncoder, identity
from .machine import set_threads
from .multi_vector_encoder import MultiVectorEncoder
from .sentence_transformer import SentenceTransformer
from .sparse_encoder import SparseEncoder
from .texts import as_texts, windows


class _Fastembed:
    _encoder = None
    _default = None

    def __init__(
        self,
        model_name=None,
        cache_dir=None,
        threads=None,
        providers=None,
        cuda=False,
        device_ids=None,
        lazy_load=False,
        *,
        device=None,
        local_files_only=False,
        dtype=None,
    ):
        if threads is not None:
            set_threads(threads)
        if device is None and (cuda is True or "CUDAExecutionProvider" in (providers or [])):
            device = f"cuda:{device_ids[0]}" if device_ids else "cuda"
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

    def close(self):
        """Unloads the model."""
        if self._loaded is not None:
            self._loaded.close()

    def _each(self, texts, encode):
        """The results for all texts, read and encoded in windows."""
        texts = as_texts(texts)[0] if isinstance(texts, str) or hasattr(texts, "__array__") else texts
        for window in windows(texts):
            yield from encode(window)


class TextEmbedding(_Fastembed):
    """Dense embeddings, L2-normalized."""

    _encoder, _default = SentenceTransformer, "BAAI/bge-small-en-v1.5"

    def embed(self, documents, batch_size=256, parallel=None, **_):
        """An array for each document."""
        return self._each(documents, lambda window: self.model.encode(window, normalize_embeddings=True))

    def query_embed(self, query, **_):
        """An array for each query."""
        return self._each(query, lambda window: self.model.encode_query(window, normalize_embeddings=True))

    def passage_embed(self, texts, **_):
        """An array for each passage."""
        return self._each(texts, lambda window: self.model.encode_document(window, normalize_embeddings=True))

    @property
    def embedding_size(self):
        """The dimension of an embedding."""
        return self.model.get_embedding_dimension()


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


class SparseTextEmbedding(_Fastembed):
    """Sparse embeddings (SPLADE)."""

    _encoder, _default = SparseEncoder, "prithivida/Splade_PP_en_v1"

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

    passage_embed = query_embed


class LateInteractionTextEmbedding(_Fastembed):
    """Multi-vector embeddings (ColBERT)."""

    _encoder, _default = MultiVectorEncoder, "colbert-ir/colbertv2.0"

    def embed(self, documents, batch_size=256, parallel=None, **_):
        """A matrix for each document, a row per token."""
        return self._each(documents, self.model.encode_document)

    passage_embed = embed

    def query_embed(self, query, **_):
        """A matrix for each query."""
        return self._each(query, self.model.encode_query)

    @property
    def embedding_size(self):
        """The dimension of a vector."""
        return self.model.get_embedding_dimension()


class TextCrossEncoder(_Fastembed):
    """Scores of documents for a query, not between 0 and 1 but logits, as in fastembed."""

    _encoder, _default = CrossEncoder, "cross-encoder/ms-marco-MiniLM-L6-v2"

    def rerank(self, query, documents, batch_size=64, **_):
        """A score for each document, in their order."""
        return self.rerank_pairs(((query, document) for document in documents), batch_size)

    def rerank_pairs(self, pairs, batch_size=64, parallel=None, **_):
        """A score for each pair of a query and a document."""
        for window in windows(pairs):
            yield from self.model.predict([tuple(pair) for pair in window], activation_fn=_identity).tolist()


class Identity:
    """Leaves logits as they are."""

    __call__ = staticmethod(identity)


_identity = Identity()
