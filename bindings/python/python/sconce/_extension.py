"""Chooses the extension module: that of `sconce-engine-cuda` where it is installed, else our own.

The modules of this package import the chosen one as `from . import _sconce`.
"""

import importlib.metadata
import importlib.util
import sys
import warnings


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _with_cuda():
    """The extension module with CUDA; None, with a warning, if it is installed but unusable."""
    if importlib.util.find_spec("sconce_cuda") is None:
        return None
    ours, theirs = _version("sconce-engine"), _version("sconce-engine-cuda")
    if ours is None or theirs is None:
        missing = "sconce-engine" if ours is None else "sconce-engine-cuda"
        why = f"the metadata (dist-info) of {missing} is missing, so the versions cannot be compared: install it with pip"
    elif ours != theirs:
        why = f"its version is {theirs} and that of sconce-engine is {ours}: install the same version of both"
    else:
        try:
            from sconce_cuda import _sconce

            return _sconce
        except ImportError as error:
            why = (
                f"{error}. Install CUDA 13's libraries with `pip install 'sconce-engine-cuda[libraries]'`, "
                "or add those of the CUDA toolkit to LD_LIBRARY_PATH"
            )
    warnings.warn(f"sconce-engine-cuda is installed, but CUDA cannot be used: {why}", RuntimeWarning, stacklevel=2)
    return None


_chosen = _with_cuda()
if _chosen is not None:
    sys.modules["sconce._sconce"] = _chosen
    sys.modules["sconce"]._sconce = _chosen
