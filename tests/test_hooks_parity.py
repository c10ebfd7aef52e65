"""docs/models.md says what runs: its tables against families measured anew."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from precollapse.hooks.backends import BACKENDS
from precollapse.hooks.parity import Cell, measure
from precollapse.hooks.parity_page import errors_table, page, sites_table, skips
from precollapse.hooks.small_models import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
AGAIN = ("gemma2", "falcon-alibi")


def installed() -> list[str]:
    return [b for b in BACKENDS if b == "hf" or importlib.util.find_spec(b) is not None]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return PAGE.read_text().splitlines()


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return [cell for family in AGAIN for cell in measure(family, installed())]


def test_every_family_stands_in_the_page_as_it_is(lines: list[str]) -> None:
    for row in sites_table(list(FAMILIES)):
        assert row in lines, "docs/models.md is out of date: run `make matrix`"


def test_nothing_in_the_page_is_off(lines: list[str]) -> None:
    summary = next(line for line in lines if "cells ran" in line)
    assert " 0 of them off" in summary


def test_measured_again(lines: list[str], cells: list[Cell]) -> None:
    assert [cell for cell in cells if cell.failed] == []
    for row in errors_table(cells)[2:]:
        family, backend, count, *numbers = [part.strip() for part in row.strip("|").split("|")]
        written = next(line for line in lines if line.startswith(f"| {family} | {backend} | {count} |"))
        known = [part.strip() for part in written.strip("|").split("|")][3:]
        assert [n == "-" for n in numbers] == [n == "-" for n in known]


def test_skips_are_those_of_the_page(lines: list[str], cells: list[Cell]) -> None:
    reasons = [line for line in skips(cells) if line.startswith("* ")]
    assert reasons
    for reason in reasons:
        assert reason in lines


def test_an_error_is_called_off() -> None:
    good = Cell("llama", "hf", "sdpa", "float32", "right", states=1e-6, entropy=1e-6, rows=1e-7)
    assert not good.failed
    for wrong in ({"states": 1e-3}, {"states": float("nan")}, {"entropy": 1e-2}, {"rows": 1e-3}):
        cell = Cell(**{**good.__dict__, **wrong})
        assert cell.failed
        assert "1 of them off" in page([cell])
