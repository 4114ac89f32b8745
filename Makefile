PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.PHONY: setup demo test fuzz clean

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

# Damaged inputs against every command for so many seconds: make fuzz SECONDS=600 SEED=1
SECONDS ?= 60
SEED ?= 0
fuzz: setup
	$(BIN)/python benchmarks/fuzz --seconds $(SECONDS) --seed $(SEED)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
