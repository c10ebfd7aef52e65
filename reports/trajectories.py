"""The report of a trajectory run: every statistic with every choice it hangs on, as Markdown, CSV, JSON and one HTML page.

Guarantees that results stand under both outcome definitions, that what the protocol did to the chains (truncation, caps, merged
units, missing points) comes first, that the registration's digest is the one the run was started with, and that a missing
value is printed as missing with its reason.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .. import atomic
from ..analysis.trajectories.preregistration import (
    OUTCOMES,
    Preregistration,
    deviations,
    parse_preregistration,
    verdicts,
)
from ..analysis.trajectories.statistics import (
    EPSILONS,
    TrajectoryStatistics,
    Triage,
    early_exit_table,
    epsilon_table,
    family,
    trajectory_statistics,
    usable,
)
from ..errors import RequestError
from ..store import Run
from . import trajectory_tables as tables

DEFAULT_FAMILY = ("fisher_two_sided", "spearman_violations", "spearman_coherence", "logistic_monotone")
BUDGETS = (512, 600, 1280, 4096)
_SHOWN_CHAINS = 12


@dataclass(frozen=True)
class TrajectoryReport:
    """What was written.

    Attributes
    ----------
    markdown : str
    values : dict
        All numbers as JSON values; missing ones are None.
    tables : dict of str to DataFrame
        By file name.
    files : tuple of Path
        Empty when nothing was written.
    """

    markdown: str
    values: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    files: tuple[Path, ...] = ()


@dataclass
class _Draft:
    """The report as it is put together: titled parts, each of paragraphs, tables and figures."""

    parts: list[tuple[str, list[Any]]] = field(default_factory=list)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, bytes] = field(default_factory=dict)
    scope: str = ""
    """Benchmark that is written about; its name goes before titles and names. Empty for a run of one benchmark."""

    def named(self, name: str) -> str:
        return f"{self.scope}_{name}" if self.scope else name

    def part(self, title: str) -> None:
        self.parts.append((f"{self.scope}: {title}" if self.scope else title, []))

    def value(self, name: str, value: Any) -> None:
        self.values[self.named(name)] = value

    def keep(self, name: str, table: pd.DataFrame) -> None:
        """Write a table to a file without showing it."""
        self.tables[self.named(name)] = table

    def say(self, text: str) -> None:
        self.parts[-1][1].append(text)

    def table(self, name: str, table: pd.DataFrame) -> None:
        self.keep(name, table)
        self.parts[-1][1].append((self.named(name), table))

    def figure(self, name: str, figure: Any, caption: str) -> None:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=130)
        self.figures[self.named(name)] = buffer.getvalue()
        self.parts[-1][1].append(_Image(self.named(name), caption))

    def raw(self, content: str) -> None:
        self.parts[-1][1].append(_Raw(content))


@dataclass(frozen=True)
class _Image:
    name: str
    caption: str


@dataclass(frozen=True)
class _Raw:
    content: str


def trajectory_report(
    run: Run,
    out: str | Path | None = None,
    *,
    epsilon: float | None = None,
    tie: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    others: Mapping[str, Run] | None = None,
    figures: bool = True,
) -> TrajectoryReport:
    """Analyse a trajectory run.

    Parameters
    ----------
    run : Run
        Made by `run_trajectories`; it may be unfinished.
    out : path, optional
        Folder for report.md, report.html, report.json, one CSV a table and one PNG a figure. None writes nothing.
    epsilon, tie : optional
        Instead of those the run was started with.
    resamples, seed : int
        Of every interval.
    others : mapping of str to Run, optional
        Runs of the same items (other seeds or segmentations) whose agreement with this one is wanted, by name.
    figures : bool
        Whether to draw (needs matplotlib).

    Raises
    ------
    RequestError
        When the run holds no trajectories, or none of its chains is committed.
    """
    tables.check_kind(run)
    if seed < 0:
        raise RequestError(f"the seed must be 0 or more, found {seed}")
    if len(run) == 0:
        raise RequestError(f"{run.path} has no committed chain yet; let `precollapse trajectories` get further")
    chosen = run.manifest.get("analysis", {})
    epsilon = chosen.get("epsilon", 0.01) if epsilon is None else epsilon
    tie = chosen.get("tie", "first") if tie is None else tie
    draft = _Draft()
    _protocol(draft, run, epsilon, tie)
    registered = _registered(run)
    names = list(dict.fromkeys(run.states["benchmark"]))
    for name in names:
        draft.scope = name if len(names) > 1 else ""
        part = run.select(benchmark=name)
        compared = {key: other.select(benchmark=name) for key, other in (others or {}).items()}
        _benchmark(draft, part, epsilon, tie, resamples, seed, registered, compared, figures)
    markdown = _markdown(draft)
    values = _jsonable(draft.values | {"tables": {n: t.to_dict("records") for n, t in draft.tables.items()}})
    files = () if out is None else _write(draft, markdown, values, Path(out))
    return TrajectoryReport(markdown, values, draft.tables, files)


def _benchmark(
    draft: _Draft,
    run: Run,
    epsilon: float,
    tie: str,
    resamples: int,
    seed: int,
    registered: Preregistration | None,
    others: Mapping[str, Run],
    figures: bool,
) -> None:
    """All parts about one benchmark. Benchmarks are never pooled: they differ in difficulty and in length of chains, so the
    flag would tell them apart instead of right from wrong."""
    _diagnostics(draft, run, figures)
    made: dict[str, pd.DataFrame] = {}
    if "entropies" in run.ragged_arrays:
        made["sampled"] = tables.sampled_table(run, epsilon, tie)
    if "forced_entropies" in run.ragged_arrays:
        made["forced"] = tables.forced_table(run, epsilon)
    for measure, table in made.items():
        draft.keep(f"chains_{measure}", table.drop(columns="entropies"))
        _measure(draft, run, measure, table, epsilon, resamples, seed, registered, figures)
    if "sampled" in made:
        _sampled_sensitivity(draft, run, epsilon, tie, seed)
    if "forced" in made:
        _forced_sensitivity(draft, run, epsilon, seed)
    if others:
        draft.part("Agreement between runs")
        measure = "sampled" if "sampled" in made else "forced"
        compared = {"this run": made[measure]}
        for name, other in others.items():
            tables.check_kind(other)
            compared[name] = (
                tables.sampled_table(other, epsilon, tie)
                if measure == "sampled"
                else tables.forced_table(other, epsilon)
            )
        draft.table("run_agreement", tables.run_agreement(compared))
    draft.part("Chains")
    draft.say(
        "Hover over a point for the text that ends there and the answers that followed. "
        f"Orange: a step up by more than {epsilon:g} nats."
    )
    for content in _chain_pictures(run, epsilon):
        draft.raw(content)


def _registered(run: Run) -> Preregistration | None:
    kept = run.manifest.get("preregistration")
    if not kept:
        return None
    declared = parse_preregistration(kept["text"], "the run's preregistration")
    if declared.sha256 != run.config.get("preregistration"):
        raise RequestError(
            f"the preregistration kept in {run.path} is not the one it was started with; its manifest was changed"
        )
    return declared


def _protocol(draft: _Draft, run: Run, epsilon: float, tie: str) -> None:
    draft.part("Protocol")
    c, p = run.config, run.progress
    manifest = run.manifest
    rows = [
        ("model", manifest.get("capture", {}).get("model", c.get("model"))),
        ("benchmarks", ", ".join(c.get("benchmarks", []))),
        ("chains committed", f"{p.states} of {p.states_total}"),
        ("chain", f"temperature {c['chain_temperature']}, at most {c['chain_tokens']} tokens"),
    ]
    if "sampled" in c["measures"]:
        rows.append(("segmentation", f"{c['rule']}, cap {c['cap'] if c['cap'] is not None else 'none'}"))
        rows.append(
            (
                "continuations",
                f"m = {c['m']}, temperature {c['temperature']}, at most {c['continuation_tokens']} tokens, graded on {c['graded']}",
            )
        )
        rows.append(("sampling method", _method(manifest.get("sampling_method"))))
    if "forced" in c["measures"]:
        cap = "no cap" if c["forced_cap"] is None else f"cap {c['forced_cap']}"
        rows.append(("forced answers", f"at {c['forced_rule']} boundaries, {cap}, anchor {c['anchors'][0]!r}"))
        rows.append(("forced method", _method(manifest.get("forced_method"))))
    rows += [
        ("monotone", f"H[k+1] <= H[k] + {epsilon:g} nats for every k"),
        ("excluded", "chains with fewer than two points; nothing else, and nothing is imputed"),
        (
            "outcome",
            f"the answer at the last prefix (ties: {tie}) and the chain's own answer; results stand under both",
        ),
        ("seed", c["seed"]),
        ("preregistration", c.get("preregistration") or "none"),
    ]
    failed = run.failed_cells
    rows += [("failed", f"{benchmark}: {reason}") for (benchmark, _), reason in failed.items()]
    draft.table("protocol", pd.DataFrame(rows, columns=["setting", "value"]).astype(str))
    draft.value("protocol", {name: str(value) for name, value in rows})


def _method(entry: Mapping[str, Any] | None) -> str:
    names = {
        "tree": "all boundaries of a chain in one pass", "shared": "prefixes and samples share one cache",
        "cache": "cache reuse, one boundary at a time", "copies": "copies of the cache, one row at a time",
        "separate": "every prefix anew",
    }  # fmt: skip
    if not entry:
        return "not recorded"
    return names.get(entry["name"], entry["name"]) + (f" ({entry['reason']})" if entry["reason"] else "")


def _diagnostics(draft: _Draft, run: Run, figures: bool) -> None:
    draft.part("What the protocol did to the chains")
    draft.table("diagnostics", tables.protocol_diagnostics(run))
    s = run.states
    written = s[s["truncated"].notna()]
    if len(written):
        draft.table("truncation", tables.truncation_table(run, BUDGETS))
        curve = tables.completion_curve(written["chain_tokens"].astype(int), ~written["truncated"].astype(bool))
        draft.keep("completion", curve)
        if figures:
            from .trajectory_figures import completion

            draft.figure(
                "completion",
                completion(curve, run.config["chain_tokens"]),
                "Chains that have ended by token count; hollow: the budget.",
            )


def _measure(
    draft: _Draft,
    run: Run,
    measure: str,
    table: pd.DataFrame,
    epsilon: float,
    resamples: int,
    seed: int,
    registered: Preregistration | None,
    figures: bool,
) -> None:
    same = tables.agreement(table)
    for outcome, meaning in tables.OUTCOMES.items():
        draft.part(f"{measure.capitalize()} entropy, outcome: {meaning}")
        if usable(table, outcome).empty:
            draft.say("No chain has two points and a gold answer, so no statistic is defined.")
            continue
        if outcome == "correct_last":
            draft.say(
                f"The two outcomes give the same answer for {_percent(same['same_answer'])} of the chains that have one under either, and the same verdict for {_percent(same['same_verdict'])} of all."
            )
            draft.value(f"{measure}_outcome_agreement", same)
        found = trajectory_statistics(table, outcome, resamples=resamples, seed=seed)
        name = f"{measure}_{outcome}"
        draft.value(name, _numbers(found))
        _say_gap(draft, found)
        draft.table(f"{name}_buckets", found.buckets)
        draft.table(f"{name}_correlations", found.correlations)
        draft.table(f"{name}_logistic", found.logistic)
        draft.table(f"{name}_auroc", found.auroc)
        draft.table(f"{name}_selective", found.selective)
        draft.table(f"{name}_triage", pd.DataFrame([_triage_row(t) for t in found.triage]))
        kept = table[~table["excluded"].astype(bool) & table[outcome].notna()]
        h, y = kept["entropies"].tolist(), kept[outcome].astype(bool).tolist()
        m = int(run.config["m"]) if measure == "sampled" else None
        draft.table(f"{name}_epsilon", epsilon_table(h, y, sorted({*EPSILONS, epsilon}), m))
        draft.table(f"{name}_early_exit", early_exit_table(h, y, epsilon))
        pvalues = found.pvalues()
        if registered is None:
            draft.say("Holm's adjustment over a default family (nothing was preregistered):")
            draft.table(f"{name}_family", family(pvalues, [n for n in DEFAULT_FAMILY if n in pvalues]))
        else:
            differing = deviations(registered, {**run.config, "epsilon": epsilon, **_asked_count(run)})
            draft.say(f"Preregistration {registered.sha256[:16]}: {registered.title}")
            if outcome != OUTCOMES[registered.outcome]:
                meant = tables.OUTCOMES[OUTCOMES[registered.outcome]]
                draft.say(
                    f"Exploratory: the registration is about the other outcome, {meant}; these are not its verdicts."
                )
            draft.table(f"{name}_verdicts", verdicts(registered, found.estimates(), pvalues))
            draft.say("Deviations: " + ("; ".join(differing) if differing else "none.") + _early(run))
            draft.value(f"{name}_deviations", differing)
        if figures:
            from .trajectory_figures import all_figures

            pictures = all_figures(table, outcome, found.buckets, found.accuracy.estimate, seed)
            for key, picture in pictures.items():
                draft.figure(f"{name}_{key}", picture, _CAPTIONS[key])


_CAPTIONS = {
    "mean_trajectory": "Mean entropy along the chain for right and wrong answers; bands are standard errors over chains.",
    "violation_buckets": "Accuracy by number of upward steps, with Wilson intervals; dashed: all chains.",
    "risk_coverage": "Share wrong among the accepted, for each score; ties broken at random, averaged over shared draws.",
    "coverage": "Points of accuracy gained over accepting every chain.",
}


def _asked_count(run: Run) -> dict[str, Any]:
    return {
        "n": run.config.get("n") or run.progress.states_total,
        "benchmark": ",".join(run.config.get("benchmarks", [])),
    }


def _early(run: Run) -> str:
    p = run.progress
    return (
        ""
        if p.complete
        else f" The run is not finished ({p.states} of {p.states_total} chains): these are no final verdicts."
    )


def _say_gap(draft: _Draft, found: TrajectoryStatistics) -> None:
    g = found.gap
    draft.say(
        f"{found.n} chains of {found.problems} problems entered, {found.excluded} were left out; accuracy {_interval(found.accuracy, 100)} %. "
        f"Monotone: {g.correct_monotone}/{g.n_monotone} right; others: {g.correct_other}/{g.n_other}. "
        f"Gap {_interval(g.points)} points ({g.points.method or 'no interval'}), odds ratio {_interval(g.odds_ratio)}, "
        f"Fisher two-sided p = {_p(g.p_two_sided)}, one-sided (monotone better) p = {_p(g.p_greater)}, coverage {_percent(g.coverage)}."
        + (
            f" The gap is undefined: {g.points.reason}."
            if g.points.reason and not math.isfinite(g.points.estimate)
            else ""
        )
    )


def _triage_row(t: Triage) -> dict[str, Any]:
    return {
        "coverage": t.coverage, "accepted": t.accepted, "test": t.test, "false_positives": t.false_positives,
        "at_random": t.at_random, "reduction": t.reduction.estimate, "lower": t.reduction.lower, "upper": t.reduction.upper,
        "by_confidence": t.by_confidence, "reduction_to_confidence": t.reduction_to_confidence.estimate,
        "accuracy": t.accuracy, "reason": t.reason,
    }  # fmt: skip


def _sampled_sensitivity(draft: _Draft, run: Run, epsilon: float, tie: str, seed: int) -> None:
    draft.part("Sensitivity of the sampled trajectories to m")
    draft.table("sensitivity_m", tables.answers_sensitivity(run, epsilon=epsilon, tie=tie, seed=seed))


def _forced_sensitivity(draft: _Draft, run: Run, epsilon: float, seed: int) -> None:
    draft.part("Sensitivity of the forced trajectories")
    pairs, mean = tables.anchor_sensitivity(run)
    if len(pairs):
        draft.say(
            f"Wording of the anchor: mean pairwise Spearman correlation of the entropies {mean:.3f} over {len(pairs)} pairs."
        )
        draft.table("sensitivity_anchor", pairs)
        draft.value("anchor_mean_spearman", mean)
    else:
        draft.say("One anchor was used, so its wording's effect was not measured.")
    draft.table("sensitivity_rule", tables.rule_sensitivity(run, epsilon, seed))


def _chain_pictures(run: Run, epsilon: float) -> Iterator[str]:
    from .trajectory_figures import chain_svg

    states = run.states
    for i in range(min(_SHOWN_CHAINS, len(states))):
        state = states.iloc[i]
        text = str(state["chain"])
        head = f"<h3>{html.escape(str(state['id']))}</h3><p>{html.escape(str(state['question'])[:300])}</p>"
        graded = "" if pd.isna(state["correct"]) else (", right" if state["correct"] else ", wrong")
        head += f"<p>own answer: {html.escape(str(state['answer']))}{graded}</p>"
        if "entropies" in run.ragged_arrays:
            kept = json.loads(state["continuations"])
            notes = ["answers: " + ", ".join(str(c["answer"]) for c in prefix) for prefix in kept]
            yield head + chain_svg(
                run.ragged("entropies", i).tolist(), _units(run, i, "boundary_characters", text), notes, epsilon=epsilon
            )
        if "forced_entropies" in run.ragged_arrays:
            choices = json.loads(state["forced_choices"])[0] or [""] * len(run.ragged("forced_boundaries", i))
            mass = run.ragged("forced_mass", i)[0]
            notes = [f"choice: {c}, option mass {m:.3f}" for c, m in zip(choices, mass, strict=True)]
            entropies = run.ragged("forced_entropies", i)[0].tolist()
            yield (
                head
                + "<p>forced</p>"
                + chain_svg(entropies, _units(run, i, "forced_boundary_characters", text), notes, epsilon=epsilon)
            )


def _units(run: Run, i: int, name: str, text: str) -> list[str]:
    """The text between neighbouring boundaries."""
    cuts = [int(c) for c in run.ragged(name, i)]
    return [text[(cuts[k - 1] if k else 0) : cut].strip() for k, cut in enumerate(cuts)]


def _numbers(found: TrajectoryStatistics) -> dict[str, Any]:
    return {
        "n": found.n, "excluded": found.excluded, "problems": found.problems, "accuracy": asdict(found.accuracy),
        "gap": asdict(found.gap), "estimates": found.estimates(), "p": found.pvalues(),
        "triage": [asdict(t) for t in found.triage], "settings": dict(found.settings),
    }  # fmt: skip


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value


def _percent(share: float) -> str:
    return "undefined" if not math.isfinite(share) else f"{100 * share:.1f} %"


def _p(value: float) -> str:
    return "undefined" if not math.isfinite(value) else f"{value:.3g}"


def _interval(i: Any, scale: float = 1.0) -> str:
    if not math.isfinite(i.estimate):
        return "undefined"
    return f"{scale * i.estimate:.2f}" + (
        f" [{scale * i.lower:.2f}, {scale * i.upper:.2f}]" if math.isfinite(i.lower) else ""
    )


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isinf(number):
            return "infinite"
        if number == round(number) and abs(number) < 1e6:
            return f"{number:.0f}"
        return f"{number:.3g}" if abs(number) < 0.001 else f"{number:.4g}"
    return str(value)


def _markdown_table(table: pd.DataFrame) -> str:
    head = "| " + " | ".join(map(str, table.columns)) + " |"
    rule = "|" + "---|" * len(table.columns)
    body = [
        "| " + " | ".join(_cell(v).replace("|", "\\|").replace("\n", " ") for v in row) + " |"
        for row in table.itertuples(index=False)
    ]
    return "\n".join([head, rule, *body])


def _markdown(draft: _Draft) -> str:
    lines = ["# Entropy trajectories"]
    for title, content in draft.parts:
        lines += ["", f"## {title}"]
        for entry in content:
            if isinstance(entry, str):
                lines += ["", entry]
            elif isinstance(entry, _Image):
                lines += ["", f"![{entry.caption}]({entry.name}.png)"]
            elif isinstance(entry, tuple):
                lines += ["", f"**{entry[0]}**", "", _markdown_table(entry[1])]
    pictures = "The chains themselves are drawn in report.html."
    return "\n".join([*lines, "", pictures, ""])


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px;margin:.5rem 0 1rem;display:block;overflow-x:auto}
td,th{border-bottom:1px solid #ddd;padding:.2rem .6rem;text-align:left;white-space:nowrap}
caption{text-align:left;font-weight:600;padding:.2rem 0}figure{margin:1rem 0}img{max-width:38rem;width:100%}
figcaption{color:#555;font-size:13px}svg text{font:11px system-ui,sans-serif;fill:#555}"""


