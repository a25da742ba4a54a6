# The two commands of a fresh machine: `make demo` and `make test`. Both make .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready

# Tests, with a process for each core. One that hangs fails, with the stack of each thread.
PYTEST := $(BIN)/python -m pytest -q -n auto --durations 10 \
    -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
TESTS ?= tests

.PHONY: demo test test-full test-avx2 test-slow fuzz lint docs docs-serve dist clean

demo: $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" bash examples/quickstart/run.sh

test: $(READY)
	$(PYTEST) -m "not full and not slow" $(TESTS)

# The tests that `make test` leaves out.
test-full: $(READY)
	$(PYTEST) -m "full and not slow" $(TESTS)

# As on a processor that has AVX2 alone.
test-avx2: $(READY)
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=default $(PYTEST) -m "not full and not slow" $(TESTS)

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow $(TESTS)

fuzz: $(READY)
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m fuzz $(ARGS)

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

# An sdist and a wheel in dist/, checked, and tried by commands in an environment of their own.
dist:
	rm -rf build dist
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet build twine
	build/tools/bin/python -m build --outdir dist
	build/tools/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	bash tests/installed.sh build/clean/bin/nmt

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing nmt and PyTorch, 1 GB or more, into $(VENV)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(READY): $(INSTALLED)
	@echo "installing what the tests need, into $(VENV)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
