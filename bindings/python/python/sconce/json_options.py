"""Options of calls as JSON, which is how the extension module takes them."""

import json
import os


def to_json(options):
    """JSON of options; numbers may be numpy's, and paths `os.PathLike`."""
    return json.dumps(options, default=_plain)


def _plain(value):
    if hasattr(value, "item"):  # A number or an array of numpy or torch.
        return value.item() if value.ndim == 0 else value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} is {type(value).__name__}, which is neither a number, a text nor a list of them")
