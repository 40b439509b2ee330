"""The base of every class that has a loaded model."""

import json
import os
import threading
import weakref

from . import _sconce
from .errors import ClosedError, DeviceError
from .json_options import to_json
from .onnx_library import onnx_library
from .progress import LoadProgress

# Every open model, for `counts()`.
_open = weakref.WeakSet()


def device_name(device):
    """The engine's name of a device: from a str or a torch.device, with PyTorch's `mps` for Metal."""
    name = str(device)
    return "metal" + name[3:] if name.startswith("mps") else name


def load_options(**options):
    """Options for loading as the engine takes them; `None` is left out."""
    if options.get("onnx_file") is not None:
        options["onnx_file"] = os.fspath(options["onnx_file"])
    if options.get("device") is not None:
        options["device"] = device_name(options["device"])
    if options.get("cache_folder") is not None:
        options["cache_folder"] = os.fspath(options["cache_folder"])
    if options.get("token") is False:
        options["token"] = None
    if options.get("token") is True:  # That of the environment, which is the default.
        options["token"] = None
    return {name: value for name, value in options.items() if value is not None}


class Model:
    """A loaded model. `close` unloads it; it is also a context manager.

    Pickling keeps the name and the options, not the weights: the model is loaded again. The token
    for the hub is not kept: the other process takes that of its environment.
    """

    _task = None
    _is_closed = False

    def __init__(
        self,
        model,
        *,
        device=None,
        dtype=None,
        cache_folder=None,
        revision=None,
        local_files_only=False,
        token=None,
        fallback=False,
        batch_tokens=None,
        engine=None,
        onnx_file=None,
        batch_dependent=False,
    ):
        self._load(
            model,
            device=device,
            dtype=dtype,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            token=token,
            fallback=fallback,
            batch_tokens=batch_tokens,
            engine=engine,
            onnx_file=onnx_file,
            batch_dependent=batch_dependent,
        )

    def _load(self, name, **options):
        self._name = os.fspath(name)
        self._options = load_options(**options)
        self._lock = threading.Lock()
        self._open_model()

    def _open_model(self):
        options = self._options
        if options.get("engine") != "native" and (library := onnx_library()):
            options = options | {"onnx_library": library}
        options = to_json(options)
        self._native = _sconce.load(self._task, self._name, options, LoadProgress())
        self._forks = _sconce.fork_count()
        self._info = json.loads(self._native.info())
        _open.add(self)

    @property
    def _model(self):
        """The native model; in a forked process, loaded again."""
        native = getattr(self, "_native", None)
        if native is None:
            raise TypeError(f"{type(self).__name__} was not initialized")
        if self._is_closed:
            raise ClosedError(f"{self._name} is closed; load it again")
        if self._forks != _sconce.fork_count():
            if self._info["is_gpu"]:
                raise DeviceError(
                    f"{self._name} runs on {self._info['device']}, which a forked process cannot use: start processes "
                    'with the start method `spawn` (multiprocessing.set_start_method("spawn"))'
                )
            with self._lock:
                if self._forks != _sconce.fork_count():
                    self._open_model()
        return self._native

    @property
    def device(self):
        """The device that the model runs on: `cpu`, `cuda:0`, `metal:0`."""
        return self._info["device"]

    @property
    def dtype(self):
        """The format of weights and activations."""
        return self._info["dtype"]

    def counts(self):
        """The op calls since loading: a list of op, device, dtype, rung and calls."""
        return json.loads(self._model.counts())

    def close(self):
        """Unloads the model when the calls in progress have ended."""
        self._is_closed = True
        native = getattr(self, "_native", None)
        if native is not None:
            native.close()
        _open.discard(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getstate__(self):
        state = self.__dict__.copy()
        for name in ("_native", "_forks", "_info", "_lock", "_is_closed"):
            state.pop(name, None)
        state["_options"] = {name: value for name, value in self._options.items() if name != "token"}
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._open_model()

    def __repr__(self):
        info = getattr(self, "_info", {})
        return f"{type(self).__name__}({getattr(self, '_name', None)!r}, device={info.get('device')!r})"


def open_models():
    """Every open model of this process."""
    return list(_open)


def after_fork():
    """Gives every model a new lock: another thread may have held the old one during the fork."""
    for model in open_models():
        model._lock = threading.Lock()
