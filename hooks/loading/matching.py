"""Whether a checkpoint's tensors are the ones that its model needs: every one, under its name, in its shape.

Guarantees that no model runs of which one number is random, or which leaves out weights that it was trained with. transformers fills
what a checkpoint lacks with random numbers and only logs it: a prefix of a wrapper, one lost tensor or one layer too many in the config then
gives other states at every start. The trial is made on torch's meta device from the files' headers: nothing is read or allocated.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import RequestError
from .allocation import bounded
from .refusals import printable

_PREFIXES = ("_orig_mod.", "module.", "base_model.model.", "_forward_module.", "_fsdp_wrapped_module.")
"""What torch.compile, DataParallel, PEFT, Lightning and FSDP put before the names of the model that they wrap."""
_HARMLESS = re.compile(
    r"\binv_freq$|masked_bias$|causal_mask$|(^|\.)position_ids$|\.freqs_cis$"  # tables that the model computes itself
    r"|(^|\.)mtp|^v_head\.|^value_head\."  # heads beside the next-token one
    r"|(^|\.)(vision|visual|audio|image)_?(tower|model|encoder|embed|projector)?\.|(^|\.)multi_modal_projector\."
)
_HARMLESS_QUANTISED = re.compile(
    r"_scale(_inv)?$|_zeros?(_point)?$|zero_point$|g_idx$|\.(qzeros|scales|absmax|quant_map|SCB|workspace)$"
    r"|quant_state|nested_(absmax|quant_map)|weight_format$|_(global_scale|amax)$"
)
_MASK = re.compile(r"(^|\.)(attn|attention)\.bias$")
_LAYER = re.compile(r"^(?:[A-Za-z_]+\.)*?(?:layers|h|blocks|block|layer)\.(\d+)\.")


@dataclass(frozen=True)
class Misfit:
    """What does not fit between a checkpoint and its model; empty where all fits.

    Attributes
    ----------
    missing : tuple of str
        Tensors that the model needs and the checkpoint lacks.
    unused : tuple of str
        Tensors that the checkpoint holds and the model does not use, though their effect would be missed.
    mismatched : tuple of (str, str, str)
        Name, shape in the checkpoint, shape in the model.
    broken : bool
        Whether tensors that belong together (experts) could not be joined.
    """

    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    mismatched: tuple[tuple[str, str, str], ...] = ()
    broken: bool = False

    def __bool__(self) -> bool:
        return bool(self.missing or self.unused or self.mismatched or self.broken)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as its files describe it.

    Attributes
    ----------
    name : str
        The model's name in messages.
    config : mapping
        The content of its `config.json`.
    files : tuple of Path
        The files that hold its weights; empty where they are not known beforehand.
    tensors : dict of str to torch.Tensor
        Shapes and dtypes of all its tensors, on the meta device.
    """

    name: str
    config: Mapping[str, Any]
    files: tuple[Path, ...]
    tensors: Mapping[str, Any]

    @property
    def quantised(self) -> bool:
        """Whether its tensors are packed in a way that transformers unpacks, so that their names and shapes are a quantiser's."""
        return any(map(_is_known_packing, self.packings))

    @property
    def packings(self) -> list[Mapping[str, Any]]:
        """What its config says of how its numbers are packed, as far as transformers looks there."""
        parts = (self.config, *(part for part in self.config.values() if isinstance(part, dict)))
        said = (part.get("quantization_config") for part in parts)
        return [packing for packing in said if isinstance(packing, dict) and packing]


def fitting_prefix(checkpoint: Checkpoint, config: Any) -> str:
    """Try whether the checkpoint fits, and what has to be taken off its names for that.

    Parameters
    ----------
    checkpoint : Checkpoint
    config : transformers.PreTrainedConfig

    Returns
    -------
    str
        A wrapper's prefix, without which every name fits; "" where the names fit as they stand, or where no trial can be made
        (accelerate is not installed): then the load itself tells, see `refuse_misfit`. Of a quantised checkpoint the trial tells
        parts of the model of which no tensor is there, and layers too many.

    Raises
    ------
    RequestError
        It does not fit.
    """
    if not checkpoint.tensors:
        return ""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config(decoder=True)):
        part.__dict__.pop("quantization_config", None)
    _refuse_packed(checkpoint)
    misfit = _trial(checkpoint, config, checkpoint.tensors)
    if misfit:
        prefix = _common_prefix(checkpoint.tensors)
        if prefix:
            stripped = {name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors.items()}
            if not _trial(checkpoint, config, stripped):
                return prefix
        raise _refusal(checkpoint, config, misfit)
    return ""


