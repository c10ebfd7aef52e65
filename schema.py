"""Names, types and meaning of every column, array and manifest entry of a run.

A leaf that any folder may import. Guarantees that who writes a run and who reads it mean one thing by one name: writers declare their
columns and arrays from here, the table in docs/store.md is made from here, and a test holds what real runs write against it. A name that is
added needs its entry first. `python -m precollapse.schema docs/store.md` writes the table anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from . import atomic
from .errors import RequestError

ID, BENCHMARK, REGIME, ITEM_ID, SHARD = "id", "benchmark", "regime", "item_id", "shard"
PLAN_KEYS = (ID, BENCHMARK, REGIME, ITEM_ID)
"""What the plan says of each state, in the order in which tables show it."""


def state_id(benchmark: str, item_id: str, regime: str) -> str:
    """Name of a state in a run: the three parts with slashes between them.

    A slash within a part is written `%2F` (and `%2F` and `%25` within one `%252F` and `%2525`), so that no two states have one name.

    Examples
    --------
    >>> state_id("gsm8k", "15", "cot"), state_id("a", "b/1", "cot"), state_id("a/b", "1", "cot")
    ('gsm8k/15/cot', 'a/b%2F1/cot', 'a%2Fb/1/cot')
    """
    parts = (benchmark, item_id, regime)
    return "/".join(re.sub("%(?=2F|25)", "%25", part).replace("/", "%2F") for part in parts)


def item_key(state: Mapping[str, str]) -> tuple[str, str, str]:
    """Which item under which regime a state of a plan is, whatever its run calls it."""
    return state[BENCHMARK], state[REGIME], state[ITEM_ID]


def joined_id(name: str) -> str:
    """What runs of format 1 call a state that is called `name` now: its parts joined as they are, which two states may share."""
    return re.sub("%(2F|25)", lambda found: "/" if found[1] == "2F" else "%", name)


RESID_POST = "resid_post"
RESID_POST_AFTER = "resid_post_after_"
"""Beginning of the names of arrays of states after the boundary; a number of output tokens or `anchor` follows."""
FINAL_NORM, Z = "final_norm", "z"
SITES = ("resid_pre", "resid_mid", RESID_POST, "attn_out", "mlp_out", Z, FINAL_NORM)
TOKEN_IDS, OUTPUT_IDS, ATTENTION_ROWS = "token_ids", "output_ids", "attention_rows"
ATTENTION_SUMMARIES = ("entropy_bits", "first_token", "instruction", "question", "choices", "cue", "rest")
ATTENTION_OPTIONS = "attention_options"
TOP_IDS, TOP_LOGITS, OPTION_LOGPROBS = "top_ids", "top_logits", "option_logprobs"
TOP_TOKENS = "top_tokens"
THINKING, THINKING_TOKENS, THINKING_ENDED = "thinking", "thinking_tokens", "thinking_ended"
LEAST_OPTION_MASS = 0.01
"""Probability that the options of an item must hold together for measures over them to mean something."""
MOMENTS = "moments"
HYPOTHESES, HYPOTHESES_SHA256 = "hypotheses", "hypotheses_sha256"
STUDY_KIND, TRAJECTORIES_KIND = "study", "trajectories"

STORED = "stored"
"""Type of arrays that are kept as `--store-dtype` says: the model's own, float16, bfloat16 or float32."""


@dataclass(frozen=True)
class Entry:
    """One thing that a run holds under a name.

    Attributes
    ----------
    name : str
        A name that ends in `*` stands for all that begin so.
    type : str
        float64, int64, bool or string of a column; dtype of an array (STORED: see there); text, number, list or object of a
        manifest entry (a run's own JSON).
    meaning : str
        With its unit, where it has one.
    axes : tuple of str
        Axes of one state's value; a column has none.
    when : str
        Where the value is there; empty for always. Elsewhere it is missing (NaN, NA), or the array is not declared.
    """

    name: str
    type: str
    meaning: str
    axes: tuple[str, ...] = ()
    when: str = ""

    def names(self, name: str) -> bool:
        """Whether this entry is of that name."""
        return name.startswith(self.name[:-1]) if self.name.endswith("*") else name == self.name


