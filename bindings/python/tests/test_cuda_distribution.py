"""The choice between our extension module and that of the distribution `sconce-engine-cuda`.

A stand-in without CUDA takes the place of that distribution: a copy of our own module.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sconce
from sconce import _sconce

CODE = "import sconce; print(sconce._sconce.__file__); print(sconce.devices()[0]['device'])"


def run(folder):
    """What a new interpreter prints that finds the packages in `folder`."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); {CODE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines(), done.stderr


@pytest.fixture
def distribution(tmp_path):
    """Installs a stand-in, with this version (None: no metadata) and this code in its module."""

    def install(version, code):
        package, metadata = tmp_path / "sconce_cuda", tmp_path / f"sconce_engine_cuda-{version}.dist-info"
        package.mkdir()
        shutil.copy(_sconce.__file__, package)
        (package / "__init__.py").write_text(code)
        if version is None:
            return tmp_path
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sconce-engine-cuda\nVersion: {version}\n")
        return tmp_path

    return install


def test_the_module_with_cuda_is_chosen(distribution):
    printed, warned = run(distribution(sconce.__version__, "from . import _sconce"))
    assert Path(printed[0]).parent.name == "sconce_cuda" and printed[1] == "cpu" and not warned


def test_a_module_that_cannot_be_loaded_warns(distribution):
    missing = "raise ImportError('libcublas.so.13: cannot open shared object file')"
    printed, warned = run(distribution(sconce.__version__, missing))
    assert Path(printed[0]).parent.name == "sconce" and printed[1] == "cpu"
    assert "libcublas.so.13" in warned and "sconce-engine-cuda[libraries]" in warned


def test_another_version_warns(distribution):
    printed, warned = run(distribution("9.9.9", "from . import _sconce"))
    assert Path(printed[0]).parent.name == "sconce"
    assert "9.9.9" in warned and sconce.__version__ in warned


def test_missing_metadata_warns(distribution):
    printed, warned = run(distribution(None, "from . import _sconce"))
    assert Path(printed[0]).parent.name == "sconce" and "dist-info" in warned and "sconce-engine-cuda" in warned
