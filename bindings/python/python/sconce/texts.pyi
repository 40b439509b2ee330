"""Inputs of calls: texts as lists, numpy arrays, Arrow arrays or any other iterable of `str`."""

from typing import Any

from numpy.typing import NDArray

def to_arrow(embeddings: NDArray[Any]) -> Any: ...
