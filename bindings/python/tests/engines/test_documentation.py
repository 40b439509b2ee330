"""The examples of docs/ray.md, and the type stubs of the modules for engines."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files

import pytest
from conftest import ROOT
from pyarrow import parquet, table

EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "ray.md").read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("code", EXAMPLES, ids=lambda code: re.search(r"sconce\.\w+", code)[0])
def test_example(code, tmp_path, request):
    if "pyspark" in code and shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    parquet.write_table(table({"text": [f"text number {i}" for i in range(40)]}), tmp_path / "texts.parquet")
    # A process each, as a reader would run them, but in one cluster.
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if "sconce.ray" in code:
        environment["RAY_ADDRESS"] = request.getfixturevalue("ray_cluster").address
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)
    finally:
        if "serve.run" in code:
            from ray import serve

            serve.shutdown()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    if "sconce.ray.embed(" in code:
        assert "40 rows in 1 blocks" in done.stdout
    if "pyspark" in code:
        assert parquet.read_table(tmp_path / "spark-embeddings").num_rows == 40


def test_there_are_examples_of_every_engine():
    assert len(EXAMPLES) == 5 and all(any(name in code for code in EXAMPLES) for name in ("serve.run", "daft", "pyspark"))


@pytest.mark.parametrize("module", ["ray.stages", "ray.placement", "ray.runs", "ray.serve", "daft", "spark"])
def test_stubs_name_what_the_modules_have(module):
    path = files("sconce").joinpath(*module.split("."))
    stub = ast.parse(path.with_suffix(".pyi").read_text(encoding="utf-8")).body
    loaded, compared = importlib.import_module(f"sconce.{module}"), 0
    for node in stub:
        if isinstance(node, ast.ClassDef):
            functions = [(getattr(loaded, node.name), one) for one in node.body if isinstance(one, ast.FunctionDef)]
            pairs = [(getattr(cls, one.name), one) for cls, one in functions if not one.decorator_list]
        elif isinstance(node, ast.FunctionDef):
            pairs = [(getattr(loaded, node.name), node)]
        else:
            continue
        for function, one in pairs:
            real = [p.name for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]
            named = [argument.arg for argument in one.args.posonlyargs + one.args.args + one.args.kwonlyargs]
            # Options of the base class and of loading are named too.
            assert set(real) <= set(named), f"{module}.{node.name}.{one.name}"
            assert one.args.kwarg is not None or set(real) == set(named), f"{module}.{node.name}.{one.name}"
            compared += 1
    assert compared > 0
    own = {name: value for name, value in vars(loaded).items() if getattr(value, "__module__", "") == loaded.__name__}
    public = {name for name in own if not name.startswith("_")}
    named = {node.name for node in stub if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    inside = {"Server", "Ingress", "BlockStage"}
    assert named <= set(vars(loaded)) and public - inside <= named, public ^ named


def test_the_package_needs_no_engine():
    names = ("ray", "daft", "pyspark", "pandas", "pyarrow")
    code = f"import sys, sconce; print([name for name in {names} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
