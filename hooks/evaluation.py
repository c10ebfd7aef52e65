"""How a model is run for the time of a pass: in evaluation mode, in the dtype that it was loaded in.

Guarantees that dropout is in no captured state, that each module's own training flag is put back afterwards, also where only some modules
were training, and that `torch.autocast`, which computes in another dtype than the one that is recorded, is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import RequestError


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch a model to evaluation mode inside the context.

    Raises
    ------
    RequestError
        Autocast is on for the model's device.
    """
    for kind in {parameter.device.type for parameter in model.parameters()} - {"meta"}:
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            raise RequestError(
                f"torch.autocast is on for {kind}, so the model would compute in {torch.get_autocast_dtype(kind)} whatever its own dtype; "
                "leave the autocast block, or load the model in the dtype that is wanted"
            )
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
