"""Sparse embeddings: of one text as a vector, of several as a matrix in CSR form."""

import numpy

from .errors import InputError
from .similarity import is_tensor


class SparseVector:
    """The sparse embedding of one text: the weights `data` of the tokens `indices`, ascending."""

    ndim = 1

    def __init__(self, indices, data, size):
        self.indices, self.data = indices, data
        self.shape = (size,)

    def __len__(self):
        return self.shape[0]

    def to_matrix(self):
        """A matrix with this row alone."""
        return SparseMatrix(numpy.array([0, len(self.data)]), self.indices, self.data, (1, *self.shape))

    def top(self, k):
        """Only the `k` largest values."""
        # Stable, so that of equal weights the lower token stays.
        keep = numpy.sort(numpy.argsort(-self.data, kind="stable")[:k])
        return SparseVector(self.indices[keep], self.data[keep], self.shape[0])

    def to_dense(self):
        """A numpy array."""
        return self.to_matrix().to_dense()[0]

    def to_scipy(self):
        """A `scipy.sparse.csr_matrix` with one row."""
        return self.to_matrix().to_scipy()

    def to_torch(self):
        """A coalesced sparse tensor (COO)."""
        return self.to_matrix().to_torch()[0].coalesce()

    def __repr__(self):
        return f"SparseVector(shape={self.shape}, values={len(self.data)})"


class SparseMatrix:
    """Sparse embeddings, a row per text and a column per token of the vocabulary.

    Row `i` has the values `data[indptr[i]:indptr[i + 1]]` in the columns `indices[…]`, ascending.
    """

    ndim = 2

    def __init__(self, indptr, indices, data, shape):
        self.indptr, self.indices, self.data = indptr, indices, data
        self.shape = tuple(shape)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        """A row as a vector; a slice gives a matrix."""
        if isinstance(i, slice):
            return SparseMatrix.stack([self[k] for k in range(*i.indices(len(self)))], self.shape[1])
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        return SparseVector(*self.row(i % len(self)), self.shape[1])

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def row(self, i):
        """Columns and values of a row."""
        part = slice(self.indptr[i], self.indptr[i + 1])
        return self.indices[part], self.data[part]

    @staticmethod
    def stack(parts, width):
        """One matrix from several vectors and matrices."""
        parts = [part.to_matrix() if part.ndim == 1 else part for part in parts]
        if not parts:
            return SparseMatrix(numpy.zeros(1, numpy.int64), numpy.zeros(0, numpy.int64), numpy.zeros(0, "f4"), (0, width))
        lengths = numpy.concatenate([numpy.diff(part.indptr) for part in parts])
        indices = numpy.concatenate([part.indices for part in parts])
        data = numpy.concatenate([part.data for part in parts])
        return SparseMatrix(numpy.concatenate([[0], numpy.cumsum(lengths)]), indices, data, (len(lengths), width))

    @staticmethod
    def of(embeddings):
        """A matrix from a vector, an array, a tensor, or a list of them."""
        if isinstance(embeddings, SparseMatrix):
            return embeddings
        if isinstance(embeddings, SparseVector):
            return embeddings.to_matrix()
        if isinstance(embeddings, (list, tuple)) and len(embeddings) and not numpy.isscalar(embeddings[0]):
            parts = [SparseMatrix.of(part) for part in embeddings]
            return SparseMatrix.stack(parts, parts[0].shape[1])
        if is_tensor(embeddings):
            embeddings = embeddings.to_dense().detach().cpu().float().numpy()
        dense = numpy.atleast_2d(numpy.asarray(embeddings, numpy.float32))
        if dense.ndim != 2:
            raise InputError(f"embeddings have {dense.ndim} dimensions; use one for a text, two for several")
        rows, indices = numpy.nonzero(dense)
        indptr = numpy.concatenate([[0], numpy.cumsum(numpy.bincount(rows, minlength=len(dense)))])
        return SparseMatrix(indptr, indices, dense[rows, indices], dense.shape)

    def top(self, k):
        """Only the `k` largest values of each row."""
        return SparseMatrix.stack([row.top(k) for row in self], self.shape[1])

    def unit(self):
        """Every row divided by its length."""
        sums = numpy.concatenate([[0], numpy.cumsum(self.data.astype(numpy.float64) ** 2)])[self.indptr]
        scale = numpy.repeat(numpy.maximum(numpy.sqrt(numpy.diff(sums)), 1e-12), numpy.diff(self.indptr))
        return SparseMatrix(self.indptr, self.indices, (self.data / scale).astype(numpy.float32), self.shape)

    def to_dense(self):
        """A numpy matrix."""
        dense = numpy.zeros(self.shape, numpy.float32)
        dense[numpy.repeat(numpy.arange(len(self)), numpy.diff(self.indptr)), self.indices] = self.data
        return dense

    def to_scipy(self):
        """A `scipy.sparse.csr_matrix` that shares the memory."""
        from scipy.sparse import csr_matrix

        return csr_matrix((self.data, self.indices, self.indptr), shape=self.shape)

    def to_torch(self):
        """A coalesced sparse tensor (COO), as sentence-transformers returns it."""
        import torch

        rows = numpy.repeat(numpy.arange(len(self)), numpy.diff(self.indptr))
        places = torch.from_numpy(numpy.stack([rows, self.indices]))
        return torch.sparse_coo_tensor(places, torch.from_numpy(self.data), self.shape, check_invariants=True).coalesce()

    def __matmul__(self, other):
        """The dot product of every row with every row of `other`, which is transposed."""
        other = SparseMatrix.of(other)
        result = numpy.zeros((len(self), len(other)), numpy.float32)
        for i, products in self._products(other):
            sums = numpy.concatenate([[0], numpy.cumsum(products, dtype=numpy.float64)])
            result[i] = sums[other.indptr[1:]] - sums[other.indptr[:-1]]
        return result

    def _products(self, other):
        """For each row, its products with the values of all rows of `other`."""
        if self.shape[1] != other.shape[1]:
            raise InputError(f"rows of {self.shape[1]} and {other.shape[1]} columns; give embeddings of one model")
        dense = numpy.zeros(self.shape[1], numpy.float32)
        for i in range(len(self)):
            indices, data = self.row(i)
            dense[indices] = data
            yield i, dense[other.indices] * other.data
            dense[indices] = 0

    def intersect(self, vector):
        """The products of every row with a vector, where they are above zero."""
        ((_, products),) = vector.to_matrix()._products(self)
        keep = products > 0
        indptr = numpy.concatenate([[0], numpy.cumsum(keep)])[self.indptr]
        return SparseMatrix(indptr, self.indices[keep], products[keep], self.shape)

    def __repr__(self):
        return f"SparseMatrix(shape={self.shape}, values={len(self.data)})"
