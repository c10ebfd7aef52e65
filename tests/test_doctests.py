"""The examples in the docstrings run, and every public callable has some.

An example reads as a user would write it. It runs in a folder of its own where `smollm2-135m-instruct` is a random model of three
layers (a folder of that name comes before the embedded model) and `run.zarr` a finished study of it: so an example prints what holds
for any model.
"""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import pytest

import precollapse as pc
from precollapse import hooks, kernels
from precollapse.analysis import dimension, probes, report, selective, statistics, transfer
from precollapse.studies import benchmarks, grading, prompts, trajectories

PUBLIC: dict[str, Any] = {
    "Extractor": pc.Extractor,
    "Extractor.from_pretrained": pc.Extractor.from_pretrained,
    "Extractor.capture": pc.Extractor.capture,
    "StudyConfig": pc.StudyConfig,
    "run_study": pc.run_study,
    "open_run": pc.open_run,
    "verify": pc.verify,
    "kernels.vocab_stats": kernels.vocab_stats,
    "kernels.logits_stats": kernels.logits_stats,
    "kernels.attention_row": kernels.attention_row,
    "kernels.gather_rows": kernels.gather_rows,
    "kernels.Moments": kernels.Moments,
    "hooks.Steering": hooks.Steering,
    "hooks.steering_vector": hooks.steering_vector,
    "dimension.participation_ratio": dimension.participation_ratio,
    "dimension.effective_dimensionality": dimension.effective_dimensionality,
    "dimension.two_nn": dimension.two_nn,
    "dimension.levina_bickel": dimension.levina_bickel,
    "probes.recoverability": probes.recoverability,
    "transfer.transfer_matrix": transfer.transfer_matrix,
    "statistics.bootstrap_auroc": statistics.bootstrap_auroc,
    "statistics.fisher": statistics.fisher,
    "statistics.mcnemar": statistics.mcnemar,
    "statistics.holm": statistics.holm,
    "statistics.wilson": statistics.wilson,
    "selective.aurc": selective.aurc,
    "report.write_report": report.write_report,
    "benchmarks.load": benchmarks.load,
    "grading.grade": grading.grade,
    "prompts.render": prompts.render,
    "trajectories.shape": trajectories.shape,
    "trajectories.forced_answers": trajectories.forced_answers,
}
"""Every callable that the design names as public."""


@pytest.fixture(scope="module")
def desk(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of the embedded one's name, and a run of it."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "smollm2-135m-instruct").symlink_to(tiny_folder)
    config = pc.StudyConfig(folder / "run.zarr", str(tiny_folder), n=8, regimes=("baseline", "cot"), max_new_tokens=2)
    pc.run_study(config, progress=False)
    return folder


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_run_and_end_the_docstring(name: str, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    _, heading, examples = text.partition("Examples\n--------\n")
    assert heading and ">>> " in examples, f"the docstring of {name} has no Examples section with an example in it"
    assert "\n---" not in examples, f"the Examples section of {name} is not the last of its docstring"
    monkeypatch.chdir(desk)
    test = doctest.DocTestParser().get_doctest(examples, {}, name, name, 0)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)
