"""Inputs of calls: texts as lists, numpy arrays, Arrow arrays or any other iterable of `str`."""

import itertools

from .errors import InputError
from .progress import bar, logger

# Texts of one call into the engine while a progress bar is shown, or an iterable is read.
WINDOW = 2048


def as_texts(inputs):
    """A list of `str`, and whether the input was a single text."""
    if isinstance(inputs, str):
        return [inputs], True
    if hasattr(inputs, "__arrow_c_stream__") or hasattr(inputs, "__arrow_c_array__"):
        inputs = from_arrow(inputs)
    elif hasattr(inputs, "tolist"):  # numpy, pandas
        inputs = inputs.tolist()
        if isinstance(inputs, str):  # An array without dimensions.
            return [inputs], True
    if isinstance(inputs, (bytes, bytearray, dict)):
        raise TypeError(f"texts must be a str or a list of str, not {type(inputs).__name__}")
    texts = inputs if isinstance(inputs, list) else list(inputs)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text {i + 1} is {type(text).__name__}, not str")
    return texts, False


def from_arrow(array):
    """The values of an Arrow array, or of an object that exports one (polars, DuckDB)."""
    try:
        import pyarrow
    except ImportError as e:
        raise ImportError("Arrow arrays need pyarrow: pip install pyarrow") from e
    if not isinstance(array, (pyarrow.Array, pyarrow.ChunkedArray)):
        is_stream = hasattr(array, "__arrow_c_stream__")
        array = pyarrow.chunked_array(array) if is_stream else pyarrow.array(array)
    if array.null_count:
        raise InputError(f"the Arrow array has {array.null_count} nulls; texts cannot be null")
    return array.to_pylist()


def to_arrow(embeddings):
    """Embeddings as an Arrow array of fixed-size lists of float32, which shares their memory."""
    import numpy
    import pyarrow

    embeddings = numpy.ascontiguousarray(embeddings)
    if embeddings.ndim != 2:
        raise InputError(f"embeddings must have two dimensions, not {embeddings.ndim}")
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(embeddings.reshape(-1)), embeddings.shape[1])


def windows(items, size=WINDOW):
    """Lists of up to `size` items."""
    items = iter(items)
    while window := list(itertools.islice(items, size)):
        yield window


def in_windows(run, items, show_progress_bar, desc="Batches"):
    """The results of `run` for all items: in one call, or with a progress bar in windows."""
    if show_progress_bar is None:
        show_progress_bar = logger.isEnabledFor(20)
    if not show_progress_bar or not items:
        return [run(items)]
    results, progress = [], bar(len(items), desc, "texts")
    try:
        for window in windows(items):
            results.append(run(window))
            progress.update(len(window))
    finally:
        progress.close()
    return results