@dataclass(frozen=True)
class RunSchema:
    """All that one kind of run holds beside what every run has (see EVERY_RUN).

    Attributes
    ----------
    kind : str
        What the manifest calls it.
    columns, arrays, ragged, manifest : tuple of Entry
        Columns of the table of states; arrays of one shape for all states; arrays whose length differs between states; entries
        of the manifest.
    blobs : tuple of Entry
        Per shard or cell.
    """

    kind: str
    columns: tuple[Entry, ...] = ()
    arrays: tuple[Entry, ...] = ()
    ragged: tuple[Entry, ...] = ()
    manifest: tuple[Entry, ...] = ()
    blobs: tuple[Entry, ...] = ()

    @cached_property
    def column_types(self) -> dict[str, str]:
        """Type of each column, as `store.open_writer` takes them."""
        return {entry.name: entry.type for entry in self.columns}

    def ragged_types(self, names: Sequence[str]) -> dict[str, str]:
        """Types of these ragged arrays, as `store.open_writer` takes them."""
        return {name: self.entry("ragged", name).type for name in names}

    def entry(self, section: str, name: str) -> Entry:
        """What a name stands for.

        Parameters
        ----------
        section : "columns", "arrays", "ragged", "manifest" or "blobs"
        name : str

        Raises
        ------
        RequestError
            The schema does not have it.
        """
        for entry in getattr(self, section):
            if entry.names(name):
                return entry  # type: ignore[no-any-return]
        raise RequestError(f"A run of kind {self.kind!r} has no {name!r} among its {section}: add it to schema.py.")


EVERY_RUN = RunSchema(
    "every run",
    columns=(
        Entry(ID, "string", "the state's name, unique in the run"),
        Entry(BENCHMARK, "string", "benchmark of the item"),
        Entry(REGIME, "string", "how the item was prompted"),
        Entry(ITEM_ID, "string", "the item's name; one item has a state for each regime"),
        Entry(SHARD, "int64", "number of the shard that holds the state"),
    ),
    manifest=(
        Entry("format", "number", "version of the format on disk"),
        Entry("config", "object", "the settings that decide the numbers (`plan.json`)"),
        Entry("config_hash", "text", "SHA-256 of the settings that differ from their defaults"),
        Entry("duplicates", "list", "ids that were given more than once; the first of each was kept"),
        Entry("wall_seconds", "object", "seconds of work by `benchmark/regime`, summed over the shards that were timed"),
        Entry("writers", "object", "by writer: its identity (host, process, boot), when it opened the run, hash of the settings, versions, platform and source commit"),
        Entry("added_columns", "object", "type of each column that was added after the start", when="columns were added"),
    ),
)  # fmt: skip
"""What the store itself gives to every run, whatever wrote it."""

_QUESTION = (
    Entry("question", "string", "the item's question"),
    Entry("prompt", "string", "the prompt's text after templating, as it was tokenised"),
    Entry("gold", "string", "the gold answer", when="the item has one"),
    Entry("choices", "string", "the options, JSON object from label to text", when="multiple choice"),
    Entry("format", "string", "`free` or `choice`"),
)
_WRITTEN, _OPTIONS = "an output was generated", "multiple choice"
_THOUGHT = "the model thought first"
_ANSWERING = "--boundaries thinking,answer, the thinking ended"

