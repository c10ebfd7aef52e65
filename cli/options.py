"""Options that several commands have, each declared once.

Guarantees that an option means the same under every command that has it; a command that says more about one (where its
default comes from, what it is used for) takes it from here with another text.
"""

from __future__ import annotations

from .command import Option
from .values import ARGUMENTS, DAY, FILES, LAYERS, NAMES, OFF, ON, PLACE, SITES, WHOLE, choice

# --- the command itself -------------------------------------------------------------------------------------------------

JSON = Option("--json", "print the result as JSON", ON, absent=False)
QUIET = Option("--quiet", "no progress bar", ON, absent=False)
CONFIG = Option(
    "--config",
    "options of this command, by their long names without the dashes; those given here come before it, and a switch that it "
    "sets is taken back by --no-NAME",
    metavar="FILE.yaml",
)
RUN = Option("run", value=PLACE, metavar="RUN.zarr")
OUT_RUN = Option("--out", "the run to create, or to go on with (required)", PLACE, "RUN.zarr", required=True)
OUT_FOLDER = Option("--out", value=PLACE, metavar="DIR", absent=None)

# --- the model and how it runs ------------------------------------------------------------------------------------------

MODEL = Option("--model", "Hub id, folder or .gguf file")
BACKEND = Option("--backend", "hf, nnsight or transformer_lens")
DTYPE = Option("--dtype", "auto, float32, bfloat16, float16 or float64", default="{dtype}, float32 on a CPU")
DEVICE = Option("--device", "torch device, such as cuda:0", default="the first GPU, else the CPU")
REVISION = Option("--revision", "Hub revision of the model")
SHARE_PREFIX = Option("--share-prefix", "compute common prefixes of prompts once", choice("auto", "never", "always"))
COMPILE = Option("--compile", "compile the backbone with its taps (backend hf)", ON)
CONTEXT_LENGTH = Option(
    "--context-length",
    "most tokens of a prompt with its output, where the model can take more than its config says",
    WHOLE,
    default="the config's",
)
SHARD_SIZE = Option("--shard-size", "states per shard, the unit of commit and of resuming", WHOLE)

# --- items --------------------------------------------------------------------------------------------------------------

BENCHMARK = Option(
    "--benchmark",
    "comma list of gsm8k, math500, arc_challenge, aqua_rat, builtin, builtin_choice, mmlu, or names of your own",
    NAMES,
    "NAMES",
    setting="benchmarks",
)
ITEMS = Option("--items", "rows of a benchmark from a JSON Lines file; may be repeated", FILES, "NAME=FILE")
N = Option("--n", "items per benchmark, a seeded sample", WHOLE, default="all")
SEED = Option("--seed", "seed of the sample", WHOLE)

# --- how prompts are put together ---------------------------------------------------------------------------------------

TEMPLATE_ARG = Option(
    "--template-arg",
    "what the chat template is told besides, such as enable_thinking=false; a value that is JSON is read as such; may be repeated",
    ARGUMENTS,
    "NAME=VALUE",
    setting="template_args",
)
DATE = Option(
    "--date", "the day that a chat template which asks for it is told", DAY, "YYYY-MM-DD", default="the run's first day"
)
BOS = Option(
    "--bos",
    "who begins the text of a chat; auto: the template where it names a BOS, else the tokenizer",
    choice("auto", "template", "tokenizer"),
)
ALLOW_SAME_PROMPTS = Option("--allow-same-prompts", "go on where different items have one and the same prompt", ON)

# --- what is captured ---------------------------------------------------------------------------------------------------

SITES_KEPT = Option(
    "--sites",
    "comma list of resid_pre, resid_mid, resid_post, attn_out, mlp_out, z, final_norm; or none",
    SITES,
    "NAMES",
)
LAYERS_KEPT = Option(
    "--layers", "all, last, numbers and ranges such as 0,5,10-12, or a fraction such as 0.5", LAYERS, "LAYERS"
)
ATTENTION = Option("--attention", "what to keep of the boundary's attention", choice("none", "summary", "rows"))
NO_GENERATE = Option("--no-generate", "capture only", OFF, setting="generate")

# --- what was declared beforehand ---------------------------------------------------------------------------------------

HYPOTHESES = Option(
    "--hypotheses",
    "hypotheses declared beforehand; the file is recorded in the run before it starts, and report tests them",
    metavar="FILE.yaml",
)
