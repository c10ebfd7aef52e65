"""The command line's declarations: defaults, examples, configuration files, completion. No model is loaded here."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from precollapse.cli import values
from precollapse.cli.defaults import declared
from precollapse.cli.main import COMMANDS, build_parser, joined, main
from precollapse.errors import RequestError

CONFIGURABLE = ("run", "report", "trajectories", "steer", "profile", "grade")


def parsed(*words):
    """The arguments of a command line, configuration file included, as the command's handler gets them."""
    arguments = build_parser().parse_args(joined(words))
    return COMMANDS[arguments.command].completed(arguments)


def of_file(tmp_path, text, *words):
    path = tmp_path / "options.yaml"
    path.write_text(text)
    arguments = vars(parsed(*words, "--config", str(path)))
    arguments.pop("config")
    return arguments


def target(command):
    module, name = COMMANDS[command].source.split(":")
    return getattr(import_module(f"precollapse.{module}"), name)


# --- declarations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_two_and_are_understood(command):
    examples = COMMANDS[command].examples
    assert len(examples) >= 2
    for _, line in examples:
        program, *words = shlex.split(line)
        assert program == "precollapse" and words[0] == command
        parsed(*words)


def test_help_is_fast_and_shows_examples_as_typed():
    code = (
        "import sys; from precollapse.cli.main import main\n"
        "try: main(['steer', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'pandas', 'yaml', 'shtab') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert done.stdout.endswith("[]\n")
    for _, line in COMMANDS["steer"].examples:
        assert f"  {line}\n" in done.stdout
    assert "(default:\n" in done.stdout and "-8,-4,0,4,8)" in done.stdout


@pytest.mark.parametrize("command", CONFIGURABLE)
def test_defaults_read_from_the_source_are_those_of_the_fields(command):
    parameters = inspect.signature(target(command)).parameters
    read = declared(COMMANDS[command].source)
    for name, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty:
            assert name not in read
        elif "factory" in repr(parameter.default):
            assert not read[name]
        else:
            assert read[name] == parameter.default and type(read[name]) is type(parameter.default), name


def test_a_default_that_cannot_be_read_is_an_error():
    with pytest.raises(LookupError, match="does not define Nothing"):
        declared("studies:Nothing")
    with pytest.raises(LookupError, match="is no literal"):
        declared("cli.command:Option")


@pytest.mark.parametrize("command", CONFIGURABLE)
def test_every_option_with_a_setting_is_one_of_the_target(command):
    """A flag that no setting takes would be passed over without a word."""
    from precollapse.reports.kinds import OPTIONS

    own = {"config", "json", "quiet", "out", "forced", "both", "audit"} | (
        set(OPTIONS) if command == "report" else set()
    )
    names = {option.name for option in COMMANDS[command].options}
    assert names - own <= set(inspect.signature(target(command)).parameters)


def test_report_passes_on_every_option_that_a_kind_reads_with_the_defaults_of_the_analysis():
    from precollapse.analysis.cells import Settings
    from precollapse.reports.kinds import OPTIONS, ReportRequest

    assert set(OPTIONS) <= {option.name for option in COMMANDS["report"].options}
    plain = Settings()
    same = {"splits": plain.n_splits, "layers": "all", "hypotheses": None}
    assert OPTIONS == {name: same[name] if name in same else getattr(plain, name) for name in OPTIONS}
    assert ReportRequest(()).seed == plain.seed


def test_choices_and_numbers_told_in_the_help_are_those_of_the_code():
    from precollapse.analysis.trajectories import TIE_RULES
    from precollapse.hooks import extractor, running
    from precollapse.studies import prompts
    from precollapse.studies.study import config
    from precollapse.studies.trajectories.config import GRADED, TAG_SIDES

    options = {(c.name, o.flag): o for c in COMMANDS.values() for o in c.options}
    for command, flag, allowed in (
        ("run", "--template", config.TEMPLATES),
        ("run", "--attention", config.ATTENTION),
        ("run", "--store-dtype", config.STORE_DTYPES),
        ("run", "--share-prefix", extractor.MODES),
        ("trajectories", "--graded", GRADED),
        ("trajectories", "--tie", TIE_RULES),
        ("trajectories", "--tag-side", TAG_SIDES),
    ):
        assert tuple(options[command, flag].value.keywords["choices"]) == tuple(allowed), flag
    caps = options["run", "--max-new-tokens"].default
    assert (
        caps
        == f"{prompts.REGIMES['baseline'].max_new_tokens} for baseline, {prompts.DEFAULT_MAX_NEW_TOKENS} for the others"
    )
    budget = options["run", "--batch-tokens"].default
    for number in (running.CPU_BATCH_TOKENS, running.CPU_GENERATING_TOKENS, running.GPU_BATCH_TOKENS):
        assert str(number) in budget


def test_without_flags_every_setting_keeps_its_default():
    from precollapse.cli.run import study_config
    from precollapse.cli.trajectories import trajectory_config
    from precollapse.studies import StudyConfig, TrajectoryConfig

    assert study_config(parsed("run", "--out", "x.zarr")) == StudyConfig("x.zarr")
    assert trajectory_config(parsed("trajectories", "--out", "x.zarr")) == TrajectoryConfig("x.zarr")


def test_the_options_of_a_study_can_be_added_to_any_parser():
    import argparse

    from precollapse.cli.run import add_study_arguments, study_config
    from precollapse.studies import StudyConfig

    parser = argparse.ArgumentParser()
    add_study_arguments(parser)
    arguments = parser.parse_args(["--n", "3", "--sites", "none"])
    arguments.out = "x.zarr"
    assert study_config(arguments) == StudyConfig("x.zarr", n=3, sites=())


def test_rule_and_cap_are_those_of_the_measures_taken():
    from precollapse.cli.trajectories import trajectory_config

    words = ("trajectories", "--out", "x.zarr", "--rule", "newline", "--cap", "none")
    sampled, forced, both = (trajectory_config(parsed(*words, *more)) for more in ((), ("--forced",), ("--both",)))
    assert (sampled.rule, sampled.cap, sampled.forced_rule) == ("newline", None, "sentence")
    assert (forced.rule, forced.cap, forced.forced_rule, forced.forced_cap) == ("blank-line", 8, "newline", None)
    assert (both.rule, both.cap, both.forced_rule, both.forced_cap) == ("newline", None, "newline", None)
    assert both.measures == ("sampled", "forced")


@pytest.mark.parametrize("flag", ["--scales", "--layers", "--layer"])
def test_a_value_that_begins_with_minus_belongs_to_its_flag(flag):
    assert joined(["steer", flag, "-8,-4,0"]) == ["steer", f"{flag}=-8,-4,0"]
    assert parsed("steer", "run.zarr", "--scales", "-8,-4,0").scales == (-8, -4, 0)


# --- configuration files ------------------------------------------------------------------------------------------------

SAME = {
    "run": (
        """
        out: x.zarr
        benchmark: [builtin, mine]
        items: {mine: rows.jsonl}
        n: 5
        regimes-file: own.yaml
        layers: [0, 5, 10-12]
        sites: none
        after: [1, 8, "####"]
        max_new_tokens: {baseline: 50, cot: 160}
        no-generate: true
        attention: rows
        share_prefix: never
        compile: false
        quiet: true
        """,
        "--out x.zarr --benchmark builtin,mine --items mine=rows.jsonl --n 5 --regimes-file own.yaml --layers 0,5,10-12 "
        "--sites none --after 1,8,#### --max-new-tokens baseline=50,cot=160 --no-generate --attention rows "
        "--share-prefix never --no-compile --quiet",
    ),
    "report": (
        "layers: 0-9/10-19\nsplits: 3\nseed: 2\nout: folder",
        "--layers 0-9/10-19 --splits 3 --seed 2 --out folder",
    ),
    "trajectories": (
        """
        out: x.zarr
        chains: [mine=chains.jsonl]
        anchor: [" So:", " Thus:"]
        cap: none
        temperature: 1
        epsilon: 1e-3
        options: [A, B]
        both: true
        system: ""
        json: true
        """,
        "--out x.zarr --chains mine=chains.jsonl --anchor ' So:' --anchor ' Thus:' --cap none --temperature 1 "
        "--epsilon 1e-3 --options A,B --both --system '' --json",
    ),
    "steer": (
        "scales: [-8, -4.5, 0]\nlayer: -1\nregimes: cot\npositive: 3\nn: 2",
        "--scales -8,-4.5,0 --layer -1 --regimes cot --positive 3 --n 2",
    ),
    "grade": (
        "benchmark: mine\ntext: reply\naudit: 3\nout: new.csv",
        "--benchmark mine --text reply --audit 3 --out new.csv",
    ),
    "profile": ("sites: [resid_post, z]\nlayers: 0.5\nbatch: 4", "--sites resid_post,z --layers 0.5 --batch 4"),
}


def positional(command):
    return ["x.zarr"] if command in ("report", "steer", "grade") else []


@pytest.mark.parametrize("command", CONFIGURABLE)
def test_a_file_means_what_the_same_flags_mean(command, tmp_path):
    text, flags = SAME[command]
    by_flags = vars(parsed(command, *positional(command), *shlex.split(flags)))

    def comparable(arguments):
        return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}

    by_file = of_file(tmp_path, inspect.cleandoc(text), command, *positional(command))
    assert comparable(by_file) == comparable(by_flags)