STUDY = RunSchema(
    STUDY_KIND,
    columns=(
        *_QUESTION,
        Entry("text", "string", "the generated output, without its thinking; empty where thinking never ended", when=_WRITTEN),
        Entry(THINKING, "string", "what the model thought before it answered, without tags that are control tokens", when=_THOUGHT),
        Entry(THINKING_TOKENS, "int64", "tokens of the thinking, its tags included", when=_THOUGHT),
        Entry(THINKING_ENDED, "bool", "whether the thinking ended; where not, there is no answer", when=_THOUGHT),
        Entry("answer", "string", "the answer read from the output", when="one could be read"),
        Entry("correct", "bool", "whether the answer is the gold one; no answer counts as wrong", when=_WRITTEN),
        Entry("compliant", "bool", "whether the output gives its answer in the form that was asked for", when=_WRITTEN),
        Entry("output_tokens", "int64", "tokens of the output", when=_WRITTEN),
        Entry("max_new_tokens", "int64", "cap on output tokens of the regime", when=_WRITTEN),
        Entry("truncated", "bool", "whether the output was cut off at the cap", when=_WRITTEN),
        Entry("finish_reason", "string", "why the output ended: `stop` (an end token), `stop_text` (before a stop text) or `length` (the cap)", when=_WRITTEN),
        Entry("stop_text", "string", "the stop text before which the output ended", when="finish_reason is `stop_text`"),
        Entry("prompt_tokens", "int64", "tokens of the prompt"),
        Entry("boundary", "int64", "index of the prompt's last token, where the state was taken"),
        Entry("bos_count", "int64", "beginning-of-sequence tokens at the start of the prompt"),
        Entry("entropy_bits", "float64", "entropy of the next-token distribution over the full vocabulary (bits)"),
        Entry("logsumexp", "float64", "log normaliser of the logits (nats)"),
        Entry("option_entropy_bits", "float64", "entropy of the distribution renormalised over the options (bits)", when=_OPTIONS),
        Entry("option_margin", "float64", "log-probability of the best option minus that of the second best (nats)", when=_OPTIONS),
        Entry("option_mass", "float64", "probability that the next token is one of the options", when=_OPTIONS),
        Entry("option_choice", "string", "the most probable option; missing where the options hold less than 1% of the probability", when=_OPTIONS),
        *(
            Entry(f"answer_{name}", kind, f"as {name}, where the thinking has ended and the answer not begun", when=_ANSWERING)
            for name, kind in (("entropy_bits", "float64"), ("option_entropy_bits", "float64"), ("option_margin", "float64"), ("option_mass", "float64"), ("option_choice", "string"))
        ),
        Entry(TOP_TOKENS, "string", "texts of the most probable tokens (`top_ids`), a JSON list", when="top_k above 0"),
        Entry("template", "string", "`chat` or `raw`: how the prompt was put into tokens"),
        Entry("template_hash", "string", "hash of the tokenizer's chat template"),
        Entry("regime_hash", "string", "hash of the regime's template"),
    ),
    arrays=(
        Entry("resid_pre", STORED, "residual stream before the block", ("layer", "d_model"), "in --sites"),
        Entry("resid_mid", STORED, "residual stream between attention and MLP", ("layer", "d_model"), "in --sites"),
        Entry(RESID_POST, STORED, "residual stream after the block, never after the final norm", ("layer", "d_model"), "in --sites"),
        Entry("attn_out", STORED, "what attention adds to the residual stream", ("layer", "d_model"), "in --sites"),
        Entry("mlp_out", STORED, "what the MLP adds to the residual stream", ("layer", "d_model"), "in --sites"),
        Entry(Z, STORED, "output of each head before the output projection", ("layer", "head", "d_head"), "in --sites"),
        Entry(FINAL_NORM, STORED, "residual stream after the final norm", ("d_model",), "in --sites"),
        Entry(f"{RESID_POST_AFTER}*", STORED, "resid_post after that many output tokens, at the anchor, or (`thinking`) where the thinking has ended; NaN where an output does not reach it", ("layer", "d_model"), "--after, --boundaries"),
        Entry(TOP_IDS, "int64", "ids of the most probable tokens, most probable first", ("rank",), "top_k above 0"),
        Entry(TOP_LOGITS, "float32", "their logits", ("rank",), "top_k above 0"),
        Entry(OPTION_LOGPROBS, "float64", "full-vocabulary log-probability (nats) of each option; NaN past an item's own options", ("option",), _OPTIONS),
        Entry("attention_entropy_bits", "float32", "entropy of each head's attention at the boundary (bits)", ("layer", "head"), "--attention summary"),
        Entry("attention_first_token", "float32", "attention on the first token", ("layer", "head"), "--attention summary"),
        *(
            Entry(f"attention_{span}", "float32", f"attention on {what}; NaN where the prompt has none", ("layer", "head"), "--attention summary")
            for span, what in (("instruction", "the instruction"), ("question", "the question"), ("choices", "the options"), ("cue", "the answer cue"))
        ),
        Entry("attention_rest", "float32", "attention on what lies in no span", ("layer", "head"), "--attention summary"),
        Entry(ATTENTION_OPTIONS, "float32", "attention on each option by itself", ("layer", "head", "option"), "--attention summary, multiple choice"),
    ),
    ragged=(
        Entry(TOKEN_IDS, "int32", "token ids of the prompt", ("token",)),
        Entry(OUTPUT_IDS, "int32", "token ids of the output, empty where none was generated", ("token",)),
        Entry(ATTENTION_ROWS, "float32", "attention of the boundary over the prompt; each row sums to 1 (less with sinks)", ("layer", "head", "token"), "--attention rows"),
    ),
    blobs=(Entry(MOMENTS, "bytes", "mean and covariance of resid_post by layer, of a shard or (folded) of a cell's first shards", when="--moments"),),
    manifest=(
        Entry("kind", "text", "`study`"),
        Entry("model", "text", "the model as it was named"),
        Entry("capture", "object", "model, revision, tokenizer, backend, dtype, device, attention implementation, gate and versions"),
        Entry("sampled_ids", "object", "ids of the items by benchmark, in plan order"),
        Entry("seed", "number", "seed of the sample of items"),
        Entry("benchmarks", "list", "benchmarks in plan order"),
        Entry("regimes", "list", "regimes in plan order"),
        Entry("max_new_tokens", "object", "cap on output tokens by regime; null when nothing is generated"),
        Entry("decoding", "text", "`greedy`; null when nothing is generated"),
        Entry("chat", "object", "how chats were put into tokens: form of the content, place of a system text, who begins the text (BOS), arguments of the template, the date it was told", when="the tokenizer has a chat template"),
        Entry("stop", "object", "texts before which an output ends, by regime"),
        Entry(HYPOTHESES_SHA256, "text", "hash of the declared hypotheses", when="some were declared"),
        Entry(HYPOTHESES, "text", "the file that declares them", when="some were declared"),
        Entry(MOMENTS, "object", "by finished `benchmark/regime`: count, layers, trace and participation ratios by layer", when="--moments"),
    ),
)  # fmt: skip
"""A run that `precollapse run` makes."""

