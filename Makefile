# make demo        set up and profile the built-in model: leaves report.html
# make test        set up and run the tests (under 10 minutes on 2 cores)
# make test-full   the slow tests too
# make bench       the benchmarks; results go to benchmarks/results/
# make docs        build the lesson that docs/ holds: page and notebook
# make results     the verdict on the study that docs/results holds, and its pages
# make lint        format check, lint, strict types
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.headwise-setup
# The native kernel is compiled by the installation.
NATIVE := hatch_build.py $(wildcard $(addprefix src/headwise/kernels/native/,*.h *.cpp building.py))

.PHONY: setup demo test test-full bench docs results lint format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@echo "Setting up $(VENV): installs torch and compiles the native kernel, which takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/headwise profile --out report.html --force
	@echo "Open report.html in a browser. Next: $(BIN)/headwise compare --twins, or profile a model of your own."

# A test has one thread, so that each core can have its own.
AT_ONCE := --numprocesses auto --maxprocesses 8 --dist worksteal

test: $(STAMP)
	$(BIN)/python -m pytest $(AT_ONCE)

test-full: $(STAMP)
	$(BIN)/python -m pytest $(AT_ONCE) -m "slow or not slow"

bench: $(STAMP)
	$(BIN)/python -m benchmarks

docs: $(STAMP)
	$(BIN)/headwise lesson --lang en --out docs/lesson.html --force
	$(BIN)/headwise lesson --lang en --out docs/lesson.ipynb --force

results: $(STAMP)
	$(BIN)/python -m scripts.results verdict

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) build dist report.html
