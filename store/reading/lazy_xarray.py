"""A run as an xarray.Dataset that reads only what is used. Importing this needs xarray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import xarray
from xarray.backends import BackendArray
from xarray.core import indexing

from ...schema import PLAN_KEYS
from ..dtypes import returned_type
from ..geometry import ArraySpec


class States(Protocol):
    """What is asked of a run."""

    def __len__(self) -> int: ...

    @property
    def arrays(self) -> dict[str, ArraySpec]: ...

    @property
    def states(self) -> Any: ...

    @property
    def path(self) -> str: ...

    @property
    def config_hash(self) -> str: ...

    def take(self, rows: Any) -> States: ...

    def array(self, name: str) -> np.ndarray: ...

    def resid(self, layer: int | Sequence[int] | None, site: str) -> np.ndarray: ...


class LazyArray(BackendArray):
    """One array of a run."""

    def __init__(self, run: States, name: str, spec: ArraySpec) -> None:
        self.run = run
        self.name = name
        self.spec = spec
        self.shape = (len(run), *spec.shape)
        self.dtype = returned_type(spec.dtype)

    def __getitem__(self, key: Any) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._outer)

    def _outer(self, key: tuple[Any, ...]) -> np.ndarray:
        rows, rest = key[0], key[1:]
        single = isinstance(rows, int | np.integer)
        chosen = self.run.take(np.arange(len(self.run))[[rows] if single else rows])
        if self.spec.layers is None:
            values = chosen.array(self.name)
        else:
            layer = rest[0]
            layers = np.array(self.spec.layers)[layer]
            values = chosen.resid(int(layers) if layers.ndim == 0 else layers.tolist(), self.name)
            rest = rest[1:] if layers.ndim == 0 else (slice(None), *rest[1:])
        lists = [i for i, part in enumerate(rest) if isinstance(part, np.ndarray)]
        for i in lists:  # orthogonal: one axis at a time
            values = np.take(values, rest[i], axis=i + 1)
        values = values[(slice(None), *(slice(None) if i in lists else part for i, part in enumerate(rest)))]
        return values[0] if single else values


def to_xarray(run: States) -> Any:
    """The states of `run` along `state`, with `id`, `benchmark`, `regime` and `item_id` as coordinates.

    Arrays are read when they are used, only the rows and layers that are asked for. Table columns become variables;
    missing values are NaN, so whole numbers with missing ones among them become float64, exact up to 2^53.
    """
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for name, spec in run.arrays.items():
        names = ["state"]
        if spec.layers is not None:
            names.append(f"{name}_layer")
            coordinates[f"{name}_layer"] = list(spec.layers)
        names += [f"{name}_axis_{i}" for i in range(len(spec.inner_shape))]
        variables[name] = xarray.Variable(names, indexing.LazilyIndexedArray(LazyArray(run, name, spec)))
    states = run.states
    for name in states.columns:
        column = states[name]
        values: Any
        if column.dtype.name in ("Int64", "boolean") and column.isna().any():
            values = column.to_numpy(dtype=float, na_value=np.nan)
        elif column.dtype.name in ("Int64", "boolean"):
            values = column.to_numpy(dtype="int64" if column.dtype.name == "Int64" else bool)
        elif column.dtype.kind in "if":
            values = column.to_numpy()
        else:
            values = column.to_numpy(dtype=object, na_value=np.nan)
        target = coordinates if name in PLAN_KEYS else variables
        target[name] = ("state", values)
    return xarray.Dataset(variables, coordinates, attrs={"path": run.path, "config_hash": run.config_hash})
