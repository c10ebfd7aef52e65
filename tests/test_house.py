"""The house: no module, class or folder is crowded, and no modules import each other in a loop.

What is not met yet stands in `NOT_YET`, each with what it has now: it may shrink and never grow, and an entry that is met must go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = sorted({path.parent.name for path in ROOT.glob("[a-z]*/__init__.py")} - {"tests", "perf", "examples"})
LINES, MEMBERS, MODULES = 450, 25, 16
REASON = "Above the usual length because"
"""A docstring of a module, class or folder that holds these words says why it is larger than the rule."""
NOT_YET: dict[str, int] = {}


def modules() -> dict[str, Path]:
    """Dotted name, without the package's own, to file."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    files += [path for path in ROOT.glob("*.py") if path.name != "setup.py"]
    names = {}
    for path in sorted(files):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def excuse(node: ast.Module | ast.ClassDef) -> bool:
    return REASON in (ast.get_docstring(node) or "")


def crowded() -> dict[str, int]:
    """What is larger than the rule and does not say why: its name and its size."""
    found = {}
    for name, path in modules().items():
        text = path.read_text()
        tree = ast.parse(text)
        if len(text.splitlines()) > LINES and not excuse(tree):
            found[name] = len(text.splitlines())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and len(set(members(node))) > MEMBERS and not excuse(node):
                found[f"{name}.{node.name}"] = len(set(members(node)))
    for folder in sorted({path.parent for path in modules().values()} - {ROOT}):
        count = len([path for path in folder.glob("*.py") if path.name != "__init__.py"])
        if count > MODULES and not excuse(ast.parse((folder / "__init__.py").read_text())):
            found[f"{folder.relative_to(ROOT)}/"] = count
    return found


def members(node: ast.ClassDef) -> Iterator[str]:
    """Methods, properties and declared fields of a class; names that begin and end in two underscores apart."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("__"):
            yield child.name
        elif isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.target.id


def test_nothing_is_crowded() -> None:
    now = crowded()
    assert not {name: size for name, size in now.items() if size > NOT_YET.get(name, 0)}, "split it, or say why"
    assert not [name for name in NOT_YET if name not in now], "met by now: take it from NOT_YET"


# -- loops of imports ------------------------------------------------------------------------------------------------


def imports(name: str, path: Path, names: dict[str, Path]) -> set[str]:
    """The package's modules that are run when this one is: imports at its top, those for the type checker apart."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    if not name:
        package = []
    found: set[str] = set()

    def visit(nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
                for alias in node.names:
                    inner = ".".join([*base, alias.name])
                    found.add(inner if inner in names else ".".join(base))
            elif isinstance(node, ast.If):
                if "TYPE_CHECKING" not in ast.unparse(node.test):
                    visit(node.body)
                visit(node.orelse)
            elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
                visit(node.body)

    visit(ast.parse(path.read_text()).body)
    return {other for other in found if other in names and other != name}


def test_no_modules_import_each_other_in_a_loop() -> None:
    names = modules()
    # A package's own file is run before its modules: they may be named there, which is no loop of ideas.
    packages = {name for name, path in names.items() if path.name == "__init__.py"}
    graph = {name: imports(name, path, names) - packages for name, path in names.items() if name not in packages}
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "a loop of imports: " + " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())
    assert any(graph.values())
