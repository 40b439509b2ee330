"""Runs Python code in another process."""

import subprocess
import sys


def run(code, *arguments, timeout=60):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)
