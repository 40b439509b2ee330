"""The command `sconce` of the wheel."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from conftest import MINILM

import sconce

SCRIPT = str(Path(sys.executable).parent / "sconce")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_version_help_and_errors():
    for command in ([SCRIPT], [sys.executable, "-m", "sconce"]):
        assert run(*command, "--version").stdout == f"sconce {sconce.__version__}\n"
        assert "embed" in run(*command, "--help").stdout
        failed = run(*command, "embed", "-m", "/nowhere", "text")
        assert failed.returncode == 1 and "nowhere" in failed.stderr
        assert run(*command, "embad").returncode == 2


def test_embed_prints_the_numbers_of_encode(minilm):
    done = run(SCRIPT, "embed", "-m", MINILM, "-d", "cpu", "A man is eating food.")
    printed = np.array(done.stdout.split(), np.float32)
    assert np.abs(printed - minilm.encode("A man is eating food.")).max() < 1e-6


def test_doctor_starts_the_script_again():
    report = sconce.doctor(device="cpu", op="l2_norm")
    assert "l2_norm" in json.dumps(report)
    # The process that runs the checks is the script: nothing else would understand its arguments.
    environment = os.environ | {"SCONCE_PROGRAM": "/nowhere/sconce"}
    failed = run(SCRIPT, "doctor", "--device", "cpu", "--op", "l2_norm", env=environment)
    assert failed.returncode != 0


def test_script_is_found_beside_the_package(tmp_path):
    # As after `pip install --target`.
    script = tmp_path / "bin" / ("sconce.exe" if os.name == "nt" else "sconce")
    script.parent.mkdir()
    script.touch()
    shutil.copytree(Path(sconce.__file__).parent, tmp_path / "sconce")
    code = "import sys; sys.argv, sys.executable = [''], '/nowhere/python'; from sconce.__main__ import program; print(program())"
    done = run(sys.executable, "-c", code, env=os.environ | {"PYTHONPATH": str(tmp_path), "PATH": ""})
    assert done.stdout.strip() == str(script), done.stderr


def test_first_vector_is_fast():
    code = "import time, sys; b = time.monotonic(); from sconce import SentenceTransformer;"
    code += f"SentenceTransformer({MINILM!r}, device='cpu').encode('a'); print(time.monotonic() - b)"
    assert float(run(sys.executable, "-c", code).stdout) < 10
