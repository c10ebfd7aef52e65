"""Values as JSON takes them.

Guarantees that a number which is not defined or not finite is null (strict JSON knows neither NaN nor infinity), whatever
library's kind of missing it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.statistics import missing


def plain(value: Any) -> Any:
    """A value of plain Python types: missing and infinite numbers are None, what JSON has no kind for is text."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if missing(value):
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool) else str(value)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as JSON takes them."""
    return [{str(k): plain(v) for k, v in row.items()} for row in frame.to_dict("records")]


def to_json(content: Mapping[str, Any]) -> str:
    """A file's text: `content` made plain, one value a line."""
    return json.dumps(plain(content), ensure_ascii=False, allow_nan=False, indent=1)
