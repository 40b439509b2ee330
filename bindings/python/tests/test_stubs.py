"""The type stubs name what the package has."""

import ast
import inspect
from importlib.resources import files

import sconce
from sconce import _sconce
from sconce.base_model import BaseModel


def stub(module):
    return ast.parse((files("sconce") / f"{module}.pyi").read_text(encoding="utf-8")).body


def definitions():
    """The classes and functions of the stubs, by name, and where `__init__.pyi` imports each from."""
    imports = {alias.asname: node.module for node in stub("__init__") if isinstance(node, ast.ImportFrom) for alias in node.names}
    found = {}
    for module in (set(imports.values()) | {"base_model", "models"}) - {"errors"}:
        found |= {node.name: node for node in stub(module) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return imports, found


def methods_in_stub(node, found):
    """The methods of a class and of its bases, without decorated ones; `a = b` gives b another name."""
    methods = {}
    for base in node.bases:
        methods |= methods_in_stub(found[base.id], found) if base.id in found else {}
    for member in node.body:
        if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and not member.decorator_list:
            methods[member.name] = member
        elif isinstance(member, ast.Assign):
            methods[member.targets[0].id] = methods[member.value.id]
    return methods


def names_in_stub(function, found):
    """The parameters of a method, with the fields of a `TypedDict` that its further arguments unpack."""
    every = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    names = [argument.arg for argument in every if argument.arg != "self"]
    further = function.args.kwarg and function.args.kwarg.annotation
    if isinstance(further, ast.Subscript) and further.value.id == "Unpack":
        names += [field.target.id for field in found[further.slice.id].body if isinstance(field, ast.AnnAssign)]
    return names


def names_in_package(cls, name):
    """The parameters of a method; those of what it passes further arguments to, and older names."""
    function = getattr(cls, name)
    parameters = list(inspect.signature(function).parameters.values())
    names = [p.name for p in parameters if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if issubclass(cls, BaseModel):
        encode = getattr(cls, "encode", None)
        passed = {"__init__": BaseModel.__init__, "encode_query": encode, "encode_document": encode}.get(name)
        if passed is not None:
            names += [n for n in inspect.signature(passed).parameters if n not in (*names, "self", "model_name_or_path", "task")]
            names += list(getattr(passed, "renamed", {}))
    return names + [old for old in getattr(function, "renamed", {}) if old not in names]


def test_every_public_name_has_a_stub():
    imports, found = definitions()
    assert set(imports) == set(sconce.__all__)
    assert {name for name, module in imports.items() if module != "errors"} <= set(found)
    names = {node.name for node in stub("_sconce") if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert names == {name for name in dir(_sconce) if not name.startswith("_")}


def test_parameters_of_stubs_are_those_of_the_package():
    compared, found = 0, definitions()[1]
    for node in found.values():
        if not isinstance(node, ast.ClassDef) or not hasattr(sconce, node.name):
            continue
        cls = getattr(sconce, node.name)
        for name, method in methods_in_stub(node, found).items():
            want, real = names_in_stub(method, found), names_in_package(cls, name)
            if issubclass(cls, BaseModel) and name == "__init__":
                want, real = set(want), set(real)  # Options of the base class come last.
            assert sorted(want) == sorted(real), f"{node.name}.{name}"
            compared += 1
    assert compared > 100