def refuse_misfit(checkpoint: Checkpoint, config: Any, info: Mapping[str, Any], prefix: str) -> None:
    """Refuse a load (RequestError) by what transformers says of it, `output_loading_info`."""
    tensors = {name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors.items()}
    misfit = _misfit(checkpoint, config, info, tensors)
    if misfit:
        raise _refusal(checkpoint, config, misfit)


def _is_known_packing(packing: Mapping[str, Any]) -> bool:
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    method = packing.get("quant_method")
    in_bits = packing.get("load_in_8bit") or packing.get("load_in_4bit")
    return bool(in_bits) or isinstance(method, str) and method in AUTO_QUANTIZATION_CONFIG_MAPPING


def _refuse_packed(checkpoint: Checkpoint) -> None:
    """Refuse weights of whole numbers or of 8 bits that nothing will unpack: they would be taken for the numbers themselves."""
    packed = [
        f"{name}: {str(tensor.dtype).removeprefix('torch.')}"
        for name, tensor in checkpoint.tensors.items()
        if name.endswith("weight") and _is_packed(tensor)
    ]
    if checkpoint.quantised:
        if any(packing.get("quant_method") == "fp8" for packing in checkpoint.packings):
            lacking = [f"{name.partition(':')[0]}_scale_inv" for name in packed]
            lacking = [name for name in lacking if name not in checkpoint.tensors]
            if lacking:
                raise RequestError(
                    f"the weights of model {checkpoint.name!r} are packed (fp8) and {_counted(len(lacking), 'scale')} that unpack them missing "
                    f"({_first(sorted(lacking, key=_natural))}); get all files of the checkpoint again"
                )
        return
    if packed:
        methods = ", ".join(printable(repr(packing.get("quant_method")), 60) for packing in checkpoint.packings)
        raise RequestError(
            f"the weights of model {checkpoint.name!r} are packed ({_first(sorted(packed, key=_natural))}), and its config.json names "
            f"{f'a way that transformers does not know (quant_method {methods})' if methods else 'no quantization_config'}, so they would be "
            "taken for the numbers themselves; get the config that belongs to the weights, or weights that are not packed"
        )


def _is_packed(tensor: Any) -> bool:
    return not (tensor.is_floating_point() and tensor.element_size() > 1)


def _common_prefix(names: Collection[str]) -> str:
    """The known prefixes that every name begins with, one after the other."""
    common = ""
    while True:
        begins = (p for p in _PREFIXES if all(name.startswith(common + p) for name in names))
        following = next(begins, None)
        if following is None:
            return common
        common += following


def _trial(checkpoint: Checkpoint, config: Any, tensors: Mapping[str, Any]) -> Misfit:
    """Load the headers alone, on the meta device."""
    import torch
    from transformers.utils import is_accelerate_available, logging

    model_class = _model_class(config)
    if model_class is None or not is_accelerate_available():
        return Misfit()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with bounded(checkpoint.name, checkpoint.tensors):
            model, info = model_class.from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                device_map={"": torch.device("meta")},
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except RequestError:
        raise
    except Exception as error:  # else the load says what is wrong, if anything is
        return Misfit(broken="automatic conversion" in str(error) and not checkpoint.quantised)
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()
    if checkpoint.quantised:
        return _misfit_of_packed(checkpoint, model, info, tensors)
    return _misfit(checkpoint, config, info, tensors)


def _model_class(config: Any) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    classes: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if isinstance(classes, tuple):
        chosen = {c.__name__: c for c in classes}
        return next((chosen[n] for n in getattr(config, "architectures", None) or () if n in chosen), classes[0])
    return classes