def test_every_command_of_more_than_five_flags_reads_a_file():
    for command in COMMANDS.values():
        assert command.reads_config == (len(command.options) > 5), command.name
        assert command.reads_config == (command.name in CONFIGURABLE)


def test_flags_come_before_the_file(tmp_path):
    text = "out: x.zarr\nn: 5\nitems: {mine: a.jsonl, other: b.jsonl}\nmoments: true\nno-generate: true\nquiet: true"
    given = of_file(tmp_path, text, "run", "--n", "7", "--items", "mine=c.jsonl", "--no-moments", "--generate")
    assert given["n"] == 7 and given["items"] == {"mine": "c.jsonl"}
    assert given["moments"] is False and given["generate"] is True
    assert given["out"] == "x.zarr" and given["quiet"] is True


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("layerz: all", "has the unknown key 'layerz'"),
        ("config: other.yaml", "has the unknown key 'config'"),
        ("1: 2", "has the unknown key 1"),
        ("n: five", "n must be a whole number, found 'five'"),
        ("n: true", "n must be a whole number, found True"),
        ("n: 1.5", "n must be a whole number, found 1.5"),
        ("n:", "n must be a whole number, found None"),
        ("seed: '3'", "seed must be a whole number, found '3'"),
        ("regimes: [cot, no]", "regimes must be a name, or a list of names, found ['cot', False]"),
        ("model: 135", "model must be text, found 135"),
        ("moments: 1", "moments must be true or false, found 1"),
        ("attention: everything", "attention must be one of none, summary, rows, found 'everything'"),
        ("attention: [rows]", "attention must be one of none, summary, rows, found ['rows']"),
        ("items: {mine: 3}", "items must be a mapping of names to files"),
        ("items: rows.jsonl", "items must be a mapping of names to files"),
        ("max-new-tokens: {cot: many}", "max-new-tokens must be a whole number, or a mapping"),
        ("top_k: 3\ntop-k: 4", "has the key 'top-k' twice"),
        ("n: 3\nn: 4", "the name 'n' appears twice"),
        ("- n", "is not a mapping of flags to values"),
        ("", "is not a mapping of flags to values"),
        ("n: [", "is not valid YAML"),
    ],
)
@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_wrong_file_is_refused_in_one_sentence(text, sentence, json, tmp_path, capsys):
    path = tmp_path / "options.yaml"
    path.write_text(text)
    assert main(["run", "--out", str(tmp_path / "x.zarr"), "--config", str(path), *json]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1
    assert captured.err.startswith("precollapse: ") and sentence in captured.err and str(path) in captured.err
    if "YAML" not in sentence and "appears" not in sentence:
        assert "the keys of `precollapse run` are json, quiet, out, model, backend," in captured.err


def test_a_missing_file_or_a_missing_out_is_refused(tmp_path, capsys):
    assert main(["run", "--config", str(tmp_path / "nowhere.yaml")]) == 2
    assert "nowhere.yaml (No such file or directory); give an existing YAML file" in capsys.readouterr().err
    (tmp_path / "options.yaml").write_text("n: 3")
    for words in (["--config", str(tmp_path / "options.yaml")], []):
        assert main(["run", *words]) == 2
        assert "the following arguments are required: --out; see `precollapse run --help`" in capsys.readouterr().err
    assert main(["import", str(tmp_path)]) == 2
    assert "the following arguments are required: --out" in capsys.readouterr().err


def test_refusals_of_flags_keep_their_sentences():
    for read, text, sentence in (
        (values.numbers, "-8,much", "comma list of numbers"),
        (values.caps, "many", "neither a number nor"),
        (values.caps, "cot=1,cot=2", "names a regime twice"),
        (values.whole_or_none, "few", "not a whole number"),
    ):
        with pytest.raises(RequestError, match=sentence):
            read(text, "--flag")
    with pytest.raises(RequestError, match="names 'a' twice"):
        parsed("run", "--out", "x.zarr", "--items", "a=1", "--items", "a=2")


# --- completion ---------------------------------------------------------------------------------------------------------


def test_completion_scripts_name_commands_and_files(capsys):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    assert end.value.code == 0
    assert "trajectories" in script and "--no-generate" in script and "--no-moments" not in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_without_shtab_completion_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "zsh"]) == 2
    assert "pip install precollapse[completion]" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys):
    from precollapse import __version__

    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"precollapse {__version__}\n"
    assert f'version = "{__version__}"' in (Path(__file__).parents[1] / "pyproject.toml").read_text()
