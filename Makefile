PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# The variable, unlike the option -c, also decides what the package is built with.
INSTALL = PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install -qq --disable-pip-version-check -e
JOBS ?= 2

.PHONY: setup demo test docs dist fuzz sanitize clean

setup: $(VENV)/.installed-dev

# The stamps make a second call start at once; a change of requirements installs again. The demo needs the package
# alone; linters, Ray and the other extras are for the tests.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV) (a few minutes the first time)'
	@$(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo 'installing what the tests need'
	@$(INSTALL) '.[dev]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/scalegmn demo

# C++ is compiled beforehand, so that no test meets the line that says so. One thread per worker: the test processes
# already fill the cores.
test: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(BIN)/python -c 'from scalegmn.native.library import load; [load(name) for name in ("net", "fit", "cnn")]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS)

# Damaged inputs against every command for so many seconds: make fuzz SECONDS=600 SEED=1
SECONDS ?= 60
SEED ?= 0
fuzz: setup
	$(BIN)/python benchmarks/fuzz --seconds $(SECONDS) --seed $(SEED)

# Compiled code under AddressSanitizer and UndefinedBehaviorSanitizer; after a change of a kernel,
# make sanitize SANITIZED=tests/native is quicker. Python itself is not built for them: the runtime is loaded first, and
# what Python does not free at its end is not counted. One thread is enough: tests/native also runs the kernels on 2, 3
# and 7. The servers of Ray, which inherit all this, often start too slowly for Ray itself ("The current node timed out
# during startup"), so its test is left out; its workers run the same kernels as everyone.
SANITIZED ?= tests/native tests/nn tests/zoo
RAY := tests/zoo/inr/test_build.py::test_a_cluster_gives_the_same_bytes_although_a_worker_is_killed
sanitize: setup
	SCALEGMN_SANITIZE=1 OMP_NUM_THREADS=1 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	LD_PRELOAD="$(shell $${CXX:-g++} -print-file-name=libasan.so) $(shell $${CXX:-g++} -print-file-name=libstdc++.so.6)" \
	$(BIN)/python -m pytest -q -p no:cacheprovider --deselect $(RAY) $(SANITIZED)

# The tools of the site are installed when it is built, not before.
DOCS := $(VENV)/.installed-docs
$(DOCS): $(VENV)/.installed
	@$(INSTALL) '.[docs]'
	@touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/python docs/tools/follow.py site
	@echo 'wrote site/index.html'

# Wheel and sdist, their metadata, and the demo from the wheel in an environment that has nothing else.
CLEAN := build/clean
dist: $(VENV)/.installed
	@$(INSTALL) '.[release]'
	rm -rf dist $(CLEAN)
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python docs/tools/contents.py dist/*.whl
	$(PYTHON) -m venv $(CLEAN)
	$(CLEAN)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt dist/*.whl
	cd $(CLEAN) && bin/scalegmn models --pretrained && bin/scalegmn demo --quick

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