def _misfit(checkpoint: Checkpoint, config: Any, info: Mapping[str, Any], tensors: Mapping[str, Any]) -> Misfit:
    unexpected = set(info.get("unexpected_keys") or ())
    unused = {name for name in unexpected if not _harmless(checkpoint, name, tensors)}
    unused |= set(_beyond_the_layers(checkpoint, config, tensors))
    mismatched = sorted((str(n), _shape(a), _shape(b)) for n, a, b in info.get("mismatched_keys") or ())
    missing = sorted(set(info.get("missing_keys") or ()), key=_natural)
    return Misfit(tuple(missing), tuple(sorted(unused, key=_natural)), tuple(mismatched), bool(info.get("error_msgs")))


def _misfit_of_packed(
    checkpoint: Checkpoint, model: Any, info: Mapping[str, Any], tensors: Mapping[str, Any]
) -> Misfit:
    """What is wrong however the numbers are packed: parts of which there is no tensor at all, and layers too many.

    Where a layer holds packed tensors under another program's names, the load itself tells what is missing of it.
    """
    unexpected = set(info.get("unexpected_keys") or ())
    held = {part for name in {*tensors, *unexpected} for part in _parts(name)}
    modules = {name for name, _ in model.named_modules()}
    renamed = {_layer(name) for name in unexpected if name.rpartition(".")[0] not in modules}
    missing = {
        name
        for name in info.get("missing_keys") or ()
        if name.rpartition(".")[0] not in held and _layer(name) not in renamed
    }
    unused = _beyond_the_layers(checkpoint, model.config, tensors)
    return Misfit(tuple(sorted(missing, key=_natural)), tuple(sorted(unused, key=_natural)))


def why_not(checkpoint: Checkpoint, reason: str) -> str:
    """What the load says, or, where it says that tensors could not be joined, which of them are lacking."""
    if "automatic conversion" not in reason:
        return reason
    alike: dict[str, dict[str, set[str]]] = {}
    for name in checkpoint.tensors:
        parts = _parts(name)
        place = next((p for p in reversed(parts) if ".weight" not in p), "")
        alike.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "{}", place), {}).setdefault(place, set()).add(name[len(place) :])
    lacking = [
        place + ending
        for places in alike.values()
        for place, endings in places.items()
        for ending in sorted(set().union(*places.values()) - endings)
    ]
    found = f": missing {_first(lacking)}" if lacking else ""
    return f"tensors that belong together, such as packed weights and their scales, are not all there{found}"


def _layer(name: str) -> str:
    layer = _LAYER.match(name)
    return layer[0] if layer else ""


def _parts(name: str) -> list[str]:
    """The modules that a tensor lies in, from the outermost."""
    steps = name.split(".")
    return [".".join(steps[:n]) for n in range(1, len(steps))]


def _beyond_the_layers(checkpoint: Checkpoint, config: Any, tensors: Mapping[str, Any]) -> list[str]:
    """Tensors of layers that the config does not count; some families' classes pass them over without a word.

    Layers for more than the next token (`num_nextn_predict_layers`), which lie behind the others, are not needed here.
    """
    text = config.get_text_config(decoder=True)
    count = getattr(text, "num_hidden_layers", None)
    if not isinstance(count, int):
        return []
    ahead = getattr(text, "num_nextn_predict_layers", None)
    count += ahead if isinstance(ahead, int) and ahead > 0 else 0
    beyond = []
    for name in tensors:
        layer = _LAYER.match(name)
        if layer and int(layer[1]) >= count and not _HARMLESS.search(name):
            beyond.append(name)
    return beyond


def _harmless(checkpoint: Checkpoint, name: str, tensors: Mapping[str, Any]) -> bool:
    if _HARMLESS.search(name) or (checkpoint.quantised and _HARMLESS_QUANTISED.search(name)):
        return True
    tensor = tensors.get(name)
    if tensor is None:
        return False
    if _MASK.search(name) and tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2]:
        return True  # a causal mask
    return name.endswith(".bias") and tensor.ndim == 1 and _is_zero(checkpoint.files, name)