def _page(draft: _Draft) -> str:
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Entropy trajectories</title><style>{_STYLE}</style>"
    ]
    parts.append("<h1>Entropy trajectories</h1>")
    for title, content in draft.parts:
        parts.append(f"<h2>{html.escape(title)}</h2>")
        for entry in content:
            if isinstance(entry, str):
                parts.append(f"<p>{html.escape(entry)}</p>")
            elif isinstance(entry, _Image):
                data = base64.b64encode(draft.figures[entry.name]).decode()
                caption = html.escape(entry.caption)
                parts.append(
                    f"<figure><img alt='{caption}' src='data:image/png;base64,{data}'><figcaption>{caption}</figcaption></figure>"
                )
            elif isinstance(entry, _Raw):
                parts.append(entry.content)
            else:
                parts.append(_html_table(*entry))
    return "\n".join([*parts, "</html>"])


def _html_table(name: str, table: pd.DataFrame) -> str:
    head = "".join(f"<th>{html.escape(str(c))}</th>" for c in table.columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(v))}</td>" for v in row) + "</tr>"
        for row in table.itertuples(index=False)
    )
    return f"<table><caption>{html.escape(name)}</caption><tr>{head}</tr>{body}</table>"


def _write(draft: _Draft, markdown: str, values: Mapping[str, Any], out: Path) -> tuple[Path, ...]:
    contents: dict[str, bytes] = {
        "report.md": markdown.encode(),
        "report.html": _page(draft).encode(),
        "report.json": json.dumps(values, indent=1, ensure_ascii=False).encode(),
    }
    contents |= {f"{name}.csv": table.to_csv(index=False).encode() for name, table in draft.tables.items()}
    contents |= {f"{name}.png": data for name, data in draft.figures.items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            atomic.write(out / name, data)
    except OSError as error:
        raise RequestError(
            f"cannot write the report to {out} ({error.strerror}); give a folder that can be written"
        ) from error
    return tuple(out / name for name in contents)
