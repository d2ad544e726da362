# Every target does its own set-up; the second run starts at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=
JOBS   ?= 2
# opens on the index, asks nobody about news; root is let in where root it is
LAB    := --LabApp.default_url=/lab/tree/notebooks/index.ipynb --LabApp.news_url=None $(if $(filter 0,$(shell id -u)),--allow-root)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup setup-fleet rehearse lab test check system-deps test-realvllm test-slow lock format clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## make .venv in the checkout with opslib and its pinned dependencies

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; found " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

setup-fleet: .venv-fleet/.ready ## make .venv-fleet: the same with Prefect, for opslib fleet (docs/fleet.md)

.venv-fleet/.ready: requirements-fleet.lock pyproject.toml
	$(PYTHON) -m venv .venv-fleet
	.venv-fleet/bin/pip install --quiet --require-hashes -r requirements-fleet.lock
	.venv-fleet/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

rehearse: setup ## the whole deploy on the rehearsal host: crash, diagnosis, remedy, benchmark, record
	$(BIN)/opslib rehearse

lab: setup ## JupyterLab on the index: runbooks by question, newest records, hosts (ARGS="--no-browser --port 8889")
	$(BIN)/jupyter lab --ServerApp.root_dir=. --ServerApp.jpserver_extensions=opslib.app.keeping=True $(LAB) $(ARGS)

test: setup ## every test that CI runs (unit, notebooks, rehearsal host, real Debian host, browser); JOBS=1 for one at a time
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder -m "not realvllm and not slow"

check: setup ## ruff, mypy strict, import-linter, Python 3.8 for on-host code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --target=3.8- --violations --no-tips opslib/onhost opslib/rehearsal/standin

system-deps: ## Debian packages for the real test host and the browser (needs root; without it those tests are skipped and say so)
	tests/rig/system-deps.sh

test-realvllm: setup ## 90-deploy on a real vLLM (CPU) in the real Debian host
	$(BIN)/pytest -m realvllm

test-slow: setup ## long faults and soaks
	$(BIN)/pytest -m slow

lock: setup ## pin every dependency for every promised platform and Python, with hashes
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --extra dev pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --extra dev --extra fleet pyproject.toml --output-file requirements-fleet.lock

format: setup ## format the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean: ## remove .venv, .venv-fleet and caches; runs/ is kept
	rm -rf $(VENV) .venv-fleet .cache .mypy_cache .ruff_cache build
