"""Models of a process that several tasks use: one for each name and options.

Engines such as Daft and Spark call a function in threads and tasks that come and go. The models stay,
and calls of several threads share micro-batches.
"""

import os
import threading

from .json_options import to_json

_models = {}
_lock = threading.Lock()


def shared_model(cls, name, **options):
    """The model of this class, name and options, loaded at the first call in a process.

    A forked process finds the models of its parent, which load again at their first use.
    """
    key = (cls, str(name), to_json(options))
    with _lock:
        if key not in _models:
            _models[key] = cls(name, **options)
        return _models[key]


def _after_fork():
    """A new lock: another thread may have held the old one during the fork."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
