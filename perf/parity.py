"""The parity matrix: every family x backend x padding x batch x attention implementation x dtype, against transformers itself.

Guarantees that docs/models.md holds only what ran: each number is the largest difference between captured rows and
what the model's own forward pass says of the same prompt alone, and whatever did not run is listed with its reason.

`python -m precollapse.perf.parity --write docs/models.md` measures it anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from precollapse.errors import PrecollapseError, RequestError
from precollapse.hooks.backends import BACKENDS, make_backend, wrap
from precollapse.hooks.backends.protocol import Backend, Request, Rows
from precollapse.hooks.differences import largest, relative_difference
from precollapse.hooks.prompts.boundary import assemble
from precollapse.hooks.unembedding import row_statistics
from precollapse.perf import chat_templates
from precollapse.perf.parity_cells import DTYPES, LAYERS, PROMPTS, MatrixCell
from precollapse.perf.parity_page import page
from precollapse.perf.small_models import FAMILIES, VOCABULARY, small_model, small_tokenizer

IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention")
PADDINGS = ("none", "right", "left")
RECURRENT = ("mamba", "mamba2", "falcon_mamba")
"""Model types whose hidden_states begin with the first block's output, where those of all others begin with the embeddings."""


@dataclass(frozen=True)
class _Truth:
    """What transformers says of each prompt alone."""

    posts: list[torch.Tensor]
    finals: list[torch.Tensor]
    entropy: list[float]
    attentions: list[list[torch.Tensor]] | None


