"""The library of ONNX Runtime in the package `onnxruntime` of this interpreter."""

import importlib.util
import os
import re
from pathlib import Path

# As Linux, macOS and Windows name it; other libraries of the package have more in their names.
_NAME = re.compile(r"(lib)?onnxruntime\.(so(\.[\d.]+)?|([\d.]+\.)?dylib|dll)")


def onnx_library():
    """Its path; `None` if the package is absent, or if `ORT_DYLIB_PATH` names a library.

    The environment of an interpreter that was started by its path is not active, so the engine does
    not find it by itself. The package is not imported.
    """
    if os.environ.get("ORT_DYLIB_PATH"):
        return None
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        return None
    for folder in spec.submodule_search_locations or () if spec else ():
        files = sorted(Path(folder, "capi").glob("*onnxruntime.*"))
        named = [path for path in files if _NAME.fullmatch(path.name)]
        if named:
            return str(named[-1])
    return None
