PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: setup demo test docs dist clean

setup: $(STAMP)

# The stamp makes a second call start at once; a change of requirements installs again.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV) (a few minutes the first time)'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/scalegmn demo

# One thread per worker: the test processes already fill the cores.
test: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS)

# The tools of the site are installed when it is built, not before.
DOCS := $(VENV)/.docs-installed
$(DOCS): $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo 'wrote site/index.html'

# Wheel and sdist, their metadata, and the demo from the wheel in an environment that has nothing else.
CLEAN := build/clean
dist: $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[release]'
	rm -rf dist $(CLEAN)
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python docs/tools/contents.py dist/*.whl
	$(PYTHON) -m venv $(CLEAN)
	$(CLEAN)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt dist/*.whl
	cd $(CLEAN) && bin/scalegmn demo --quick

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
