"""docs/models.md says what runs: its tables against families measured anew."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from precollapse.hooks.architectures import LAYOUTS
from precollapse.hooks.backends import BACKENDS, make_backend
from precollapse.hooks.backends.protocol import Request
from precollapse.hooks.differences import relative_difference
from precollapse.hooks.prompts.boundary import assemble
from precollapse.perf.parity import RECURRENT, MatrixCell, measure
from precollapse.perf.parity_page import errors_table, page, sites_table, skips
from precollapse.perf.small_models import FAMILIES, small_model

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
AGAIN = ("gemma2", "falcon-alibi")


def installed() -> list[str]:
    return [b for b in BACKENDS if b == "hf" or importlib.util.find_spec(b) is not None]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return PAGE.read_text().splitlines()


@pytest.fixture(scope="module")
def cells() -> list[MatrixCell]:
    return [cell for family in AGAIN for cell in measure(family, installed())]


def test_every_architecture_of_the_table_is_tried() -> None:
    assert set(LAYOUTS) <= {family.model_type for family in FAMILIES.values()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_padded_batch_of_every_family_equals_its_own_hidden_states(family: str) -> None:
    """One cell of each family at every run of the tests; the whole matrix is `make matrix`."""
    model = small_model(family)
    backend = make_backend(model)
    prompts = [tuple(range(5, 5 + n)) for n in (13, 1, 8)]
    batch = assemble(range(3), prompts, 0, "right")
    got = backend.rows(batch, Request(("resid_post",), (0, 1), batch.boundary[:, None]))
    first = 0 if FAMILIES[family].model_type in RECURRENT else 1
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([prompt]), output_hidden_states=True, use_cache=False).hidden_states
        own = torch.stack([h[0, -1] for h in hidden[first:-1]])
        assert relative_difference(got.sites["resid_post"][i, 0, : len(own)], own) < 1e-5
        assert relative_difference(got.final_norm[i, 0], hidden[-1][0, -1]) < 1e-5


def test_every_family_stands_in_the_page_as_it_is(lines: list[str]) -> None:
    for row in sites_table(list(FAMILIES)):
        assert row in lines, "docs/models.md is out of date: run `make matrix`"


def test_nothing_in_the_page_is_off(lines: list[str]) -> None:
    summary = next(line for line in lines if "cells ran" in line)
    assert " 0 of them off" in summary


def test_measured_again(lines: list[str], cells: list[MatrixCell]) -> None:
    assert [cell for cell in cells if cell.failed] == []
    for row in errors_table(cells)[2:]:
        family, backend, count, *numbers = [part.strip() for part in row.strip("|").split("|")]
        written = next(line for line in lines if line.startswith(f"| {family} | {backend} | {count} |"))
        known = [part.strip() for part in written.strip("|").split("|")][3:]
        assert [n == "-" for n in numbers] == [n == "-" for n in known]


def test_skips_are_those_of_the_page(lines: list[str], cells: list[MatrixCell]) -> None:
    reasons = [line for line in skips(cells) if line.startswith("* ")]
    assert reasons
    for reason in reasons:
        assert reason in lines


def test_an_error_is_called_off() -> None:
    good = MatrixCell("llama", "hf", "sdpa", "float32", "right", states=1e-6, entropy=1e-6, rows=1e-7)
    assert not good.failed
    for wrong in ({"states": 1e-3}, {"states": float("nan")}, {"entropy": 1e-2}, {"rows": 1e-3}):
        cell = MatrixCell(**{**good.__dict__, **wrong})
        assert cell.failed
        assert "1 of them off" in page([cell])
