"""Finding a run at a path, and saying plainly what is wrong when there is none.

A run begins with its plan. The Zarr metadata follow from the plan, so a creation that was interrupted is completed by
whoever comes next, and metadata that disagree with the plan are noticed before any number is read or written.
"""

from __future__ import annotations

from ..errors import RequestError
from .files.protocol import Files, read_records
from .geometry import group_metadata
from .layout import BLOBS, CELLS, COMMITS, FOLDERS, PLAN, RAGGED, ROOT, TABLES
from .run_plan import RunPlan

_PLAN_BYTES = 1 << 33
"""The most bytes of `plan.json`: a hundred million states."""


def skeleton(run: RunPlan) -> dict[str, bytes]:
    """Zarr metadata files of a run by name."""
    plan = run.plan
    nodes = {
        ROOT: group_metadata({"precollapse": {"format": run.format, "plan": run.digest}}),
        f"{CELLS}/{ROOT}": group_metadata({}),
    }
    for cell in plan.cells:
        about = {"benchmark": cell.benchmark, "regime": cell.regime}
        nodes[f"{cell.folder}/{ROOT}"] = group_metadata({**about, "first_state": cell.start})
        for name, spec in run.arrays.items():
            if not spec.small:
                layers = {} if spec.layers is None else {"layers": list(spec.layers)}
                geometry = run.geometry[cell.index, name]
                nodes[f"{cell.folder}/{name}/{ROOT}"] = geometry.metadata(cell.states, {**about, **layers})
    return nodes


def folders(run: RunPlan) -> list[str]:
    """All folders of a run."""
    nodes = [name.rpartition("/")[0] for name in skeleton(run)]
    return [*FOLDERS, *(node for node in nodes if node)]


def read_plan(files: Files) -> RunPlan:
    """The plan of the run at `files`.

    Raises
    ------
    RequestError
        There is no run, half of one, or one of a newer format.
    StoreError
        `plan.json` is damaged.
    """
    path = files.path
    try:
        record = files.read(PLAN, _PLAN_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing(files) from None
    except PermissionError:
        raise RequestError(f"There is no permission to read {path}: change its rights.") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be read ({error.strerror or error}): check the path.") from error
    return RunPlan.read(record, path)


def _nothing(files: Files) -> RequestError:
    """Why there is no plan."""
    try:
        if files.list(COMMITS) and files.size(PLAN) is None:
            return RequestError(f"{files.path} is a half-deleted run: it has commits but no {PLAN}. Restore it.")
        if files.entries() is not None:
            return RequestError(f"{files.path} is not a precollapse run: it has no {PLAN}.")
    except NotADirectoryError:
        return RequestError(f"{files.path} is a file, not a run.")
    except OSError as error:
        return RequestError(f"{files.path} cannot be read ({error.strerror or error}): check the path.")
    return RequestError(f"There is no run at {files.path}.")


def skeleton_faults(files: Files, run: RunPlan) -> tuple[list[str], list[str]]:
    """Names of Zarr metadata files that are missing, and of those that say something other than the plan."""
    wanted = skeleton(run)
    contents = read_records(files, list(wanted))
    missing = [name for name, data in zip(wanted, contents, strict=True) if data is None]
    other = [name for name, data in zip(wanted, contents, strict=True) if data is not None and data != wanted[name]]
    return missing, other


def check_vacant(files: Files) -> None:
    """Refuse to create a run where something else lies, or the rest of a run."""
    entries = files.entries() or set()
    # A creation that was killed while it tried the service out leaves a probe.
    strangers = sorted(name for name in entries - {ROOT, PLAN, *FOLDERS} if not name.startswith("_probe."))
    if strangers:
        raise RequestError(
            f"{files.path} is not a precollapse run but holds {strangers[0]}"
            f"{' and more' if len(strangers) > 1 else ''}: choose a path that is new or empty."
        )
    if files.list(COMMITS) and files.size(PLAN) is None:
        raise RequestError(f"{files.path} is a half-deleted run: it has commits but no {PLAN}. Restore it.")


def check_whole(files: Files, run: RunPlan, any_commits: bool) -> None:
    """Refuse a run of which parts are gone, or whose arrays are not those of its plan.

    Others may be creating it or writing to it meanwhile. `any_commits` was found out before: metadata come before the
    first commit. Tables come after theirs, so the commits are looked for once more.
    """
    missing, other = skeleton_faults(files, run)
    if other:
        raise RequestError(
            f"{files.path}/{other[0]} disagrees with {PLAN}: it was changed or belongs to another run. "
            "Run `precollapse repair` to write it anew from the plan."
        )
    if missing and any_commits:
        raise RequestError(
            f"{files.path} is a half-deleted run: {missing[0]} is missing. Restore it, or run `precollapse repair` to "
            "keep what is whole."
        )
    if any(files.list(folder) for folder in (TABLES, RAGGED, BLOBS)) and not files.list(COMMITS):
        raise RequestError(f"{files.path} is a half-deleted run: it has tables but no commits. Restore {COMMITS}.")
