"""Checkpoints whose numbers are packed: sound ones load, and one of which a part is lacking, misshapen or of no known packing is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from precollapse import Extractor, RequestError
from precollapse.hooks import loading
from precollapse.hooks.loading.matching import Checkpoint, fitting_prefix
from precollapse.perf.small_models import small_model, small_tokenizer

QUERY = "model.layers.0.self_attn.q_proj.weight"


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    small_tokenizer().save_pretrained(folder)
    return folder


def settings(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def refusal(folder: Path) -> str:
    with pytest.raises(RequestError) as caught:
        loading.load(loading.resolve(folder))
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture(scope="module", params=["8 bits", "4 bits", "4 bits, scales packed"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    folder = tmp_path_factory.mktemp("packed")
    saved(small_model("llama"), folder / "whole")
    options: dict[str, Any] = {"load_in_8bit": True}
    if request.param != "8 bits":
        nested = "scales" in request.param
        options = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": nested}
    model = AutoModelForCausalLM.from_pretrained(
        folder / "whole", quantization_config=BitsAndBytesConfig(**options), device_map="cpu"
    )
    return saved(model, folder / "packed")


def test_bitsandbytes(packed: Path) -> None:
    weights, config = packed / "model.safetensors", packed / "config.json"
    sound, said, tensors = weights.read_bytes(), config.read_text(), load_file(weights)
    plain = {name: t for name, t in tensors.items() if t.ndim == 1 and name.endswith("norm.weight")}

    def loaded(prefix: str) -> dict[str, torch.Tensor]:
        found = loading.load(loading.resolve(packed))
        assert found.checkpoint_prefix == prefix
        return found.model.state_dict()

    first = loaded("")
    assert all(torch.equal(first[name], t) for name, t in plain.items())
    for prefix in ("_orig_mod.", "base_model.model."):
        write(packed, {prefix + name: t for name, t in tensors.items()})
        again = loaded(prefix)
        assert all(torch.equal(again[name], t) for name, t in first.items())

    beside = [name for name in tensors if name.startswith(QUERY.removesuffix("weight")) and "format" not in name]
    assert len(beside) >= 2
    for name in (*beside, "model.norm.weight"):
        write(packed, {n: t for n, t in tensors.items() if n != name})
        text = refusal(packed)
        assert name in text or "packed scales without" in text and QUERY in text, (name, text)
    for name in beside:
        if "quant_state" not in name:  # whose length is that of its text
            write(packed, {**tensors, name: torch.cat([tensors[name]] * 2)})
            assert QUERY.removesuffix(".weight") in (text := refusal(packed)), (name, text)
    weights.write_bytes(sound)
    settings(packed, num_hidden_layers=3)
    assert "missing (model.layers.2." in refusal(packed)
    settings(packed, num_hidden_layers=1)
    assert "no place for (model.layers.1." in refusal(packed)
    config.write_text(json.dumps({k: v for k, v in json.loads(said).items() if k != "quantization_config"}))
    assert "are packed" in refusal(packed)
    for absurd in ([1], "x", 3):
        config.write_text(said)
        settings(packed, quantization_config=absurd)
        assert "quantization_config = " in refusal(packed)
    config.write_text(said)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_packed_numbers_that_nothing_unpacks_are_refused(kind: torch.dtype, tmp_path: Path) -> None:
    """They were taken for the numbers themselves, without their scales."""
    folder = saved(small_model("llama"), tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    packed = tensors[QUERY].to(kind)
    for beside in ({}, {f"{QUERY}_scale": torch.ones(1)}):
        write(folder, {**tensors, QUERY: packed, **beside})
        for packing in (None, {"quant_method": "unheard_of"}, {"bits": 4}, {"quant_method": ["fp8"]}):
            settings(folder, quantization_config=packing)
            assert "are packed" in (text := refusal(folder)) and QUERY in text, text
        settings(folder, quantization_config={"quant_method": "fp8"})
        assert f"{QUERY}_scale_inv" in refusal(folder)
    for packing in (None, {"quant_method": "unheard_of"}):
        settings(folder, quantization_config=packing)
        write(folder, {**tensors, f"{QUERY}_scale": torch.ones(32)})
        assert "no place for" in refusal(folder)
        write(folder, tensors)
        assert torch.equal(loading.load(loading.resolve(folder)).model.state_dict()[QUERY], tensors[QUERY])


@pytest.mark.parametrize(
    "family", ["llama", "gpt2", "mixtral", "phimoe", "qwen3_moe", "gpt_oss", "mamba", "glm4", "jamba"]
)
@pytest.mark.parametrize("method", ["gptq", "compressed-tensors"])
def test_packed_names_of_every_kind_of_family_are_no_fault(family: str, method: str) -> None:
    """Whatever the quantiser calls its tensors; a layer of which there is nothing is one."""
    model = small_model(family)
    endings = {
        "gptq": ("qweight", "qzeros", "scales", "g_idx"),
        "compressed-tensors": ("weight_packed", "weight_scale", "weight_shape"),
    }
    from transformers.core_model_loading import revert_weight_conversion

    names: dict[str, torch.Tensor] = {}
    for name, tensor in revert_weight_conversion(model, model.state_dict()).items():
        stem = name.removesuffix(".weight")
        if tensor.ndim == 2 and stem != name and not any(part in name for part in ("embed", "wte", "lm_head")):
            names |= {f"{stem}.{ending}": torch.empty(3, device="meta") for ending in endings[method]}
        elif tensor.ndim == 3:
            names |= {name + ending: torch.empty(3, device="meta") for ending in ("_blocks", "_scales")}
        else:
            names[name] = tensor.to("meta")
    config = {**model.config.to_dict(), "quantization_config": {"quant_method": method}}
    for prefix in ("", "_orig_mod."):
        tensors = {prefix + name: t for name, t in names.items()}
        assert fitting_prefix(Checkpoint("m", config, (), tensors), model.config) == prefix
    fewer = {name: t for name, t in names.items() if ".1." not in name.partition("experts")[0]}
    with pytest.raises(RequestError, match=r"missing \(.*\.1\."):
        fitting_prefix(Checkpoint("m", config, (), fewer), model.config)


@pytest.mark.parametrize("backend", ["nnsight", "transformer_lens"])
def test_other_backends_refuse_the_same(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend, reason=f"{backend} is not installed")
    folder = saved(small_model("llama"), tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    for spoilt, says in (
        ({name: t for name, t in tensors.items() if name != QUERY}, QUERY),
        ({**tensors, QUERY: torch.zeros(5, 32)}, "another shape"),
        ({f"other.{name}": t for name, t in tensors.items()}, "names of another program"),
    ):
        write(folder, spoilt)
        with pytest.raises(RequestError, match=says):
            Extractor.from_pretrained(folder, backend=backend)
    (folder / "model.safetensors").write_bytes(b"\x00" * 400)
    with pytest.raises(RequestError, match=r"model\.safetensors"):
        Extractor.from_pretrained(folder, backend=backend)
