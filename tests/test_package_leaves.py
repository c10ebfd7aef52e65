"""The leaves that every room uses: checks, layer names, whole files."""

from __future__ import annotations

import doctest
import os
import stat
import threading

import numpy as np
import pytest

from precollapse import RequestError, atomic, checks, layers


@pytest.mark.parametrize("module", [checks, layers])
def test_examples_run(module):
    tried = doctest.testmod(module, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert tried.attempted and not tried.failed


@pytest.mark.parametrize("value", [1, np.int8(1), np.uint64(1), np.int64(1)])
def test_whole_numbers_come_back_as_plain_ones(value):
    assert type(checks.whole("n", value, least=1)) is int


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, 0, float("nan"), [1]])
def test_other_values_are_no_whole_numbers_of_at_least_one(value):
    with pytest.raises(RequestError, match=r"^n must be a whole number of at least 1, found .*; leave it out\.$"):
        checks.whole("n", value, least=1, hint="leave it out")
    assert not checks.is_whole(value, 1)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checks.whole("k", 9, 0, 8), r"k must be a whole number from 0 to 8, found 9\."),
        (lambda: checks.finite("scale", float("inf")), r"scale must be a finite number, found inf\."),
        (lambda: checks.finite("epsilon", -1, least=0), r"epsilon must be a finite number of at least 0, found -1\."),
        (lambda: checks.finite("scale", True), r"found True"),
        (lambda: checks.inside("level", 1, 0, 1), r"level must lie between 0 and 1, found 1\."),
        (lambda: checks.choice("mode", "plus", {"add": 1}), r"mode 'plus' is unknown; choose from add\."),
        (lambda: checks.choice("mode", ["add"], ("add",)), r"mode \['add'\] is unknown"),
        (lambda: checks.choice("mode", "x", ("a", "b"), "or give a file"), r"choose from a, b, or give a file\."),
        (lambda: checks.names("sites", ("a", "b", "a")), r"sites a, b, a name one twice \('a'\); name each once\."),
        (lambda: checks.names("sites", 3), r"sites must be names, found 3\."),
        (lambda: checks.names("sites", (), empty=False), r"sites must name at least one thing, found none\."),
        (lambda: checks.fields("x.yaml", {"b": 1, 1: 2}, ("a",)), r"x\.yaml has an unknown field '1'; known: a\."),
    ],
)
def test_refusals_say_what_was_found(check, message):
    with pytest.raises(RequestError, match=f"{message}"):
        check()


def test_what_is_right_comes_back():
    assert checks.finite("scale", np.float32(0.5)) == 0.5 and checks.inside("level", 0.95, 0, 1) == 0.95
    assert checks.choice("mode", "add", ("add",)) == "add" and checks.choice("layer", None, (None, 1)) is None
    assert checks.names("sites", "a") == ("a",) and checks.optional_whole("n", None, 1) is None


@pytest.mark.parametrize(
    ("text", "held", "chosen"),
    [
        ("5,10-12,-1", range(30), (5, 10, 11, 12, 29)),
        ("last, 0, 0", (0, 2), (2, 0)),
        ("all", (3, 7), (3, 7)),
        ("-5", (3, 7), (3,)),
    ],
)
def test_layers_that_a_run_holds(text, held, chosen):
    assert layers.held_layers(text, held) == chosen


@pytest.mark.parametrize(
    ("text", "held", "message"),
    [
        ("4-6", (4, 6), "--layers '4-6' names layer 5, which the run does not hold; it holds 4, 6"),
        ("0.5", (0, 1), "a fraction"),
        ("7-4", range(9), "runs backwards"),
        ("", (0,), "is not a number"),
        ("x", (0,), "--layers 'x' is not a number"),
        ("last", (), "is not a number"),
        ("all", (), "it holds none"),
    ],
)
def test_layers_that_a_run_does_not_hold(text, held, message):
    with pytest.raises(RequestError, match=message):
        layers.held_layers(text, held, "--layers")


def test_layers_are_shown_as_a_range_where_they_are_one():
    assert [layers.layer_text(numbers) for numbers in ([4], [4, 5], [4, 5, 6], [4, 6, 7])] == [
        "4",
        "4, 5",
        "4 to 6",
        "4, 6, 7",
    ]


def test_a_file_is_whole_or_as_before(tmp_path):
    file = tmp_path / "report.md"
    atomic.write(file, "one\n")
    with pytest.raises(ZeroDivisionError), atomic.writing(file) as stream:
        stream.write(b"half")
        1 / 0  # noqa: B018
    assert file.read_text() == "one\n" and os.listdir(tmp_path) == ["report.md"]
    with atomic.writing(file, durable=True) as stream:
        stream.write(b"zwei")
        assert file.read_text() == "one\n"
    assert file.read_text() == "zwei" and os.listdir(tmp_path) == ["report.md"]


def test_a_new_file_has_ordinary_permissions_and_the_umask_is_not_touched(tmp_path, monkeypatch):
    old = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("another thread's files would get this mask"))
            atomic.write(tmp_path / "a", b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_two_writers_of_one_file_leave_one_of_the_two(tmp_path):
    contents = [bytes([number]) * 100_000 for number in range(8)]
    writers = [threading.Thread(target=atomic.write, args=(tmp_path / "a", data)) for data in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (tmp_path / "a").read_bytes() in contents and os.listdir(tmp_path) == ["a"]
