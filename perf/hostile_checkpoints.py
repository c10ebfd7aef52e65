"""Damaged and hostile checkpoints of every family, and what is said of each: the table of docs/checkpoints.md.

Each family is saved small, spoilt in one way at a time, and loaded. A fault counts as refused when the load ends in the package's one
sentence that names the model or the file and advises nothing unsafe; a sound checkpoint must load with the weights that were saved.

Usage: python perf/hostile_checkpoints.py [--families llama,gpt2] [--json]
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from precollapse.errors import RequestError
from precollapse.hooks import loading
from precollapse.perf.small_models import FAMILIES, small_model, small_tokenizer

_UNSAFE = ("trust_remote_code", "weights_only", "ignore_mismatched", "use_safetensors", "allow_pickle")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


class Folder:
    """A saved model, to be spoilt and mended."""

    def __init__(self, folder: Path, family: str) -> None:
        self.folder = folder
        self.model = small_model(family)
        self.model.save_pretrained(folder)
        small_tokenizer().save_pretrained(folder)
        self.weights, self.config = folder / "model.safetensors", folder / "config.json"
        self.tensors = load_file(self.weights)
        self.sound = {path: path.read_bytes() for path in folder.iterdir()}

    def mend(self) -> None:
        for path in list(self.folder.iterdir()):
            if path not in self.sound:
                path.unlink()
        for path, content in self.sound.items():
            path.write_bytes(content)

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, self.weights, {"format": "pt"})

    def settings(self, **changed: Any) -> None:
        self.config.write_text(json.dumps({**json.loads(self.config.read_text()), **changed}))

    def counted(self, change: int) -> None:
        settings = json.loads(self.config.read_text())
        before = next(settings[key] for key in _LAYERS if key in settings)
        changed: dict[str, Any] = {key: settings[key] + change for key in _LAYERS if key in settings}
        for key, value in settings.items():
            if (
                isinstance(value, list)
                and len(value) == before
                and "layer" in key
                and value
                and not isinstance(value[0], list)
            ):
                changed[key] = value[:change] if change < 0 else [*value, value[-1]]
        if "attention_types" in settings:
            changed["attention_types"] = [[["global", "local", "global"][: before + change], 1]]
            changed["attention_layers"] = ["global", "local", "global"][: before + change]
        self.settings(**changed)


def _prefixed(prefix: str) -> Callable[[Folder], None]:
    return lambda case: case.write({prefix + name: tensor for name, tensor in case.tensors.items()})


def _without(choose: Callable[[dict[str, torch.Tensor]], str]) -> Callable[[Folder], None]:
    def spoil(case: Folder) -> None:
        left_out = choose(case.tensors)
        case.write({name: tensor for name, tensor in case.tensors.items() if name != left_out})

    return spoil


def _other_shape(case: Folder) -> None:
    name = next((n for n in sorted(case.tensors) if "norm" in n or "ln_" in n), sorted(case.tensors)[0])
    case.write({**case.tensors, name: torch.zeros(7, *case.tensors[name].shape[1:])})


def _pickled(case: Folder) -> None:
    case.weights.unlink()
    (case.folder / "pytorch_model.bin").write_bytes(pickle.dumps({n: t.numpy() for n, t in case.tensors.items()}))


def _a_part_missing(case: Folder) -> None:
    case.weights.unlink()
    case.model.save_pretrained(case.folder, max_shard_size="20KB")
    parts = sorted(case.folder.glob("model-*.safetensors"))
    (parts[-1] if parts else case.weights).unlink()


def _remote(case: Folder) -> None:
    kind = json.loads(case.config.read_text())["model_type"]
    case.settings(model_type=f"{kind}_own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    (case.folder / "own.py").write_text("raise SystemExit('ran')\n")


def _middle(tensors: dict[str, torch.Tensor]) -> str:
    return sorted(tensors)[len(tensors) // 2]


def _vector(tensors: dict[str, torch.Tensor]) -> str:
    return next((name for name in sorted(tensors) if tensors[name].ndim == 1), _middle(tensors))


def _absurd(case: Folder) -> None:
    case.settings(vocab_size=(1 << 31) - 8, quantization_config={"quant_method": "unheard_of"})


def _packed(case: Folder) -> None:
    name = next(name for name, t in sorted(case.tensors.items()) if t.ndim == 2 and name.endswith("weight"))
    case.write({**case.tensors, name: case.tensors[name].to(torch.int8), f"{name}_scale": torch.ones(1)})


RUNS = {
    "nothing": lambda case: None,
    "a prefix of torch.compile (`_orig_mod.`)": _prefixed("_orig_mod."),
    "a prefix of PEFT (`base_model.model.`)": _prefixed("base_model.model."),
}
"""What loads with the saved weights; a prefix is taken off and recorded."""
REFUSED: dict[str, Callable[[Folder], None]] = {
    "a weight missing": _without(_middle),
    "a norm missing": _without(_vector),
    "one layer too many in the config": lambda case: case.counted(+1),
    "one layer too few in the config": lambda case: case.counted(-1),
    "a weight of another shape": _other_shape,
    "names of another program": _prefixed("other."),
    "weights cut short": lambda case: case.weights.write_bytes(case.sound[case.weights][:-5]) and None,
    "weights empty": lambda case: case.weights.write_bytes(b"") and None,
    "weights of noise": lambda case: case.weights.write_bytes(bytes(range(256)) * 9) and None,
    "weights pickled": _pickled,
    "a part of several missing": _a_part_missing,
    "a config that is no JSON": lambda case: case.config.write_text("{") and None,
    "an absurd size, quantised by nobody knows what": _absurd,
    "a weight packed to 8 bits, with a scale that nothing applies": _packed,
    "a tokenizer that is no JSON": lambda case: (case.folder / "tokenizer.json").write_text("{") and None,
    "a program of its own (`auto_map`)": _remote,
}


def outcome(case: Folder) -> tuple[str, str]:
    """ "ran" with the prefix, "refused" with the sentence, or "wrong" with what happened instead."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = loading.load(loading.resolve(case.folder))
    except RequestError as error:
        text = str(error)
        safe = "\n" not in text and not any(advice in text for advice in _UNSAFE)
        named = case.folder.name in text
        return ("refused", text) if safe and named else ("wrong", text)
    except BaseException as error:
        return "wrong", f"{type(error).__name__}: {error}"
    state = case.model.state_dict()
    same = all(torch.equal(tensor, state[name]) for name, tensor in loaded.model.state_dict().items())
    return ("ran", loaded.checkpoint_prefix) if same else ("wrong", "it ran with other weights than were saved")


