"""Model names to loaded models: where they come from, what their files say, and whether the two fit.

Nothing in a checkpoint is believed before it was looked at: `sources` finds it, `config_file` and `weight_files` read what it says of
itself, `matching` refuses a model of which one number would be random, `allocation` one that takes more than they can need. No code of a checkpoint is
ever run, and nobody is asked whether it may.
"""

from .cache import cache_folder
from .conversion import converted
from .devices import torch_device
from .loader import LoadedModel, load, quiet_libraries
from .sources import EMBEDDED, ModelSource, embedded_gguf, pinned, resolve

__all__ = [
    "EMBEDDED",
    "LoadedModel",
    "ModelSource",
    "cache_folder",
    "converted",
    "embedded_gguf",
    "load",
    "pinned",
    "quiet_libraries",
    "resolve",
    "torch_device",
]
