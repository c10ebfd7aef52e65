"""The package's own rules: import arrows, light imports, public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "kernels": set(),
    "store": set(),
    "hooks": {"kernels"},
    "analysis": {"store"},
    "reports": {"analysis", "store"},
    "studies": {"hooks", "analysis", "kernels", "reports", "store"},
    "cli": {"analysis", "hooks", "kernels", "reports", "store", "studies"},
}
LEAVES = {
    "atomic",
    "checks",
    "declared",
    "destination",
    "errors",
    "layers",
    "schema",
    "strict_json",
    "strict_yaml",
    "visible",
}
"""What every folder may use."""


def _imported_rooms(path: Path) -> set[str]:
    """Folders of the package that a file imports from, wherever the import stands."""
    depth = len(path.relative_to(ROOT).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.relative_to(ROOT).parts[: depth - node.level]
            if not base:
                found |= {node.module.split(".")[0]} if node.module else {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "precollapse":
            found.add("absolute import of precollapse")
        elif isinstance(node, ast.Import) and any(a.name.split(".")[0] == "precollapse" for a in node.names):
            found.add("absolute import of precollapse")
    return found - LEAVES - {"__version__"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_downwards(room):
    for path in sorted((ROOT / room).rglob("*.py")):
        extra = _imported_rooms(path) - MAY_IMPORT[room] - {room}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


def _modules_imported(path: Path) -> set[str]:
    """Modules of the package that a file names in its imports, wherever they stand, by their path from the root."""
    depth = len(path.relative_to(ROOT).parts)
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ROOT.joinpath(*path.relative_to(ROOT).parts[: depth - node.level], *(node.module or "").split("."))
            for target in (base, *(base / alias.name for alias in node.names)):
                for file in (target.with_suffix(".py"), target / "__init__.py"):
                    if file.is_file() and file != path:
                        names.add(str(file.relative_to(ROOT)))
    return names


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_no_modules_import_each_other_in_a_loop(room):
    """A folder's own file counts only where it is what a name comes from."""
    left = {str(p.relative_to(ROOT)): _modules_imported(p) for p in (ROOT / room).rglob("*.py")}
    for name, imported in left.items():
        folders = {str(Path(other).parent / "__init__.py") for other in imported if Path(other).name != "__init__.py"}
        left[name] = {other for other in imported if other in left and other not in folders}
    while leaves := {name for name, imported in left.items() if not imported & left.keys()}:
        left = {name: imported for name, imported in left.items() if name not in leaves}
    assert not left, f"these import each other in a loop: {sorted(left)}"


@pytest.mark.parametrize("room", sorted(MAY_IMPORT.keys() - {"hooks"}))
def test_models_are_run_in_hooks_alone(room):
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            libraries = {name.split(".")[0] for name in names} & {"transformers", "nnsight", "transformer_lens"}
            assert not libraries, f"{path.relative_to(ROOT)} imports {sorted(libraries)}; ask hooks for it"
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            assert called not in ("backbone", "generate"), f"{path.relative_to(ROOT)} runs a model; ask hooks for it"


@pytest.mark.parametrize(
    "module", ["precollapse", "precollapse.analysis", "precollapse.store", "precollapse.analysis.probes"]
)
def test_light_imports_need_no_torch_and_no_matplotlib(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_loads():
    import precollapse as pc

    for name in pc.__all__:
        assert getattr(pc, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pc.nonsense  # noqa: B018


def test_design_names_exist():
    from precollapse.analysis import dimension, probes, report, selective, statistics, transfer
    from precollapse.hooks import Steering, steering_vector
    from precollapse.kernels import Moments, attention_row, gather_rows, logits_stats, vocab_stats
    from precollapse.studies import benchmarks, grading, prompts, trajectories

    wanted = {
        dimension: ("participation_ratio", "effective_dimensionality", "two_nn", "levina_bickel"),
        probes: ("recoverability",),
        transfer: ("transfer_matrix",),
        statistics: ("bootstrap_auroc", "fisher", "mcnemar", "holm", "wilson"),
        selective: ("aurc",),
        report: ("write_report",),
        benchmarks: ("load", "Item"),
        grading: ("grade",),
        prompts: ("render",),
        trajectories: ("forced_answers",),
    }
    for module, names in wanted.items():
        for name in names:
            assert callable(getattr(module, name)), f"{module.__name__}.{name}"
    assert all(
        callable(f) for f in (Moments, attention_row, gather_rows, logits_stats, vocab_stats, Steering, steering_vector)
    )


def test_every_module_says_what_it_is_for():
    for room in MAY_IMPORT:
        for path in sorted((ROOT / room).rglob("*.py")):
            doc = ast.get_docstring(ast.parse(path.read_text()))
            assert doc and len(doc) > 40, f"{path.relative_to(ROOT)} has no module docstring to speak of"


def test_python_started_in_the_checkout_loads_models(tiny_folder):
    """There the folder `kernels` is on sys.path, where transformers looks for a package of that name."""
    code = f"import precollapse as pc; print(pc.Extractor.from_pretrained({str(tiny_folder)!r}).capture('hello').resid_post.shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([1, 3, 32])"
