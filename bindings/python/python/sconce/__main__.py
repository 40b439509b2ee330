"""The command `sconce`."""

import os
import shutil
import signal
import sys
from pathlib import Path


def program():
    """The script `sconce`, which some commands start again."""
    names = ["sconce.exe", "sconce"] if os.name == "nt" else ["sconce"]
    # `pip install --target` puts scripts into a folder beside the package.
    folders = [Path(sys.executable).parent, Path(__file__).resolve().parents[1] / "bin"]
    for path in [Path(sys.argv[0])] + [folder / name for folder in folders for name in names]:
        if path.name in names and path.is_file():
            return str(path.absolute())
    found = shutil.which("sconce")
    if found is None:
        raise FileNotFoundError("the script `sconce` is neither beside the interpreter nor on the path")
    return found


def main():
    from . import _sconce
    from .onnx_library import onnx_library

    # The command has its own handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.environ.setdefault("SCONCE_PROGRAM", program())
    except FileNotFoundError:
        pass
    library = onnx_library()
    if library:
        os.environ["ORT_DYLIB_PATH"] = library
    # The first argument decides which command runs: a link may have the name of a worker.
    name = sys.argv[0] if Path(sys.argv[0]).name != "__main__.py" else "sconce"
    sys.exit(_sconce.run_command([name, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
