# Everything goes through .venv, which the first target that needs it creates. A stamp file records
# that an install is done; it is redone only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One worker more than cores: tests of processes mostly wait. Neighbours stay with one worker, which
# then makes the fixtures of a file once, until another one has nothing left to do.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) --dist worksteal
CORE := .venv-core/bin
# A whole inference, and something of each part that needs no extra.
CORE_TESTS := tests/test_installed.py tests/test_contracts.py tests/test_files.py tests/coverage/test_alpha.py \
	tests/priors/test_families.py tests/training/test_objectives.py tests/diagnostics/test_verdict.py
# What is imported is compiled then; torch alone has thousands of files that never are. Where an
# environment forbids to keep that, each of the hundreds of processes of the tests compiles anew.
unexport PYTHONDONTWRITEBYTECODE
OPTIONS := --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
INSTALL := $(BIN)/pip install $(OPTIONS)

.PHONY: venv demo quick test suite nightly peers lint bench docs package clean
.DEFAULT_GOAL := test

venv: $(VENV)/.stamp-venv

$(VENV)/.stamp-pip:
	@echo "Creating $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	touch $@

$(VENV)/.stamp-venv: pyproject.toml constraints.txt $(VENV)/.stamp-pip
	@echo "Installing prudent with everything that the tests use, 1 to 3 minutes ..."
	$(INSTALL) --editable ".[report,test,lint]"
	touch $@

$(VENV)/.stamp-docs: $(VENV)/.stamp-venv
	@echo "Installing the documentation tools ..."
	$(INSTALL) --editable ".[docs]"
	touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-venv
	@echo "Installing the peers to compare with ..."
	$(INSTALL) --editable ".[bench]"
	touch $@

# torchsort, which lampe's own losses need, is compiled here; with a CUDA compiler on the path it
# would ask for CUDA. All is installed at once, because that is how long pip takes for one of them.
$(VENV)/.stamp-peers: pyproject.toml constraints.txt $(VENV)/.stamp-pip
	@echo "Installing everything, with the libraries whose models are adapted, 2 to 5 minutes ..."
	$(INSTALL) --editable ".[report,test,lint,docs,peers]" setuptools wheel
	PATH="$(abspath $(BIN)):/usr/bin:/bin" $(INSTALL) --no-build-isolation torchsort
	touch $(VENV)/.stamp-venv $(VENV)/.stamp-docs $(VENV)/.stamp-bench $@

demo: venv
	$(BIN)/prudent demo

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: venv
	$(PYTEST) -m "not slow and not process and not browser and not nightly" --ignore tests/adapters

# What else there is runs beside the tests: it waits for disks and for processes of its own.
test: $(VENV)/.stamp-peers
	$(MAKE) lint
	$(MAKE) --jobs 2 --keep-going suite peers docs package

# The adapters are left to `make peers`, which tests all of them once.
suite: venv
	$(PYTEST) -m "not nightly" --ignore tests/adapters

nightly: venv
	$(PYTEST) -m nightly

# The models of other libraries, where no test may be skipped. In one process, because to import
# these libraries takes longer than the tests.
peers: $(VENV)/.stamp-peers
	PRUDENT_FORBID_SKIPS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet tests/adapters

bench: $(VENV)/.stamp-bench
	$(BIN)/python bench/run.py $(PARTS)

docs: $(VENV)/.stamp-docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs 2 docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

# Wheel and sdist, and the wheel in an environment with the core dependencies and nothing else: what
# the package forgot, or an extra that the core imports, fails here.
.venv-core/.stamp: pyproject.toml constraints.txt
	@echo "Creating .venv-core ..."
	rm -rf .venv-core && $(PYTHON) -m venv .venv-core
	$(CORE)/pip install $(OPTIONS) . hatchling pytest pytest-timeout hypothesis
	touch $@

package: .venv-core/.stamp
	@echo "Building wheel and sdist, and testing the wheel with the core dependencies alone ..."
	rm -rf dist && $(CORE)/python -m hatchling build --directory dist
	$(CORE)/pip install $(OPTIONS) --force-reinstall --no-deps dist/*.whl
	OMP_NUM_THREADS=1 PRUDENT_CORE=1 $(CORE)/python -m pytest --quiet -p no:cacheprovider -m "not slow" $(CORE_TESTS)
	@echo "Package: $$(ls dist)"

clean:
	rm -rf $(VENV) .venv-core dist docs/_build .mypy_cache .ruff_cache .pytest_cache
