"""`SparseEncoder`: sparse embeddings (SPLADE) with the API of sentence-transformers."""

import numpy

from . import _sconce
from . import similarity as _similarity
from .errors import InputError
from .models import Model
from .sentence_transformer import dtype_of, read_json
from .sparse import SparseMatrix
from .texts import as_texts, in_windows


class SparseEncoder(Model):
    """A model that gives each text weights over the vocabulary."""

    _task = "sparse"

    def __init__(
        self,
        model_name_or_path,
        *,
        device=None,
        similarity_fn_name=None,
        cache_folder=None,
        revision=None,
        local_files_only=False,
        token=None,
        max_active_dims=None,
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
        config = read_json(self._info, "config_sentence_transformers.json")
        self.similarity_fn_name = similarity_fn_name or config.get("similarity_fn_name") or "dot"
        self.max_active_dims = max_active_dims
        self._max_seq_length = None

    @property
    def max_seq_length(self):
        """Texts are truncated at this many tokens."""
        return self._max_seq_length or self._info["max_tokens"]

    @max_seq_length.setter
    def max_seq_length(self, value):
        self._max_seq_length = min(int(value), self._info["max_tokens"])

    def encode(
        self,
        inputs=None,
        batch_size=32,
        show_progress_bar=None,
        convert_to_tensor=False,
        convert_to_sparse_tensor=True,
        max_active_dims=None,
        *,
        sentences=None,
    ):
        """Sparse embeddings as a `SparseMatrix`; as a torch tensor if `convert_to_tensor`."""
        inputs = inputs if inputs is not None else sentences
        if inputs is None:
            raise TypeError("encode() needs texts")
        texts, is_single = as_texts(inputs)
        parts = in_windows(self._embed, texts, show_progress_bar)
        matrix = parts[0] if len(parts) == 1 else SparseMatrix.stack(parts, self._info["vocabulary"])
        most = max_active_dims if max_active_dims is not None else self.max_active_dims
        matrix = matrix if most is None else matrix.top(most)
        if convert_to_tensor:
            tensor = matrix.to_torch()
            tensor = tensor if convert_to_sparse_tensor else tensor.to_dense()
            return tensor[0] if is_single else tensor
        if not convert_to_sparse_tensor:
            return matrix.to_dense()[0] if is_single else matrix.to_dense()
        return matrix

    def encode_query(self, inputs, **options):
        """`encode`: SPLADE reads queries and documents alike."""
        return self.encode(inputs, **options)

    encode_document = encode_query

    def decode(self, embeddings, top_k=None):
        """The tokens of embeddings with their weights, largest first: a list for each row."""
        matrix = _matrix(embeddings)
        rows = []
        for i in range(len(matrix)):
            indices, data = matrix.row(i)
            order = numpy.argsort(-data, kind="stable")[:top_k]
            tokens = _sconce.sparse_tokens(self._model, indices[order].tolist())
            rows.append(list(zip(tokens, data[order].tolist())))
        return rows[0] if len(rows) == 1 else rows

    def similarity(self, embeddings1, embeddings2):
        """The similarity of every embedding with every other; the dot product by default."""
        if self.similarity_fn_name == "dot":
            return _matrix(embeddings1) @ _matrix(embeddings2)
        dense = [_matrix(embeddings).to_dense() for embeddings in (embeddings1, embeddings2)]
        return _similarity.similarity(*dense, self.similarity_fn_name)

    @staticmethod
    def sparsity(embeddings):
        """The mean number of weights of a row, and the mean share of zeros."""
        matrix = _matrix(embeddings)
        active = len(matrix.data) / max(len(matrix), 1)
        return {"active_dims": active, "sparsity_ratio": 1 - active / matrix.shape[1]}

    def get_sentence_embedding_dimension(self):
        """The size of the vocabulary."""
        return self._info["vocabulary"]

    get_embedding_dimension = get_sentence_embedding_dimension

    def _embed(self, texts):
        parts = _sconce.embed_sparse(self._model, texts, self._max_seq_length)
        return SparseMatrix(*map(numpy.asarray, parts), (len(texts), self._info["vocabulary"]))


def _matrix(embeddings):
    if isinstance(embeddings, SparseMatrix):
        return embeddings
    if _similarity.is_tensor(embeddings):
        embeddings = embeddings.to_dense().cpu().numpy()
    dense = numpy.atleast_2d(numpy.asarray(embeddings, numpy.float32))
    if dense.ndim != 2:
        raise InputError(f"embeddings of {dense.ndim} dimensions")
    rows, indices = numpy.nonzero(dense)
    indptr = numpy.concatenate([[0], numpy.cumsum(numpy.bincount(rows, minlength=len(dense)))])
    return SparseMatrix(indptr, indices, dense[rows, indices], dense.shape)
