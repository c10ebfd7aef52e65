"""Where modules went that had another name before: an import of the old name gives the module of the new one.

Guarantees that scripts written against an earlier layout go on working and are told the new name; nothing inside the package
uses this.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    **{
        f"analysis.{name}": f"analysis.probing.{name}"
        for name in (
            "calibration",
            "ccs",
            "contrast",
            "density",
            "logistic",
            "probes",
            "rowspace",
            "splits",
            "transfer",
        )
    },
    "analysis.strict_yaml": "strict_yaml",
    "analysis.trajectory_statistics": "analysis.trajectories.statistics",
    "analysis.trajectory_public": "analysis.trajectories.public",
    "analysis.trajectory_preregistration": "analysis.hypotheses",
    "analysis.report": "reports.study",
    "analysis.trajectory_report": "reports.trajectories",
    "analysis.trajectory_figures": "reports.figures.trajectories",
    "analysis.trajectory_tables": "analysis.trajectories.tables",
    **{
        f"analysis.{name}": f"reports.{name}"
        for name in (
            "figures",
            "output_folder",
            "overview",
            "page",
            "tables",
        )
    },
    **{
        f"hooks.{name}": f"hooks.prompts.{name}" for name in ("boundary", "inputs", "options", "positions", "rendering")
    },
    "hooks.compile": "hooks.backends.compiled",
    "hooks.parity": "perf.parity",
    "hooks.parity_page": "perf.parity_page",
    "hooks.models": "hooks.loading",
    "hooks.passes": "hooks.decoding.passes",
    "hooks.prefix": "hooks.decoding.shared_prompts",
    "hooks.rotary": "hooks.decoding.rotary",
    "hooks.small_models": "perf.small_models",
    "kernels.triton_attention": "kernels.triton_forms.attention",
    "kernels.triton_gather": "kernels.triton_forms.gather",
    "kernels.triton_moments": "kernels.triton_forms.moments",
    "kernels.triton_row_state": "kernels.triton_forms.row_state",
    "kernels.triton_vocab": "kernels.triton_forms.vocab",
    **{
        f"studies.{name}": f"studies.grading.{name}"
        for name in ("answer_span", "math_equality", "math_worker", "read_expression", "read_number", "read_option")
    },
    **{f"studies.{name}": f"studies.study.{name}" for name in ("after", "config", "moments", "shards")},
    "store.importing": "store.formats.importing",
    "store.lazy_xarray": "store.reading.lazy_xarray",
    "store.objects": "store.files.objects",
    "store.reader": "store.reading.run",
    "store.sealed": "store.files.sealed",
    **{f"store.{name}": f"store.formats.{name}" for name in ("tables", "tensors", "zarr_dtypes")},
    **{f"store.{name}": f"store.log.{name}" for name in ("commits", "folds", "leases", "notes", "sweep")},
    "studies.chains": "studies.trajectories.chains",
    "studies.forced": "studies.trajectories.forced",
    "studies.generation": "hooks.decoding.greedy",
    "studies.prefix_tree": "hooks.decoding.tree",
    "studies.run_model": "studies.models",
    "studies.segmentation": "studies.trajectories.segmentation",
    "studies.shared_prefix": "hooks.decoding.continuations",
    "studies.steer": "studies.steering",
    "studies.steer_report": "reports.steering",
    "studies.trajectory_config": "studies.trajectories.config",
    "studies.trajectory_shards": "studies.trajectories.shards",
}
"""Old name to new name, both without the package's own."""

_PACKAGE = __name__.rpartition(".")[0]


def renamed(name: str) -> ModuleType:
    """The module that had the name `name` (without the package's own)."""
    return import_module(f"{_PACKAGE}.{MOVED[name]}")


class _OldNames(MetaPathFinder, Loader):
    """Finds old names, after everything that really exists has been looked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        old = fullname.removeprefix(f"{_PACKAGE}.")
        return ModuleSpec(fullname, self) if old != fullname and old in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        old = spec.name.removeprefix(f"{_PACKAGE}.")
        warnings.warn(
            f"{spec.name} is {_PACKAGE}.{MOVED[old]} now; import it from there", DeprecationWarning, stacklevel=2
        )
        module = renamed(old)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run, the module is loaded under its own name; only that name is given back to it."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Have old names found from now on; once is enough."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())
