PYTHON ?= python3
CONFIG ?= configs/halfcheetah.yaml
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two workers fill two cores; every test trains with one thread.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help train test slow check format lint types layers benchmark clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.venv/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.installed: .venv/.made pyproject.toml constraints.txt
	@echo "installing (a few minutes the first time)"
	$(PIP) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	@echo "installing the development extras"
	$(PIP) -e ".[dev]"
	touch $@

train: .venv/.installed ## Install, then train HalfCheetah-v5 (CONFIG=..., ARGS="--seed 1")
	$(BIN)/ppo train $(CONFIG) $(ARGS)

test: .venv/.installed-dev ## Install with the development extras, then run the tests
	$(PYTEST) -m "not slow"

slow: .venv/.installed-dev ## Run the tests that train to a stated return
	$(PYTEST) -m slow

check: format lint types layers test ## Everything that must hold before a commit

format: .venv/.installed-dev
	$(BIN)/ruff format --check ppo scripts tests

lint: .venv/.installed-dev
	$(BIN)/ruff check ppo scripts tests

types: .venv/.installed-dev
	$(BIN)/mypy

layers: .venv/.installed-dev
	$(BIN)/lint-imports --no-logo

benchmark: .venv/.installed-dev ## Speed beside Stable-Baselines3, in one run
	$(BIN)/python scripts/benchmark_speed.py

clean: ## Delete the virtual environment and caches; runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info build
