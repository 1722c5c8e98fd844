# `make demo` and `make test` need Python 3.11+ and make, nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
ROWS ?=
TESTS ?=

.PHONY: demo test check lint types bench clean

demo: $(VENV)/demo.stamp
	$(BIN)/coherer demo $(if $(ROWS),--rows $(ROWS))

test: $(VENV)/check.stamp
	$(BIN)/python -m pytest $(TESTS)

check: lint types test

lint: $(VENV)/check.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/check.stamp
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/check.stamp
	$(BIN)/python benchmarks/run.py $(BENCH)

$(VENV)/pip.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/demo.stamp: $(VENV)/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --progress-bar on -e ".[demo]"
	touch $@

$(VENV)/check.stamp: $(VENV)/demo.stamp
	$(BIN)/python -m pip install --quiet --progress-bar on --group check
	touch $@

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