_SAMPLED, _FORCED, _RESIDUAL = "sampled entropies", "forced answers", "forced answers with --residual"

TRAJECTORIES = RunSchema(
    TRAJECTORIES_KIND,
    columns=(
        *_QUESTION,
        Entry("prompt_tokens", "int64", "tokens of the prompt"),
        Entry("template", "string", "`chat` or `raw`: how the prompt was put into tokens"),
        Entry("template_hash", "string", "hash of the tokenizer's chat template"),
        Entry("chain", "string", "text of the chain"),
        Entry("chain_source", "string", "`generated` or `given`"),
        Entry("chain_tokens", "int64", "tokens of the chain"),
        Entry("finish_reason", "string", "why the chain ended", when="the model wrote it"),
        Entry("truncated", "bool", "whether the chain was cut off at its cap", when="the model wrote it"),
        Entry("answer", "string", "the answer read from the chain", when="one could be read"),
        Entry("correct", "bool", "whether it is the gold answer", when="the item has a gold answer"),
        Entry("compliant", "bool", "whether the chain gives its answer in the form that was asked for"),
        Entry("rule", "string", "segmentation rule that was asked for"),
        Entry("rule_applied", "string", "segmentation rule that was used, where the one asked for finds nothing"),
        Entry("units", "int64", "units of the chain"),
        Entry("units_merged", "int64", "units that the cap merged into the last one"),
        Entry("capped", "bool", "whether the cap merged units"),
        Entry("inside_token", "int64", "boundaries that were moved to the end of the token they fell into"),
        Entry("collapsed", "int64", "boundaries dropped because they shared a token"),
        Entry("units_by_rule", "string", "units that every rule would have given, JSON object"),
        Entry("continuations", "string", "by boundary: text, tokens, finish, answer and correctness of each continuation, JSON", when=_SAMPLED),
        Entry("continuation_tokens", "int64", "tokens of all continuations", when=_SAMPLED),
        Entry("missing_points", "int64", "boundaries where no continuation gave an answer", when=_SAMPLED),
        Entry("forced_answer", "string", "the most probable option at the last boundary", when=_FORCED),
        Entry("forced_correct", "bool", "whether it is the gold answer", when=f"{_FORCED}, the item has a gold answer"),
        Entry("forced_labels", "string", "the options that were compared, JSON list", when=_FORCED),
        Entry("forced_choices", "string", "the most probable option by anchor and boundary, JSON", when=_FORCED),
        Entry("forced_candidates", "string", "answers that were scored beside the options, JSON list", when=_FORCED),
        Entry("forced_anchors", "string", "the anchors, JSON list; the first is the one reported", when=_FORCED),
        Entry("forced_by_rule", "string", "boundaries (tokens) by segmentation rule, JSON object", when=_FORCED),
        Entry("forced_inside_token", "int64", "as inside_token, under the rule of the forced answers", when=_FORCED),
        Entry("forced_collapsed", "int64", "as collapsed, under the rule of the forced answers", when=_FORCED),
        Entry("forced_tokens_run", "int64", "tokens that the model ran for the pass of which this chain was part", when=_FORCED),
    ),
    ragged=(
        Entry("prompt_ids", "int32", "token ids of the prompt", ("token",)),
        Entry("chain_ids", "int32", "token ids of the chain", ("token",)),
        Entry("boundaries", "int32", "chain tokens in each prefix; 0 is the empty one", ("boundary",), _SAMPLED),
        Entry("boundary_characters", "int32", "characters of the chain that each prefix spells", ("boundary",), _SAMPLED),
        Entry("entropies", "float64", "entropy of the answers that could be read (nats); NaN where none could", ("boundary",), _SAMPLED),
        Entry("parsed", "int32", "continuations whose answer could be read", ("boundary",), _SAMPLED),
        Entry("forced_boundaries", "int32", "as boundaries, of all rules that are compared", ("boundary",), _FORCED),
        Entry("forced_boundary_characters", "int32", "as boundary_characters, of these", ("boundary",), _FORCED),
        Entry("forced_logprobs", "float64", "full-vocabulary log-probability (nats) of each option after the anchor", ("anchor", "boundary", "option"), _FORCED),
        Entry("forced_entropies", "float64", "entropy over the options (nats)", ("anchor", "boundary"), _FORCED),
        Entry("forced_mass", "float64", "probability of all options together", ("anchor", "boundary"), _FORCED),
        Entry("forced_margin", "float64", "log-probability of the best option minus that of the second best (nats)", ("anchor", "boundary"), _FORCED),
        Entry("forced_vocabulary_bits", "float64", "entropy of the whole next-token distribution after the anchor (bits)", ("anchor", "boundary"), _FORCED),
        Entry("forced_candidate_logprobs", "float64", "log-probability (nats) of each candidate as a sequence after the anchor", ("anchor", "boundary", "candidate"), _FORCED),
        Entry("resid_boundary", "float32", "residual stream at each prefix's last token", ("boundary", "layer", "d_model"), _RESIDUAL),
        Entry("resid_answer", "float32", "residual stream at the anchor's last token", ("boundary", "layer", "d_model"), _RESIDUAL),
    ),
    manifest=(
        Entry("kind", "text", "`trajectories`"),
        Entry("capture", "object", "model, revision, tokenizer, backend, dtype, device, attention implementation, gate and versions"),
        Entry("measures", "list", "`sampled`, `forced` or both"),
        Entry("chat", "object", "as for a study", when="the tokenizer has a chat template"),
        Entry("system_prompt", "text", "whether the system prompt has a turn of its own or opens the user's"),
        Entry("forced_method", "object", "name of the pass that gives forced answers, and why it was chosen"),
        Entry("sampling_method", "object", "name of the pass that samples continuations, and why it was chosen"),
        Entry("analysis", "object", "epsilon (nats) and the rule for ties, both of the report"),
        Entry(HYPOTHESES_SHA256, "text", "hash of the declared hypotheses", when="some were declared"),
        Entry(HYPOTHESES, "text", "the file that declares them", when="some were declared"),
        Entry("preregistration", "object", "hash and text of the declared hypotheses; null without", when="of an earlier version"),
    ),
)  # fmt: skip
"""A run that `precollapse trajectories` makes."""

