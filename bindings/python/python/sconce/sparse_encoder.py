"""`SparseEncoder`: sparse embeddings (SPLADE) with the API of sentence-transformers."""

import operator

import numpy

from . import _sconce
from . import similarity as _similarity
from .base_model import EmbeddingModel, renamed
from .errors import InputError
from .similarity import is_tensor, like
from .sparse import SparseMatrix
from .texts import as_texts, in_windows


class SparseEncoder(EmbeddingModel):
    """A model that gives each text weights over the vocabulary.

    Without torch: results are a `SparseMatrix`, or a `SparseVector` for a single text. With
    `convert_to_tensor=True` they are tensors, and methods that are given tensors return tensors.
    """

    _task = "sparse"
    _organization = "sparse-encoder"

    def __init__(self, model_name_or_path, *, similarity_fn_name=None, max_active_dims=None, **options):
        super().__init__(model_name_or_path, **options)
        names = ("dot", *(name for name in _similarity.NAMES if name != "dot"))
        self.similarity_fn_name = self._similarity_name(similarity_fn_name, names)
        self.max_active_dims = max_active_dims if max_active_dims is not None else self._config.get("max_active_dims")
        _positive(self.max_active_dims, "max_active_dims")

    @renamed(sentences="inputs")
    def encode(
        self,
        inputs,
        prompt_name=None,
        prompt=None,
        batch_size=32,
        show_progress_bar=None,
        convert_to_tensor=False,
        convert_to_sparse_tensor=True,
        save_to_cpu=False,
        device=None,
        max_active_dims=None,
        pool=None,
        chunk_size=None,
        *,
        task=None,
    ):
        """Sparse embeddings as a `SparseMatrix`, or a `SparseVector` for a single text.

        With `convert_to_tensor` they are a sparse tensor; without `convert_to_sparse_tensor`, dense.
        `batch_size` and `save_to_cpu` have no effect.
        """
        self._check_call(device, pool, chunk_size)
        texts, is_single = as_texts(inputs)
        before = self._resolve_prompt(prompt_name, prompt)
        texts = [before + text for text in texts] if before else texts
        parts = in_windows(lambda part: self._embed(part, task), texts, show_progress_bar)
        matrix = parts[0] if len(parts) == 1 else SparseMatrix.stack(parts, self._info["vocabulary"])
        most = max_active_dims if max_active_dims is not None else self.max_active_dims
        result = matrix if most is None else matrix.top(_positive(most, "max_active_dims"))
        result = result[0] if is_single else result
        if convert_to_tensor:
            tensor = result.to_torch()
            return tensor if convert_to_sparse_tensor else tensor.to_dense()
        return result if convert_to_sparse_tensor else result.to_dense()

    def decode(self, embeddings, top_k=None):
        """The tokens of embeddings with their weights, largest first.

        A list of pairs for the embedding of one text, a list of such lists for a matrix.
        """
        _positive(top_k, "top_k")
        matrix = SparseMatrix.of(embeddings)
        rows = []
        for row in matrix:
            order = numpy.argsort(-row.data, kind="stable")[:top_k]
            tokens = _sconce.sparse_tokens(self._model, row.indices[order].tolist())
            rows.append(list(zip(tokens, row.data[order].tolist())))
        return rows[0] if getattr(embeddings, "ndim", 2) == 1 else rows

    def similarity(self, embeddings1, embeddings2):
        """The similarity of every embedding with every other; the dot product by default."""
        a, b = SparseMatrix.of(embeddings1), SparseMatrix.of(embeddings2)
        if self.similarity_fn_name == "dot":
            result = a @ b
        elif self.similarity_fn_name == "cosine":
            result = a.unit() @ b.unit()
        else:
            result = _similarity.similarity(a.to_dense(), b.to_dense(), self.similarity_fn_name)
        return like(result, embeddings1)

    def similarity_pairwise(self, embeddings1, embeddings2):
        """The similarity of embeddings at the same place."""
        a, b = SparseMatrix.of(embeddings1), SparseMatrix.of(embeddings2)
        if len(a) != len(b):
            raise InputError(f"{len(a)} and {len(b)} embeddings; similarity_pairwise needs as many of both")
        name = self.similarity_fn_name
        rows = [_similarity.similarity_pairwise(x.to_dense(), y.to_dense(), name) for x, y in zip(a, b)]
        return like(numpy.concatenate(rows) if rows else numpy.zeros(0, numpy.float32), embeddings1)

    @staticmethod
    def intersection(embeddings_1, embeddings_2):
        """The tokens that the embedding of one text shares with another or with several.

        The weights are the products of both.
        """
        first = SparseMatrix.of(embeddings_1)
        if len(first) != 1:
            raise InputError(f"embeddings_1 are {len(first)} embeddings; intersection needs one")
        result = SparseMatrix.of(embeddings_2).intersect(first[0])
        result = result[0] if getattr(embeddings_2, "ndim", 2) == 1 else result
        return result.to_torch() if is_tensor(embeddings_1) else result

    @staticmethod
    def sparsity(embeddings):
        """The mean number of weights of a row, and the mean share of zeros."""
        matrix = SparseMatrix.of(embeddings)
        if not all(matrix.shape):
            return {"active_dims": 0.0, "sparsity_ratio": 1.0}
        active = len(matrix.data) / len(matrix)
        return {"active_dims": active, "sparsity_ratio": 1 - active / matrix.shape[1]}

    def get_sentence_embedding_dimension(self):
        """The size of the vocabulary."""
        return self._info["vocabulary"]

    get_embedding_dimension = get_sentence_embedding_dimension

    def _embed(self, texts, task):
        route = task if task in ("query", "document") else None
        parts = _sconce.embed_sparse(self._model, texts, self._max_seq_length, route)
        return SparseMatrix(*map(numpy.asarray, parts), (len(texts), self._info["vocabulary"]))


def _positive(number, name):
    if number is not None and operator.index(number) < 1:
        raise InputError(f"{name} is {number}; use a number above 0")
    return number
