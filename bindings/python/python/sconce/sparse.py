"""Sparse embeddings: a matrix in CSR form."""

import numpy

from .errors import InputError


class SparseMatrix:
    """Sparse embeddings, a row per text and a column per token of the vocabulary.

    Row `i` has the values `data[indptr[i]:indptr[i + 1]]` in the columns `indices[…]`, ascending.
    """

    def __init__(self, indptr, indices, data, shape):
        self.indptr, self.indices, self.data = indptr, indices, data
        self.shape = tuple(shape)

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, i):
        """Rows: an index gives a matrix with that row alone, a slice several."""
        if isinstance(i, slice):
            return SparseMatrix.stack([self[k] for k in range(*i.indices(len(self)))], self.shape[1])
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        indices, data = self.row(i % len(self))
        return SparseMatrix(numpy.array([0, len(data)]), indices, data, (1, self.shape[1]))

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def row(self, i):
        """Columns and values of a row."""
        part = slice(self.indptr[i], self.indptr[i + 1])
        return self.indices[part], self.data[part]

    @staticmethod
    def stack(rows, width):
        """One matrix from several."""
        if not rows:
            return SparseMatrix(numpy.zeros(1, numpy.int64), numpy.zeros(0, numpy.int64), numpy.zeros(0, "f4"), (0, width))
        lengths = numpy.concatenate([numpy.diff(row.indptr) for row in rows])
        indices = numpy.concatenate([row.indices for row in rows])
        data = numpy.concatenate([row.data for row in rows])
        return SparseMatrix(numpy.concatenate([[0], numpy.cumsum(lengths)]), indices, data, (len(lengths), width))

    def top(self, k):
        """Only the `k` largest values of each row."""
        rows = []
        for row in self:
            # Stable, so that of equal weights the lower token stays.
            keep = numpy.sort(numpy.argsort(-row.data, kind="stable")[:k])
            rows.append(SparseMatrix(numpy.array([0, len(keep)]), row.indices[keep], row.data[keep], row.shape))
        return SparseMatrix.stack(rows, self.shape[1])

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
        return torch.sparse_coo_tensor(places, torch.from_numpy(self.data), self.shape).coalesce()

    def __matmul__(self, other):
        """The dot product of every row with every row of `other`, which is transposed."""
        if self.shape[1] != other.shape[1]:
            raise InputError(f"rows of {self.shape[1]} and {other.shape[1]} columns")
        result = numpy.zeros((len(self), len(other)), numpy.float32)
        dense = numpy.zeros(self.shape[1], numpy.float32)
        for i in range(len(self)):
            indices, data = self.row(i)
            dense[indices] = data
            products = dense[other.indices] * other.data
            sums = numpy.concatenate([[0], numpy.cumsum(products, dtype=numpy.float64)])
            result[i] = sums[other.indptr[1:]] - sums[other.indptr[:-1]]
            dense[indices] = 0
        return result

    def __repr__(self):
        return f"SparseMatrix(shape={self.shape}, values={len(self.data)})"
