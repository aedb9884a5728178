# make install | demo | check | test | test-fast | test-long | test-gpu | docs | findings | mutants | package | format | clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# In a terminal pip shows what it downloads.
PIP    := $(BIN)/python -m pip --disable-pip-version-check $(shell test -t 2 || echo -qq)

# The tested versions; `make test CONSTRAINTS=/dev/null` takes the newest ones instead.
CONSTRAINTS ?= constraints.txt

# The word problem that `make demo` decodes; `make demo PROMPT="..."` takes another.
PROMPT ?= Mia buys 6 boxes of pens with 8 pens in each. She gives 15 pens to Tom. How many pens does Mia have left?
export PROMPT

# Tests start hundreds of processes that import the same modules: Python is to keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
.PHONY: help install dev demo check mypy test test-fast test-long test-gpu coverage docs findings mutants package format clean distclean

help:
	@echo "make install    .venv with the project and its pinned dependencies; then .venv/bin/lopa"
	@echo "make demo       decode a word problem with LoPA on a local Ray with 2 branch actors"
	@echo "make check      format, lint, types, import contracts"
	@echo "make test       make check, and tests"
	@echo "make test-fast  unit tests that take little each, in a minute"
	@echo "make test-long  slow tests, soaks and sweeps; property tests draw new examples"
	@echo "make test-gpu   what needs an NVIDIA GPU, with the Python at hand; recorded in tests/gpu/LAST_RUN.md"
	@echo "make docs       the documentation site, in build/site"
	@echo "make findings   all experiments again, and docs/findings.md; goes on where it was interrupted"
	@echo "make mutants    which faults of code the unit tests find; takes hours, goes on where it was interrupted"
	@echo "make package    wheel and sdist, in dist; tries the wheel in an empty environment"
	@echo "make format     format and fix what can be fixed"
	@echo "make clean      remove caches and build output; distclean: .venv too"

# Stamps in .venv make reruns instant; a change of either file installs anew.

install: $(VENV)/.installed
dev: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name one: make PYTHON=python3.12 ...")'
	@echo "== creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing lopa-ray and what it needs: about 1.6 GB, 1 to 3 minutes, once"
	@$(PIP) install -c $(CONSTRAINTS) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "== installing the tools of make test"
	@$(PIP) install -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

demo: install
	@$(BIN)/lopa generate --config demo --workers 2 --watch "$$PROMPT"
	@echo "Next, a server with a playground at http://127.0.0.1:8000:"
	@echo "  $(BIN)/lopa serve"

# The cheapest check first.
check: dev
	@echo "== ruff format" && $(BIN)/ruff format --check --quiet .
	@echo "== ruff check" && $(BIN)/ruff check --quiet .
	@echo "== mypy" && $(MAKE) --no-print-directory mypy
	@echo "== import contracts" && $(BIN)/lint-imports --no-logo

# Packages and examples strictly, tests by a looser profile (pyproject.toml).
mypy: dev
	@$(BIN)/mypy

# Ray lowers the priority of its workers, and tests that compute meanwhile would leave them a thirtieth of their time.
# At the lowest priority all have the same.
PYTEST := nice -n 19 $(BIN)/python -m pytest

# pytest's closing line comes last.
test: check
	@echo "== pytest" && $(PYTEST) -q -n 3 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

FAST := -n 2 --dist loadscope --no-loadscope-reorder -m 'not medium and not slow and not nightly' tests/unit

test-fast: dev
	@$(PYTEST) -q $(FAST) $(PYTEST_ARGS)

# No threshold: the report says which lines and branches no unit test runs.
coverage: dev
	@$(PYTEST) -q $(FAST) --cov --cov-report=term --cov-report=xml:build/coverage.xml $(PYTEST_ARGS)

test-long: dev
	@$(PYTEST) -m 'slow or nightly' --timeout 7200 -v $(PYTEST_ARGS)
	@$(PYTEST) -m 'hypothesis and not slow' --hypothesis-profile=new --timeout 7200 -q tests/unit $(PYTEST_ARGS)

$(VENV)/.docs: $(VENV)/.installed
	@echo "== installing the tools of make docs"
	@$(PIP) install -c $(CONSTRAINTS) -e '.[docs]'
	@touch $@

# Warnings are errors (`strict` of mkdocs.yml). Pages' changes are seen with: .venv/bin/mkdocs serve
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

package: dev
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >/dev/null
	@.ci/try-wheel dist/*.whl $(PYTHON)

# After a change of the shipped model or of a decoder. build/experiments keeps what was measured.
findings: dev
	@for name in $$($(BIN)/python -c "from lopa_lab.experiments.table import EXPERIMENTS; print(*EXPERIMENTS)"); do \
	  $(BIN)/lopa experiment $$name --output build/experiments || exit; done
	@cp build/experiments/*.json benchmarks/experiments/
	@$(BIN)/lopa experiment report

# Remove build/mutants.jsonl to begin anew. Faults are in a copy of the last commit.
mutants: dev
	@PYTHONPATH=tests $(BIN)/python -m mutation run build/mutants.jsonl
	@PYTHONPATH=tests $(BIN)/python -m mutation show build/mutants.jsonl --against tests/mutation/mutants.jsonl

# Installs nothing: a machine with a GPU has a torch that fits it, and may have no internet.
test-gpu:
	@PYTHONPATH=.:tests $(PYTHON) tests/record/gpu_run.py $(PYTEST_ARGS)

format: dev
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './$(VENV)*/*' -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV) $(VENV)-clients $(VENV)-decision-clients
