# Everything starts here. `make` alone prints what there is.

SHELL := /bin/sh
.DEFAULT_GOAL := help
UV ?= uv
SPARK ?= 4.0

.PHONY: help setup demo quick archives test containers browser image others spark soak fuzz explore faults lint docs site lock wheels sbom clean

help: ## Print this list
	@sed -n 's/^\([a-z]*\): [^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

setup: ## Set up everything in .venv and the user's cache (done by the others, too)
	@python=$$(services/ringlog/stack/find_python.sh "$(PYTHON)") && \
	  PYTHONPATH=services exec "$$python" -m ringlog.stack.bootstrap $(SETUP_FLAGS)

demo: setup ## See the whole system work: broker, agents, nodes, Spark, a join in the middle, an audit
	@.venv/bin/ringlog demo $(DEMO_FLAGS)

quick: setup ## Check what a moment shows: style, kernel, wire, log, agents, some seeds of the simulator (no types: lint)
	@.venv/bin/ruff check --quiet . && .venv/bin/ruff format --check --quiet .
	@.venv/bin/pytest --numprocesses 2 -q tests/tidy $(QUICK) $(TEST_FLAGS)
	@.venv/bin/ringlog sim run --fresh 1000 --seconds 10 --no-coverage

archives: setup ## Store the classes of broker and Spark, once: both start faster (optional; half a minute)
	@.venv/bin/python -m tests.record_classes 2>.venv/archives.log || echo 'archives: none, see .venv/archives.log'

test: archives ## Run the unit tests, then the system tests against a real broker, Redis and Spark
	@.venv/bin/pytest --numprocesses 4 --no-loadscope-reorder -m "not soak and not containers and not browser" $(TEST_FLAGS)

containers: SETUP_FLAGS = --test-programs
containers: setup ## Build the image, run the services of compose.yaml from it, restart them (root, podman; minutes)
	@.venv/bin/pytest -m containers tests/containers $(TEST_FLAGS)

browser: SETUP_FLAGS = --test-programs
browser: setup ## Visit every page of the console in Chromium: errors, widths, accessibility, keyboard (minutes)
	@.venv/bin/pytest -m browser tests/browser $(TEST_FLAGS)

image: ## Build the image ringlog:local for compose and Kubernetes; BASE=NAME@sha256:DIGEST names another base
	@sh compose/build.sh

# Values, bytes and decisions, on which a Python could differ.
QUICK = tests/agents tests/cache tests/kernel/commands tests/kernel/ring tests/kernel/rows tests/kernel/schema \
  tests/kernel/test_encoding.py tests/kernel/test_fold.py tests/log \
  tests/operator/test_author_json.py tests/operator/test_tokens.py tests/runtime tests/wire

# What pytest makes of assertions costs two thirds of the collection there; local variables show as much when one fails.
others: setup ## Run the quick tests on each other fitting Python in PATH, by pyenv, by uv; check types with pyright
	@if node --version >/dev/null 2>&1; then \
	  .venv/bin/python -m venv .venv-pyright \
	    && .venv-pyright/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-pyright.lock \
	    && PATH="$$PWD/.venv-pyright/bin:$$PATH" .venv/bin/pytest -q -p no:cacheprovider tests/stack/test_installed.py -k pyright || exit; \
	fi
	@services/ringlog/stack/find_python.sh --others \
	  | while read -r python; do \
	    venv=.venv-$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	    PYTHONPATH=services "$$python" -m ringlog.stack.bootstrap --light --venv "$$venv" </dev/null \
	      && "$$venv/bin/pytest" --numprocesses 2 -q -p no:cacheprovider --assert plain --showlocals $(QUICK) \
	        tests/stack/test_installed.py </dev/null || exit; \
	  done

spark: setup ## Run the CDC tests on the Spark release SPARK (default 4.0), in a folder of its own
	@PYTHONPATH=services .venv/bin/python -m ringlog.stack.bootstrap --venv .venv-spark-$(SPARK) --spark $(SPARK)
	@.venv-spark-$(SPARK)/bin/pytest --numprocesses 2 --no-loadscope-reorder -m "not soak" tests/cdc \
	  tests/client/cdc $(wildcard tests/system/test_cdc_*.py) tests/system/test_readers.py $(TEST_FLAGS)

soak: setup ## Run the slow tests that rarely find anything, then fresh seeds of the simulator for HOURS (default 1)
	@.venv/bin/pytest --numprocesses 2 --no-loadscope-reorder -m soak $(TEST_FLAGS)
	@.venv/bin/ringlog sim run --fresh 1000000000 --profile $(or $(PROFILE),all) --seconds $$(( $(or $(HOURS),1) * 3600 ))

fuzz: setup ## Fuzz every decoder for SECONDS each (default 60), guided by code coverage (Linux on x86-64)
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps \
	  --only-binary :all: -r requirements-fuzz.lock
	@for target in $$(.venv/bin/python -m tests.fuzz.run_atheris --all); do \
	  printf 'fuzz: %s\n' "$$target"; \
	  .venv/bin/python -m tests.fuzz.run_atheris "$$target" --seconds $(or $(SECONDS),60) || exit; \
	done

explore: setup ## Go through all orders of events of small movements, generations, verdicts and zones, and without each rule (minutes)
	@.venv/bin/python -m tests.client.explorer.rules $(EXPLORE_FLAGS)
	@.venv/bin/python -m tests.kernel.generations.explore --largest
	@.venv/bin/python -m tests.kernel.verdicts.explore
	@.venv/bin/python -m tests.kernel.zones.explore

faults: setup ## Kill, suspend, starve and cut off every part of a real stack under load (50 minutes)
	@.venv/bin/pytest tests/faults $(TEST_FLAGS)

lint: setup ## Check style, types and the import contract
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

docs: setup ## Make the pages of docs/reference and the dashboard of all metrics from the code
	.venv/bin/python -m ringlog.cli.reference docs/reference
	.venv/bin/python -m ringlog_schemas.docs > docs/reference/schemas.md
	.venv/bin/python -m tests.stack.dashboard

site: setup ## Build the documentation with an API reference as a static site in build/site
	@.venv/bin/python -m tests.site.stage build/docs
	@.venv/bin/zensical build --clean --strict

lock: ## Renew requirements.lock from pyproject.toml (needs uv)
	$(UV) pip compile pyproject.toml --all-extras --group build --group bench --group site --group dev --universal \
	  --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o requirements.lock

wheels: setup ## Say what of requirements.lock has no wheel, by system and Python (needs uv; minutes)
	@.venv/bin/python -m tests.stack.wheels $(UV)

sbom: setup ## Write the list of components of this release to build/sbom.json (CycloneDX)
	@mkdir -p build
	@.venv/bin/python -m tests.stack.sbom > build/sbom.json

clean: ## Stop the default stack; delete .venv and what tools left (data and jars stay where they are)
	@if [ -x .venv/bin/ringlog ]; then .venv/bin/ringlog stack down; fi
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
