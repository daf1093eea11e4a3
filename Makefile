# Two commands do all of the set-up, on a machine with Python 3.11 or newer, git and make:
#   make learn    install what a reader needs, fetch the model, show the tour, open JupyterLab (LAB=0: stop before it)
#   make test     install what a developer needs, then lint, tests and notebooks
TORCH ?= torch==2.13.0
LAB ?= 1
WORKERS ?= 2

# the first of these that runs and is new enough
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; exit; }; done)

BIN := .venv/bin
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

.DEFAULT_GOAL := help
.PHONY: help learn test lint soak notebooks exercises check-python dev

help:
	@echo "make learn       set up, fetch the model, take the tour, open the lessons (LAB=0: stop before JupyterLab)"
	@echo "make test        set up, then lint, tests and notebooks: what every change must pass"
	@echo "make notebooks   build and execute the lessons that changed"
	@echo "make exercises   write exercises/ and solutions/ from the package's own source"
	@echo "make soak        the long versions of the tests"

check-python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "minillm: no Python 3.11 or newer was found: install one, or say make learn PYTHON=/path/to/python3" >&2; \
		exit 2; fi

learn: check-python
	@$(PYTHON) minillm/install.py --extra course --torch "$(TORCH)"
	@$(BIN)/minillm fetch smollm2
	@$(BIN)/minillm mine
	@$(BIN)/minillm tour
	@if [ "$(LAB)" != 0 ]; then $(BIN)/jupyter lab mine/notebooks; fi

dev: check-python
	@$(PYTHON) minillm/install.py --extra dev --torch "$(TORCH)"
	@$(BIN)/minillm fetch smollm2

test: dev lint
	@echo "minillm: tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not soak" tests
	@if ls notebooks/*.ipynb >/dev/null 2>&1; then echo "minillm: notebooks, one after another" && \
		$(BIN)/python -m pytest -q -p no:cacheprovider --nbval --nbval-current-env --nbval-cell-timeout=180 \
		notebooks; fi

lint: dev
	@echo "minillm: lint"
	@$(BIN)/python -m ruff check .

soak: dev
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m soak tests

notebooks: dev
	@$(BIN)/python -m minillm.course.notebooks

exercises: dev
	@$(BIN)/python -m minillm.course.build
