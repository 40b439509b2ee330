"""Similarities of embeddings, as in sentence-transformers' `util`."""

import numpy

from .errors import InputError


def is_tensor(value):
    """Whether the value is a torch tensor."""
    return type(value).__module__.split(".")[0] == "torch"


def to_numpy(embeddings):
    """Embeddings as a float matrix: from an array, a list of arrays, or tensors."""
    if is_tensor(embeddings):
        return embeddings.detach().cpu().float().numpy()
    if isinstance(embeddings, (list, tuple)) and embeddings and is_tensor(embeddings[0]):
        return numpy.stack([to_numpy(row) for row in embeddings])
    return numpy.asarray(embeddings)


def _rows(embeddings):
    embeddings = to_numpy(embeddings)
    return embeddings[None] if embeddings.ndim == 1 else embeddings


def _unit(rows):
    return rows / numpy.maximum(numpy.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def _distances(a, b, order):
    # Row by row, so that no array of a.rows × b.rows × columns is needed.
    return numpy.stack([numpy.linalg.norm(row - b, ord=order, axis=-1) for row in a]) if len(a) else a[:, :0]


_PAIRWISE = {
    "cosine": lambda a, b: (_unit(a) * _unit(b)).sum(-1),
    "dot": lambda a, b: (a * b).sum(-1),
    "euclidean": lambda a, b: -numpy.linalg.norm(a - b, axis=-1),
    "manhattan": lambda a, b: -numpy.abs(a - b).sum(-1),
}
_ALL = {
    "cosine": lambda a, b: _unit(a) @ _unit(b).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: -_distances(a, b, 2),
    "manhattan": lambda a, b: -_distances(a, b, 1),
}
NAMES = tuple(_ALL)


def _function(functions, name):
    if name not in functions:
        raise InputError(f"unknown similarity `{name}`; use one of {', '.join(functions)}")
    return functions[name]


def similarity(a, b, name="cosine"):
    """The similarity of every row of `a` with every row of `b`."""
    return like(_function(_ALL, name)(_rows(a), _rows(b)), a)


def similarity_pairwise(a, b, name="cosine"):
    """The similarity of each row of `a` with the row of `b` at the same place."""
    return like(_function(_PAIRWISE, name)(_rows(a), _rows(b)), a)


def like(result, given):
    """A tensor if a tensor, or a list of tensors, was given."""
    if is_tensor(given) or (isinstance(given, (list, tuple)) and given and is_tensor(given[0])):
        import torch

        return torch.from_numpy(numpy.ascontiguousarray(result))
    return result
