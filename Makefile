# Everything here works in a fresh checkout with Python 3.11 or later and make, and nothing else.
# PYTHON=/path/to/python picks the interpreter that .venv is made from.
# LANES=N is how many processes share the test suite (tests/suite/lanes.py), five or four; LANES=0 runs it in one.
# MINUTES=N is how long make soak writes messages.
# SPARK=1 installs PySpark for the demo's last part, a download of 456 MB; make check has it in any case.

PYTHON ?=
SPARK ?=
PEERS ?=
LANES ?=
MINUTES ?= 10
PYTHONS := $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3
VENV := .venv
# The demos have an environment of their own: the service that runs from .venv goes on.
DEMO := build/demo
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n $(or $(LANES),$(1))
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt

# Stamps: the environment exists; the service is installed; so is PySpark; the service and its tools are installed.
PINS = $(BIN)/uv pip compile -q --universal --python-version 3.11.5 --generate-hashes --no-annotate \
    --custom-compile-command 'make pins' -c constraints.txt pyproject.toml
MADE := $(VENV)/.made
CORE := $(VENV)/.core
SPARKED := $(VENV)/.spark
USERS := $(VENV)/.users
DEV := $(VENV)/.dev

# The tests are compiled once, also where the environment says that Python shall write no bytecode: each of the processes
# that share the suite would compile all of it at every run.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo inbox test check quick slow soak bench measure lint docs dist pins cluster install clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

demo: ## Run the service and workers on a real feed, kill both, show that nothing is lost (SPARK=1: on Spark, too)
	@$(MAKE) --no-print-directory VENV=$(DEMO) $(DEMO)/.core $(if $(SPARK),$(DEMO)/.spark)
	DEMO_CHART=build/earthquakes.svg $(DEMO)/bin/queuey demo
	@echo "To see messages arrive in two browser windows: make inbox"

inbox: ## Run an app with an inbox for each user, to be looked at in two browser windows
	@$(MAKE) --no-print-directory VENV=$(DEMO) $(DEMO)/.users
	exec $(DEMO)/bin/python deploy/demo/inbox/run.py

test: $(DEV) ## Run the tests that need nothing, and meet each real server once; in less than five minutes
	$(call PYTEST,5) --suite test

check: $(DEV) ## Run all other tests but the slow ones: real servers, faults, Spark, Chromium, SDKs, the blocks of pages
	$(call PYTEST,4) --suite check

quick: $(DEV) ## Run the tests of make test that need no server
	$(call PYTEST,5) --suite test --ignore tests/smoke

slow: $(DEV) ## Run the slow tests: crashes by kill -9, millions of queues and messages, property tests with new examples
	rm -rf build/faults
	HYPOTHESIS_PROFILE=deep $(call PYTEST,4) -m "slow or hypothesis" --stall-limit 7200

soak: $(DEV) ## Run both stores and all ways to consume at once for MINUTES, kill, watch every process, count every message
	exec $(BIN)/python -m tests.soak --minutes $(MINUTES)

bench: $(DEV) ## Measure the speed and write its pages (PEERS=1: and beside other products, an hour more)
	mkdir -p build
	$(BIN)/python -m bench $(if $(PEERS),--peers) --json build/bench.json
	$(BIN)/python -m bench.pages build/bench.json

measure: $(DEV) ## Count the files and calls that one post, read, claim and so on cross, and the lines of code of each package
	$(BIN)/python -m bench.call_counts

lint: $(DEV) ## Check style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python deploy/unasync.py --check
	$(BIN)/python -m deploy.api_page --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(DEV) ## Build the documentation as a site, with a reference of the Python code, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict -f deploy/site/mkdocs.yml
	@echo "Open build/site/index.html"

dist: $(DEV) ## Build the wheel, the source distribution and the client's npm package into dist, the same bytes each time
	$(BIN)/python -m bench.pages --check
	$(BIN)/python -m hatchling build --clean -d dist
	$(BIN)/python deploy/npm.py dist

pins: $(DEV) ## Write requirements/*.txt: the versions of constraints.txt with hashes, for the image and for CI
	$(PINS) --extra server --extra cassandra --extra sqs --extra zookeeper -o requirements/image.txt
	$(PINS) --extra dev -o requirements/ci.txt

cluster: $(DEV) ## Run three Cassandra nodes and three ZooKeeper servers on this machine until Ctrl-C
	exec $(BIN)/python -m deploy.local

install: $(DEV) ## Make .venv and install the service and the tools for working on it

clean: ## Remove .venv and everything else that can be made again
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A command by the right name may still be too old, a shim without an interpreter behind it, or lack
# ensurepip: so each candidate has to make a working environment, and the first that does is taken. An environment that
# works already stays as it is: a service may run from it.
$(MADE):
	@if $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    touch $@; exit 0; \
	fi; \
	for python in $(PYTHONS); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	    "$$python" -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	        "$$python" -m venv --clear --without-pip $(VENV) && \
	        "$$python" -m pip --python $(BIN)/python install --quiet pip; \
	    } >/dev/null 2>&1 || continue; \
	    echo "Made $(VENV) with $$($(BIN)/python --version) ($$python)"; touch $@; exit 0; \
	done; \
	rm -rf $(VENV); \
	echo "No Python 3.11 or later with venv and pip among: $(PYTHONS). Set PYTHON=/path/to/python." >&2; exit 1

$(CORE): $(MADE) pyproject.toml constraints.txt
	@echo "Installing queuey into $(VENV)"
	$(PIP_INSTALL) -e '.[server]'
	@touch $@

$(USERS): $(CORE) pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[users]'
	@touch $@

$(SPARKED): $(CORE) pyproject.toml constraints.txt
	@echo "Installing PySpark into $(VENV)"
	$(PIP_INSTALL) -e '.[spark]'
	@touch $@

$(DEV): $(MADE) pyproject.toml constraints.txt
	@echo "Installing queuey and its development tools into $(VENV)"
	$(PIP_INSTALL) -e '.[dev]'
	@touch $(CORE) $@
