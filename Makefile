# The two commands of a fresh machine: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow fuzz lint clean

demo: $(READY)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/quickstart/run.sh

test: $(READY)
	$(BIN)/python -m pytest -q -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

fuzz: $(READY)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
