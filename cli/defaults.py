"""Defaults of settings, read from where they are declared without running it.

Guarantees that a `--help` tells the default that a dataclass or a function declares, and tells it at once: importing these
modules would load torch, which takes seconds. A default that is neither a literal nor a name of one is an error of the package,
and a test compares what is read here with the imported fields.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]


@cache
def declared(where: str) -> Mapping[str, Any]:
    """The defaults of a dataclass's fields or of a function's parameters, by name; settings without one are left out.

    Parameters
    ----------
    where : str
        Module (from the package on) and name, such as "studies:StudyConfig".

    Raises
    ------
    LookupError
        When there is no such name, or a default is neither a literal nor a name of one.
    """
    module, _, name = where.partition(":")
    node, module = _definition(module, name)
    if isinstance(node, ast.ClassDef):
        fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
        return {f.target.id: _value(f.value, module) for f in fields if isinstance(f.target, ast.Name) and f.value}
    if not isinstance(node, ast.FunctionDef):
        raise LookupError(f"{where} is neither a class nor a function")
    positional = [*node.args.posonlyargs, *node.args.args]
    pairs = [
        *zip(positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]
    return {parameter.arg: _value(default, module) for parameter, default in pairs if default is not None}


@cache
def _syntax(module: str) -> ast.Module:
    path = _ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _definition(module: str, name: str) -> tuple[ast.AST, str]:
    """What a module calls `name`, and the module that defines it: imports are followed, a package's lazy names too."""
    for line in _syntax(module).body:
        if isinstance(line, ast.ClassDef | ast.FunctionDef) and line.name == name:
            return line, module
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and line.target.id == name
            and line.value
        ):
            return line.value, module
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            if line.targets[0].id == name:
                return line.value, module
            if line.targets[0].id == "_LAZY" and name in (lazy := ast.literal_eval(line.value)):
                return _definition(_relative(module, lazy[name]), name)
        if isinstance(line, ast.ImportFrom) and line.level:
            for alias in line.names:
                if (alias.asname or alias.name) == name:
                    return _definition(_relative(module, "." * line.level + (line.module or "")), alias.name)
    raise LookupError(f"{module} does not define {name}")


def _relative(module: str, target: str) -> str:
    """The module that `target`, with its dots, is in `module`."""
    parts = module.split(".")
    package = parts if _ROOT.joinpath(*parts).is_dir() else parts[:-1]
    name = target.lstrip(".")
    up = len(target) - len(name) - 1
    return ".".join([*package[: len(package) - up], *filter(None, [name])])


def _value(node: ast.expr, module: str) -> Any:
    """The value of an expression: a literal, a name of one, a tuple of these, or what `dataclasses.field` holds."""
    if isinstance(node, ast.Name):
        definition, module = _definition(module, node.id)
        if isinstance(definition, ast.expr):
            return _value(definition, module)
    if isinstance(node, ast.Tuple):
        return tuple(_value(element, module) for element in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "field":
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if "default" in keywords:
            return _value(keywords["default"], module)
        factory = keywords.get("default_factory")
        if isinstance(factory, ast.Name) and factory.id in ("dict", "list", "tuple"):
            return {"dict": {}, "list": [], "tuple": ()}[factory.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise LookupError(f"the default {ast.unparse(node)!r} in {module} is no literal") from None