IMPORT = RunSchema(
    "import",
    columns=(Entry("*", "any", "every field of states.jsonl that says neither which state it is nor where it lies"),),
    arrays=(Entry("*", "as found", "each tensor, or one array of the tensors of one per layer", ("...",)),),
    ragged=(Entry("*", "as found", "each tensor with offsets and shapes beside it", ("...",)),),
    manifest=(Entry("imported_from", "text", "name of the folder"),),
)
"""A run that `precollapse import` makes: its names are those of the files."""

SCHEMAS = {schema.kind: schema for schema in (STUDY, TRAJECTORIES, IMPORT)}
"""What each kind of run holds beside EVERY_RUN."""

_TITLES = {
    "columns": "Columns of the table of states",
    "arrays": "Arrays",
    "ragged": "Ragged arrays",
    "blobs": "Blobs",
    "manifest": "Manifest entries",
}
_BEGIN, _END = "<!-- made by precollapse.schema: begin -->", "<!-- made by precollapse.schema: end -->"


def markdown() -> str:
    """The tables of docs/store.md: a section for each kind of run, a table for each kind of thing in it."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for schema in (EVERY_RUN, *SCHEMAS.values()):
        yield f"### In {'every run' if schema is EVERY_RUN else f'a run of kind {schema.kind!r}'}"
        for section, title in _TITLES.items():
            entries: tuple[Entry, ...] = getattr(schema, section)
            if entries:
                shaped = any(entry.axes for entry in entries)
                yield f"\n{title}\n\n| name | type |{' shape of one state |' if shaped else ''} what | where |"
                yield f"|---|---|{'---|' if shaped else ''}---|---|"
                for entry in entries:
                    shape = f" [{', '.join(entry.axes)}] |" if shaped else ""
                    yield f"| `{entry.name}` | {entry.type} |{shape} {entry.meaning} | {entry.when or 'always'} |"
        yield ""


def rewritten(page: str) -> str:
    """A page with the tables put between their two marks.

    Raises
    ------
    RequestError
        The page has no such marks.
    """
    if page.count(_BEGIN) != 1 or page.count(_END) != 1:
        raise RequestError(f"The page has no place for the tables: mark it with {_BEGIN} and {_END}.")
    return re.sub(f"{_BEGIN}.*{_END}", lambda _: f"{_BEGIN}\n{markdown()}{_END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        atomic.write(name, rewritten(Path(name).read_text(encoding="utf-8")))
