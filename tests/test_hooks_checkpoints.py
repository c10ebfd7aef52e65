"""Checkpoints that are not whole, not what they say, or programs: each is refused by name, and no sound one is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from precollapse import RequestError
from precollapse.hooks import loading
from precollapse.perf.small_models import FAMILIES, small_model, small_tokenizer

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_ADVICE = ("trust_remote_code", "weights_only", "ignore_mismatched", "use_safetensors", "allow_pickle")


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("tokenizer")
    small_tokenizer().save_pretrained(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Case:
    """A saved model in a folder of its own, to be spoilt."""

    def __init__(self, folder: Path, model: Any, tokenizer_files: dict[str, bytes]) -> None:
        self.folder, self.weights, self.config = folder, folder / "model.safetensors", folder / "config.json"
        model.save_pretrained(folder)
        for name, content in tokenizer_files.items():
            (folder / name).write_bytes(content)
        self.state = {name: t.clone() for name, t in model.state_dict().items()}
        self.sound = {path: path.read_bytes() for path in folder.iterdir()}

    def load(self) -> Any:
        return loading.load(loading.resolve(self.folder))

    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.weights)

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        save_file({name: t.contiguous() for name, t in tensors.items()}, self.weights, {"format": "pt"})

    def settings(self, **changed: Any) -> None:
        self.config.write_text(json.dumps({**json.loads(self.config.read_text()), **changed}))

    def mended(self) -> None:
        for path, content in self.sound.items():
            path.write_bytes(content)

    def refusal(self) -> str:
        with pytest.raises(RequestError) as caught:
            self.load()
        text = str(caught.value)
        assert "\n" not in text and not any(advice in text for advice in _ADVICE), text
        self.mended()
        return text


@pytest.fixture
def llama(tmp_path: Path, tokenizer_files: dict[str, bytes]) -> Case:
    return Case(tmp_path / "llama", small_model("llama"), tokenizer_files)


def _same(model: Any, state: dict[str, torch.Tensor]) -> None:
    loaded = model.state_dict()
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor), name


def _with_layers(settings: dict[str, Any], change: int) -> dict[str, Any]:
    """A config that counts more or fewer layers, with every list that goes by layer."""
    before = next(settings[key] for key in _LAYERS if key in settings)
    changed: dict[str, Any] = {key: settings[key] + change for key in _LAYERS if key in settings}
    for key, value in settings.items():
        by_layer = isinstance(value, list) and len(value) == before and "layer" in key
        if by_layer and (isinstance(value[0], str) or key == "no_rope_layers"):
            changed[key] = value[:change] if change < 0 else [*value, *value[-change:]]
    if "attention_types" in settings:  # GPT-Neo
        changed["attention_types"] = [[["global", "local", "global"][: before + change], 1]]
        changed["attention_layers"] = ["global", "local", "global"][: before + change]
    return changed


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path, tokenizer_files: dict[str, bytes]) -> None:
    """Sound ones load as they are; whatever is not whole is refused, and says what is wrong with it."""
    case = Case(tmp_path / family, small_model(family), tokenizer_files)
    sound = case.load()
    assert sound.checkpoint_prefix == ""
    _same(sound.model, case.state)

    tensors = case.tensors()
    case.write({f"_orig_mod.{name}": t for name, t in tensors.items()})
    wrapped = case.load()
    assert wrapped.checkpoint_prefix == "_orig_mod."
    _same(wrapped.model, case.state)

    names = sorted(tensors)
    for dropped in (names[len(names) // 2], next((n for n in names if tensors[n].ndim == 1), names[0])):
        case.write({name: t for name, t in tensors.items() if name != dropped})
        text = case.refusal()
        assert dropped in text or "missing" in text and dropped.rpartition(".")[2] in text, (dropped, text)

    settings = json.loads(case.config.read_text())
    case.settings(**_with_layers(settings, +1))
    assert "missing" in (text := case.refusal()) and "3 layers" in text, text
    case.settings(**_with_layers(settings, -1))
    assert "no place for" in (text := case.refusal()) and "1 layers" in text, text

    name = next(n for n in names if "norm" in n or "ln_" in n) if family != "olmo" else names[0]
    case.write({**tensors, name: torch.zeros(7, *tensors[name].shape[1:])})
    assert "another shape" in (text := case.refusal()) and name in text and ": 7" in text, text

    data = case.weights.read_bytes()
    case.weights.write_bytes(data[:-5])
    assert str(case.weights) in case.refusal()

    case.weights.unlink()
    (case.folder / "pytorch_model.bin").write_bytes(pickle.dumps({name: t.numpy() for name, t in tensors.items()}))
    assert "pytorch_model.bin" in case.refusal()
    (case.folder / "pytorch_model.bin").unlink()

    case.settings(model_type=f"{settings['model_type']}_own", auto_map={"AutoConfig": "own.Config"})
    assert "program of its own" in case.refusal()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "falcon", "bloom", "opt", "mamba", "qwen2", "cohere"])
def test_tied_weights_may_be_absent(family: str, tmp_path: Path, tokenizer_files: dict[str, bytes]) -> None:
    model = small_model(family)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    case = Case(tmp_path / family, model, tokenizer_files)
    _same(case.load().model, case.state)
    tensors = case.tensors()
    case.write({f"module.{name}": t for name, t in tensors.items()})
    loaded = case.load()
    assert loaded.checkpoint_prefix == "module."
    _same(loaded.model, case.state)


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "gemma2", "falcon", "bloom", "opt", "mamba", "qwen2", "cohere", "mixtral"]
)
def test_a_config_far_larger_than_its_weights_takes_no_memory(
    family: str, tmp_path: Path, tokenizer_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way it is loaded: with a trial, or without one (a quantiser nobody knows, no accelerate, no tensors)."""
    case = Case(tmp_path / family, small_model(family), tokenizer_files)
    settings = json.loads(case.config.read_text())
    size = next(key for key in ("hidden_size", "n_embd") if key in settings)
    made = torch.empty
    largest = 0

    def measured(*arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal largest
        tensor = made(*arguments, **options)
        if tensor.device.type != "meta":
            largest = max(largest, tensor.numel() * tensor.element_size())
        return tensor

    monkeypatch.setattr(torch, "empty", measured)
    for spoilt in (
        {},
        {"quantization_config": {"quant_method": "unheard_of"}},
        {"compression_config": {"quant_method": "unheard_of"}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"architectures": ["Unheard"]},
    ):
        for key in ("vocab_size", size):
            case.settings(**{key: (1 << 31) - 8}, **spoilt)
            assert "get the config" in (text := case.refusal()) or "do not fit" in text, text
    monkeypatch.setattr("transformers.utils.is_accelerate_available", lambda *_: False)
    case.settings(vocab_size=(1 << 31) - 8)
    assert "get the config" in case.refusal()
    case.settings(vocab_size=(1 << 31) - 8)
    case.write({"alone": torch.zeros(1)})
    assert "get the config" in (text := case.refusal()) or "do not fit" in text, text
    assert largest < 1 << 30


def test_what_a_model_needs_for_itself_is_no_large_table(tmp_path: Path, tokenizer_files: dict[str, bytes]) -> None:
    """Sound models of 20 families, every one under the limits: see `test_every_family`; here the limits themselves."""
    from precollapse.hooks.loading.allocation import bounded

    weights = {"w": torch.empty(1 << 20, device="meta")}
    with bounded("m", weights):
        torch.zeros(1 << 20)
        torch.zeros(4, 4).expand(1 << 40, 4, 4)  # a view takes nothing
        torch.empty(1 << 31, device="meta")
    for make in (
        lambda: torch.zeros(1 << 31),
        lambda: torch.ones(1 << 17, 1 << 15),
        lambda: torch.arange(1 << 30),
        lambda: torch.arange(1 << 16)[:, None] >= torch.arange(1 << 17)[None],
        lambda: torch.full((1 << 30, 8), 1.0),
        lambda: torch.zeros(1).repeat(1 << 31),
        lambda: torch.empty(1 << 33, device="meta"),
        lambda: [torch.empty(1 << 26) for _ in range(20)],
    ):
        with pytest.raises(RequestError, match="get the config that belongs to the weights"), bounded("m", weights):
            make()


@pytest.mark.parametrize("kind", ["own", "llama"])
def test_a_piped_yes_runs_nothing(kind: str, tmp_path: Path, tokenizer_files: dict[str, bytes]) -> None:
    """In a process whose terminal is a pipe that says yes: the program beside the weights is not run, for model, config and tokenizer."""
    case = Case(tmp_path / "llama", small_model("llama"), tokenizer_files)
    planted = tmp_path / "ran"
    (case.folder / "own.py").write_text(f"open({str(planted)!r}, 'w').close()\n")
    programs = {
        "AutoConfig": "own.Config",
        "AutoModelForCausalLM": "own.Model",
        "AutoTokenizer": ["own.Slow", "own.Fast"],
    }
    case.settings(model_type="llama" if kind == "llama" else "llama_own", auto_map=programs)
    settings = case.folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "auto_map": programs}))
    items = tmp_path / "items.jsonl"
    items.write_text('{"question": "a", "answer": "1"}\n')
    words = ["run", "--model", str(case.folder), "--benchmark", "own", "--items", f"own={items}", "--template", "raw"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "precollapse",
            *words,
            "--no-generate",
            "--regimes",
            "baseline",
            "--out",
            str(tmp_path / "run.zarr"),
        ],
        input="y\n" * 20,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not planted.exists() and "Traceback" not in done.stderr
    assert done.returncode == (0 if kind == "llama" else 2), done.stderr
