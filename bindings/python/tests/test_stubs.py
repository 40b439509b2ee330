"""The type stubs name what the package has."""

import ast
import inspect
from importlib.resources import files

import sconce
from sconce import _sconce


def stub(name):
    return ast.parse((files("sconce") / name).read_text(encoding="utf-8"))


def parameters(function):
    every = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [argument.arg for argument in every if argument.arg != "self"]


def test_every_public_name_has_a_stub():
    body = stub("__init__.pyi").body
    names = {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_"}
    assert names == set(sconce.__all__)
    names = {node.name for node in stub("_sconce.pyi").body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert names == {name for name in dir(_sconce) if not name.startswith("_")}


def test_parameters_of_stubs_are_those_of_the_package():
    for node in stub("__init__.pyi").body:
        if not isinstance(node, ast.ClassDef) or not node.bases or ast.unparse(node.bases[0]) != "_Model":
            continue
        cls = getattr(sconce, node.name)
        for method in node.body:
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and not method.decorator_list:
                real = inspect.signature(getattr(cls, method.name)).parameters
                real = [n for n, p in real.items() if n != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
                assert parameters(method) == real, f"{node.name}.{method.name}"
