# `make demo` and `make test` need Python 3.11+ and make, nothing else.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
ROWS ?=
TESTS ?=
PYTEST := $(BIN)/python -m pytest
# Nodes sync their files, which takes half the time of tests on a disk: in memory, if 4 GB are free.
MEMORY := $(shell df -k /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 {print "-p /dev/shm"}')
SIMULATE := $(BIN)/python tools/simulate.py
IN_MEMORY := files=$$(mktemp -d $(MEMORY)) && trap 'rm -rf "$$files"' EXIT && TMPDIR=$$files
# A third of the time of tests is waiting for processes: one worker more than processors.
WORKERS := $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
FAST := -n $(WORKERS) --dist loadfile -m "not interop and not spark"

.PHONY: demo test coverage check lint types docs bench soak simulate clean

demo: $(VENV)/demo.stamp
	$(BIN)/coherer demo $(if $(ROWS),--rows $(ROWS))

# All tests, those that start Apache's systems last, when nothing else needs the processor; or TESTS.
test: $(VENV)/check.stamp
ifeq ($(TESTS),)
	$(IN_MEMORY) $(BIN)/python tools/run_tests.py --share 0.33 $(FAST)
	$(IN_MEMORY) $(SIMULATE) --seeds 150
	$(BIN)/python tools/run_tests.py
	$(BIN)/python tools/test_integrations.py
else
	$(PYTEST) $(TESTS)
endif

# Tracing makes the same tests twice as slow, so that only the workflow's newest Python runs this.
coverage: $(VENV)/check.stamp
	$(IN_MEMORY) $(PYTEST) $(FAST) --cov

check: lint types test

lint: $(VENV)/check.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/check.stamp
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/check.stamp
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

bench: $(VENV)/check.stamp
	$(BIN)/python benchmarks/run.py $(BENCH)

# Clients come and go for MINUTES: what grows meanwhile is in build/soak.
soak: $(VENV)/check.stamp
	$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),10)

# Looks for broken promises in SEEDS runs, or shows the run of SEED, or the part of it that ONLY names.
simulate: $(VENV)/check.stamp
	$(SIMULATE) $(if $(FORM),--form $(FORM)) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100)) $(if $(PROTOCOL),--protocol $(PROTOCOL)) $(if $(ONLY),--only "$(ONLY)") $(if $(SHRINK),--shrink $(SHRINK))

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
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build .coverage