def _is_zero(files: Sequence[Path], name: str) -> bool:
    """Whether a tensor adds nothing: some quantisers write a bias of zeros for layers that have none."""
    from safetensors import safe_open

    for path in files:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                if name in file.keys():  # noqa: SIM118
                    return not bool(file.get_tensor(name).any())
    return False


def _refusal(checkpoint: Checkpoint, config: Any, misfit: Misfit) -> RequestError:
    parts = []
    if misfit.missing:
        parts.append(f"{_counted(len(misfit.missing), 'tensor')} missing ({_first(misfit.missing)})")
    if misfit.unused:
        parts.append(
            f"{_counted(len(misfit.unused), 'tensor')} that the model has no place for ({_first(misfit.unused)})"
        )
    if misfit.mismatched:
        shapes = [f"{name}: {there} in the file, {needed} by the config" for name, there, needed in misfit.mismatched]
        parts.append(f"{_counted(len(shapes), 'tensor')} of another shape ({_first(shapes)})")
    if misfit.broken:
        holes = _holes(checkpoint.tensors)
        parts.append(
            f"parts of one tensor missing ({_first(holes)})" if holes else "parts of one tensor that do not go together"
        )
    cause, remedy = _cause(checkpoint, config, misfit)
    where = checkpoint.files[0].parent if checkpoint.files else "its files"
    return RequestError(
        f"the weights of model {checkpoint.name!r} in {where} do not fit its config.json, and the model would run on random numbers or without "
        f"some of its weights: {'; '.join(parts)}. Likely cause: {cause}; {remedy}"
    )


def _cause(checkpoint: Checkpoint, config: Any, misfit: Misfit) -> tuple[str, str]:
    names = list(checkpoint.tensors)
    if any("lora_" in name or ".base_layer." in name for name in names):
        return (
            "an adapter that was not merged (PEFT)",
            "merge it (merge_and_unload), save_pretrained and give that folder",
        )
    if misfit.unused and any(
        part.rstrip(".") in name.split(".") for part in _PREFIXES[:1] + _PREFIXES[3:] for name in names
    ):
        return "a wrapper's names (torch.compile, FSDP)", "save the model inside the wrapper with save_pretrained"
    prefix = _common_prefix(names)
    if prefix:
        return (
            f"the wrapper's prefix {prefix!r} over another model",
            "save the model inside the wrapper with save_pretrained",
        )
    layers = [int(found[1]) for name in names if (found := _LAYER.match(name))]
    count = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    if layers and isinstance(count, int) and max(layers) + 1 != count and not misfit.mismatched:
        return (
            f"a config of another size (it counts {count} layers, the weights {max(layers) + 1}), or a cut checkpoint",
            "get the config and the weights that belong together",
        )
    if misfit.mismatched:
        return "a config of another size", "get the config and the weights that belong together"
    if misfit.unused and misfit.missing:
        return "names of another program or another kind of model", "give a folder made by save_pretrained"
    if misfit.unused:
        return "a config that leaves out parts of the model", "get the config and the weights that belong together"
    return "a cut checkpoint", "get all files of the checkpoint again"


def _holes(names: Collection[str]) -> list[str]:
    """Numbered names of which one is lacking between, or at the end of, its like."""
    groups: dict[str, set[tuple[int, ...]]] = {}
    for name in names:
        numbers = tuple(map(int, re.findall(r"(?<=\.)\d+(?=\.)", name)))
        if len(numbers) > 1:
            groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "{}", name), set()).add(numbers)
    inner: dict[str, set[int]] = {}
    for pattern, seen in groups.items():
        family = pattern.rpartition("{}")[0]
        inner.setdefault(family, set()).update(numbers[-1] for numbers in seen)
    lacking = []
    for pattern, seen in groups.items():
        for outer in sorted({numbers[:-1] for numbers in seen}):
            for last in sorted(inner[pattern.rpartition("{}")[0]]):
                if (*outer, last) not in seen:
                    lacking.append(pattern.format(*outer, last))
    return lacking


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _first(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(printable(name, 160) for name in names[:most]) + (", ..." if len(names) > most else "")


def _shape(shape: Any) -> str:
    return "x".join(map(str, shape)) or "a number"


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
