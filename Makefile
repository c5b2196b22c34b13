# `make run` and `make test` do all the set-up; the rest is for development.
SHELL := /bin/bash
PYTHON ?= python3
.DEFAULT_GOAL := help
ENV := . ./env.sh &&
# Processes of tests find the byte code of those before them, even if the shell wants none.
PYTEST := PYTHONDONTWRITEBYTECODE= pytest

.PHONY: help run test test-all all-e2e all-others check format fab stop clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Byte code is compiled after the installation: on all cores, where pip uses one.
PIP = .venv/bin/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt

# Rebuilt only when the requirements change. Flower's SuperLink splits the path of its
# own folder at these characters, and then has no tables in its database.
.venv/.installed: pyproject.toml constraints.txt
	@case $$PWD in *[\ ,%]*) echo "error: Flower cannot be installed in a folder whose path has a space, a comma" \
		"or a percent sign, got $$PWD: move this folder elsewhere" >&2; exit 2;; esac
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or later" \
		"is needed, got $$($(PYTHON) --version 2>&1): name one that is, as in make run PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[dev]'
	.venv/bin/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true # a file of torch is for another Python
	touch $@

run: .venv/.installed ## the main job: GCFL+ on the built-in data, through Flower
	$(ENV) fedgraph run gcfl-plus-synthetic

# One process per core; a file's tests stay together, for they share runs.
XDIST := -n logical --maxprocesses 8 --dist loadfile

test: .venv/.installed ## the fast tests (no network, no Ray, no real data), on all cores
	$(ENV) $(PYTEST) $(XDIST) -m "not slow and not deploy" tests/contracts tests/unit

test-all: .venv/.installed ## every test, with Ray, real data and SuperLink/SuperNode processes
	$(MAKE) -j2 --output-sync=line --no-print-directory all-e2e all-others

all-e2e:
	$(ENV) $(PYTEST) $(XDIST) tests/e2e

all-others:
	$(ENV) $(PYTEST) $(XDIST) tests/contracts tests/lab tests/unit

check: .venv/.installed ## format, lint, types, import directions
	$(ENV) ruff format --check . && ruff check . && mypy && lint-imports

format: .venv/.installed ## mend format and what lint can mend
	$(ENV) ruff check --fix . ; ruff format .

fab: .venv/.installed ## build the bundle that Flower ships
	$(ENV) flwr build

stop: ## stop this project's background SuperLink
	$(ENV) fedgraph stop

clean: ## remove environment, caches and bundles; results stay
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache *.fab
