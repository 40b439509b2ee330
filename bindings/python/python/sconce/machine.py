"""Devices, plans, checks and counts."""

import json
import os
import subprocess

from . import _sconce
from .errors import SconceError
from .json_options import to_json
from .models import load_options, open_models
from .progress import LoadProgress


def devices():
    """The devices that models can run on here; `best` is the one that `auto` chooses."""
    return json.loads(_sconce.devices())


def plan(model, *, task=None, **options):
    """What will run where, before loading: op calls with their rungs, memory, and whether it fits.

    The device (`device="cuda"`) need not be in this machine. `runs` says whether the model will run
    here, `why_not` why not.
    """
    options = to_json(load_options(**options))
    return json.loads(_sconce.plan(task, os.fspath(model), options, LoadProgress()))


def doctor(*, device=None, op=None):
    """Checks every kernel against its f64 reference on this machine, like `sconce doctor --json`.

    It runs in a process of its own, because a kernel may crash.
    """
    from .__main__ import program

    command = [program(), "doctor", "--json"]
    command += ["--device", device] if device else []
    command += ["--op", op] if op else []
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SconceError(done.stderr.strip() or f"sconce doctor ended with {done.returncode}") from None


def counts():
    """The op calls of all open models since loading, by op, device, dtype and rung."""
    total = {}
    for model in open_models():
        for row in model.counts():
            key = (row["op"], row["device"], row["dtype"], row["rung"])
            total[key] = total.get(key, 0) + row["calls"]
    names = ("op", "device", "dtype", "rung")
    return [dict(zip(names, key)) | {"calls": calls} for key, calls in sorted(total.items())]


def set_threads(count):
    """Fixes the number of CPU threads; only before the first model runs."""
    _sconce.set_threads(count)
