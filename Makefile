# Both commands do all their own set-up. `make demo` runs the product on real pages; `make test` checks the code.
# Another Python: make demo PYTHON=python3.12. Another folder for the environment: make demo VENV=/tmp/venv.
VENV ?= .venv
BIN  := $(VENV)/bin
ifndef PYTHON
# The first that is new enough; an old python3 is often the system's own, with a newer one beside it.
PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif

.PHONY: help setup demo up down test soak test-gpu bench-gpu lint clean
help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Quarry needs Python 3.11 or newer and found none: install it, or name it with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is missing or older than 3.11, which Quarry needs: name a newer one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) has no venv module: install it (Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
	@echo "Setting up $(VENV): some minutes the first time." >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@

setup: $(VENV)/.installed  ## the virtual environment, with everything in it

demo: setup  ## pages in, rows out: the whole product on the examples
	$(BIN)/quarry demo

up: setup  ## start the service: PostgreSQL, Redis, engine, workers
	$(BIN)/quarry up

down: setup  ## stop it
	$(BIN)/quarry down

test: setup lint  ## every test, after ruff and mypy
	$(BIN)/python -m pytest -q

test-gpu: setup  ## the properties of the Triton kernels, on an NVIDIA GPU
	$(BIN)/python -m pytest -q tests/gpu

bench-gpu: setup  ## the Triton kernels beside their ceilings and rivals, on an NVIDIA GPU
	$(BIN)/python -m bench.kernels

SOAK ?= 60
soak: setup  ## SOAK minutes (60) of random traffic on the engine; memory and pages must stay flat
	$(BIN)/python -m tests.soak $(SOAK)

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build