def _sentence(found: tuple[str, str]) -> str:
    """What was said, without the temporary folder, to its first stop that fits a table."""
    kind, text = found
    if kind == "ran":
        return f"(recorded: `{text}`)" if text else ""
    said = re.sub(r"'?[^ ']*/(?=[^/ ]*)[^ /']*-[a-z0-9_]{8}(/[^ ';:,]+)?'?", lambda m: (m[1] or "M").lstrip("/"), text)
    said = said.replace("and the model would run on random numbers or without some of its weights", "...")
    return (said if len(said) <= 240 else f"{said[:237]}...").replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    families = options.families.split(",")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    wanted = {**dict.fromkeys(RUNS, "ran"), **dict.fromkeys(REFUSED, "refused")}
    found: dict[str, dict[str, tuple[str, str]]] = {what: {} for what in wanted}
    for family in families:
        base = Path(tempfile.mkdtemp(prefix=f"{family}-"))
        case = Folder(base, family)
        for what, spoil in (RUNS | REFUSED).items():
            spoil(case)
            found[what][family] = outcome(case)
            case.mend()
        shutil.rmtree(base)
    wrong = {what: {f: o for f, o in by.items() if o[0] != wanted[what]} for what, by in found.items()}
    if options.json:
        print(json.dumps({"families": families, "found": found}))
    else:
        print(f"Of {len(families)} families:\n")
        print(
            "| what was done to the checkpoint | loads as saved | refused | otherwise | the sentence (of the first family) |"
        )
        print("|---|---|---|---|---|")
        for what, by in found.items():
            ran, refused = (sum(o[0] == kind for o in by.values()) for kind in ("ran", "refused"))
            print(f"| {what} | {ran} | {refused} | {len(by) - ran - refused} | {_sentence(by[families[0]])} |")
        for what, by in wrong.items():
            for family, (kind, text) in by.items():
                print(f"\n{what}, {family}: {kind}: {text[:300]}")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
