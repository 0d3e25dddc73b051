# Everything goes through .venv, which the first target that needs it creates. A stamp file records
# that an install is done; it is redone only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: venv demo quick test peers lint bench docs clean
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
# would ask for CUDA.
$(VENV)/.stamp-peers: $(VENV)/.stamp-venv
	@echo "Installing the libraries whose models are adapted, 2 to 5 minutes ..."
	$(INSTALL) --editable ".[peers]" setuptools wheel
	PATH="$(abspath $(BIN)):/usr/bin:/bin" $(INSTALL) --no-build-isolation torchsort
	touch $@

demo: venv
	$(BIN)/prudent demo

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

quick: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses auto -m "not slow and not process and not browser"

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses auto
	$(MAKE) peers
	$(MAKE) docs

# The models of other libraries, where no test may be skipped.
peers: $(VENV)/.stamp-peers
	PRUDENT_FORBID_SKIPS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --quiet --numprocesses auto tests/adapters

bench: $(VENV)/.stamp-bench
	$(BIN)/python bench/run.py

docs: $(VENV)/.stamp-docs
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --jobs 2 docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

clean:
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .pytest_cache