def prompts(seed: int = 0) -> list[tuple[int, ...]]:
    """The 16 prompts of the matrix: lengths 1 to 24, without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [1, 24, *torch.randint(2, 24, (PROMPTS - 2,), generator=generator).tolist()]
    return [tuple(torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()) for n in lengths]


def measure(family: str, backends: Sequence[str] = BACKENDS) -> Iterator[MatrixCell]:
    """Measure all cells of one family.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`.
    backends : sequence of str

    Yields
    ------
    MatrixCell
        Every combination, in a fixed order; skipped ones with their reason.
    """
    for implementation in IMPLEMENTATIONS:
        for dtype in DTYPES:
            yield from _measure(family, backends, implementation, dtype)


def _measure(family: str, backends: Sequence[str], implementation: str, dtype: str) -> Iterator[MatrixCell]:
    def skip(backend: str, reason: str) -> Iterator[MatrixCell]:
        for padding in PADDINGS:
            yield MatrixCell(family, backend, implementation, dtype, padding, skipped=reason)

    try:
        model = _model(family, implementation, dtype)
    except RequestError as error:
        for backend in backends:
            yield from skip(backend, str(error).partition("(")[2].rpartition(")")[0] or str(error))
        return
    reason = _model_skip(family, implementation, dtype)
    truth = None if reason else _truth(model, family, implementation, dtype)
    for backend in backends:
        if reason:
            yield from skip(backend, reason)
            continue
        if backend != "hf" and importlib.util.find_spec(backend) is None:
            yield from skip(backend, f"the package {backend} is not installed")
            continue
        try:
            reader = make_backend(wrap(_model(family, implementation, dtype), small_tokenizer(), backend))
        except PrecollapseError as error:
            yield from skip(backend, str(error).split("; use")[0].split(" model: ")[-1])
            continue
        for padding in PADDINGS:
            assert truth is not None
            yield _cell(reader, truth, family, implementation, dtype, padding)


def _model(family: str, implementation: str, dtype: str) -> Any:
    return small_model(family, implementation, DTYPES[dtype], LAYERS)


def _model_skip(family: str, implementation: str, dtype: str) -> str:
    if implementation == "flex_attention" and family == "gpt_oss":
        return "transformers' flex attention has no sinks on a CPU"
    if FAMILIES[family].model_type in RECURRENT and implementation != "eager":
        return "it has no attention, so there is one implementation"
    if implementation == "flex_attention" and dtype == "float64":
        return "flex attention has no float64 on a CPU"
    return ""


def _truth(model: Any, family: str, implementation: str, dtype: str) -> _Truth:
    eager = model if implementation == "eager" else _model(family, "eager", dtype)
    posts: list[torch.Tensor] = []
    finals, entropy, attentions = [], [], []
    first = 0 if FAMILIES[family].model_type in RECURRENT else 1
    for prompt in prompts():
        ids = torch.tensor([prompt])
        with torch.no_grad(), _uncompiled(implementation):
            out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
            weights = getattr(eager(input_ids=ids, output_attentions=True, use_cache=False), "attentions", None)
        posts.append(torch.stack([h[0, -1] for h in out.hidden_states[first:-1]]))
        finals.append(out.hidden_states[-1][0, -1])
        log_p = torch.log_softmax(out.logits[0, -1].double(), -1)
        entropy.append(float(-(log_p.exp() * log_p).sum() / np.log(2)))
        attentions.append([w[0, :, -1] for w in weights or () if w is not None])
    return _Truth(posts, finals, entropy, attentions if attentions[0] else None)


def _cell(reader: Backend, truth: _Truth, family: str, implementation: str, dtype: str, padding: str) -> MatrixCell:
    everyone = prompts()
    groups = [[0], [1], [2]] if padding == "none" else [list(range(len(everyone)))]
    sites = tuple(s for s in reader.sites if s != "final_norm")
    # transformers' eager Falcon adds its ALiBi biases twice, so it is no truth for what sdpa did
    compared = (
        reader.gives_attention and truth.attentions is not None and (family, implementation) != ("falcon-alibi", "sdpa")
    )
    states, entropy, rows = [], [], []
    for group in groups:
        batch = assemble(group, everyone, 0, "right" if padding == "none" else padding)
        with _uncompiled(implementation):
            got = reader.rows(
                batch, Request(sites, tuple(range(LAYERS)), batch.boundary[:, None], attention=reader.gives_attention)
            )
        if not bool(torch.isfinite(got.final_norm).all()):
            computing = "TransformerLens' attention" if reader.name == "transformer_lens" else "transformers' own pass"
            reason = f"{computing} is not finite under left padding in float64: its mask overflows in the float32 softmax (a capture says so and keeps nothing)"
            allowed = (
                padding == "left"
                and dtype == "float64"
                and (implementation == "eager" or reader.name == "transformer_lens")
            )
            return MatrixCell(
                family,
                reader.name,
                implementation,
                dtype,
                padding,
                skipped=reason if allowed else "",
                states=float("nan" if allowed else "inf"),
            )
        statistics = row_statistics(reader.architecture, got.final_norm[:, 0], 1, None)
        for b, i in enumerate(group):
            states.append(_state_error(reader, got, b, truth.posts[i], truth.finals[i]))
            entropy.append(abs(float(statistics.entropy_bits[b]) - truth.entropy[i]))
            if compared and truth.attentions is not None:
                rows.append(_row_error(got, b, int(batch.boundary[b]), truth.attentions[i]))
    return MatrixCell(
        family, reader.name, implementation, dtype, padding, largest(states), largest(entropy), largest(rows)
    )


def _state_error(reader: Backend, got: Rows, b: int, posts: torch.Tensor, final: torch.Tensor) -> float:
    """Largest relative difference of one prompt's sites from the model's hidden states and from each other."""
    site = {name: rows[b, 0] for name, rows in got.sites.items()}
    errors = [
        relative_difference(got.final_norm[b, 0], final),
        relative_difference(site["resid_post"][: len(posts)], posts),
        relative_difference(site["resid_pre"][1:], site["resid_post"][:-1]),
    ]
    if {"attn_out", "mlp_out"} <= set(site):
        errors.append(relative_difference(site["resid_pre"] + site["attn_out"] + site["mlp_out"], site["resid_post"]))
        if "resid_mid" in site:
            errors.append(relative_difference(site["resid_pre"] + site["attn_out"], site["resid_mid"]))
    if "z" in site and _z_is_projected_plainly(reader):
        projection: Any = reader.architecture.module(0, "z")
        with torch.no_grad():
            errors.append(relative_difference(projection(site["z"][0].flatten()[None])[0], site["attn_out"][0]))
    return largest(errors)


def _z_is_projected_plainly(reader: Backend) -> bool:
    """Whether attn_out is the output projection of z as it stands, without a norm or a multiplier after it."""
    taps = reader.architecture.taps
    if "attn_out" not in taps or taps["attn_out"].multiplier or reader.name == "transformer_lens":
        return False
    projection = reader.architecture.module(0, "z")
    return isinstance(projection, nn.Linear) and taps["z"].module.startswith(taps["attn_out"].module)


def _row_error(got: Rows, b: int, boundary: int, truth: list[torch.Tensor]) -> float:
    own = [row[b] for row in got.attention or () if row is not None]
    if len(own) != len(truth):
        return float("inf")
    errors = []
    for row, theirs in zip(own, truth, strict=True):
        start = boundary + 1 - theirs.shape[-1]
        expected = torch.zeros_like(row, dtype=torch.float64)
        expected[:, start : boundary + 1] = theirs.double()
        errors.append(float((row.double() - expected).abs().max()))
    return largest(errors)


def _uncompiled(implementation: str) -> Any:
    """Flex attention compiles itself, a minute per shape on a CPU; its uncompiled form computes the same."""
    return torch.compiler.set_stance("force_eager") if implementation == "flex_attention" else ExitStack()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure families and print the page, or write it; exit status 1 when a cell is off."""
    parser = argparse.ArgumentParser(
        prog="python -m precollapse.perf.parity",
        description="Measure captured states against transformers' own outputs.",
    )
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated families (default: all)")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="comma-separated backends (default: all)")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the Markdown page here instead of printing it"
    )
    given = parser.parse_args(arguments)
    families = given.families.split(",")
    unknown = [f for f in families if f not in FAMILIES] + [b for b in given.backends.split(",") if b not in BACKENDS]
    if unknown:
        parser.error(
            f"{unknown[0]!r} is no family or backend; families: {', '.join(FAMILIES)}; backends: {', '.join(BACKENDS)}"
        )
    cells: list[MatrixCell] = []
    for number, family in enumerate(families, 1):
        cells += measure(family, given.backends.split(","))
        print(f"[{number}/{len(families)}] {family}", file=sys.stderr)
    failed = [cell for cell in cells if cell.failed]
    for cell in failed:
        print(f"off: {cell}", file=sys.stderr)
    text = page(cells)
    if given.write:
        given.write.write_text(f"{text}\n{chat_templates.section()}")
    else:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
