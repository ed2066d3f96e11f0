# One verb for each thing people and CI do. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo demo-notebook front-end test test-browser check bench build clean
help:
	@echo "make setup | demo | demo-notebook | test | test-browser | check | bench | front-end | build | clean"

setup: $(STAMP)

# PyTorch goes first, by its pinned version, so that nothing after it can change the build.
# The built front end of JupyterLab's extension is copied into the environment: a new one, a new copy.
$(STAMP): pyproject.toml constraints.txt jupyter_ext/pyproject.toml $(wildcard jupyter_ext/selfsched_jupyter/labextension/package.json)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "selfsched needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing PyTorch and the rest into $(VENV): some minutes the first time"
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,jupyter,jupyterhub,dev]' -e ./jupyter_ext
	@touch $@

demo: setup
	$(BIN)/selfsched demo

# Opens JupyterLab in your browser with a training notebook; its broker starts with the first cell that trains.
demo-notebook: setup
	$(BIN)/jupyter lab examples/digits.ipynb

# The built front end is committed, so only who changes it needs Node.
front-end: setup
	cd jupyter_ext && export PATH="$(CURDIR)/$(BIN):$$PATH" && jlpm install --immutable && jlpm build
	rm -f jupyter_ext/selfsched_jupyter/labextension/schemas/*/package.json.orig

# In a real JupyterLab, by the system's Chromium; a part of `make test` where there is one.
test-browser: setup
	$(BIN)/python -m pytest tests/browser

# One at a time: the demo's jobs and others are real, and need both cores of a small machine.
test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -m 'not slow'

bench: setup
	$(BIN)/python -m bench

build: setup
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build
	$(BIN)/python -m build --outdir dist jupyter_ext

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
