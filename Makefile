.DEFAULT_GOAL := help
.PHONY: help venv demo test test-long bench lint format manifest lock check

PYTHON := .venv/bin/python
BOOTSTRAP := @sh deploy/bootstrap.sh
export PYTHONDONTWRITEBYTECODE ?= 1

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

venv: ## make .venv from the hash-locked requirements
	$(BOOTSTRAP) dev

demo: ## run the demo until Ctrl-C; FRESH=1 begins anew, PORT=8000 chooses the port
	$(BOOTSTRAP) demo
	@FENCEWATCH_DEMO=1 exec $(PYTHON) manage.py demo $(if $(filter-out 0,$(FRESH)),--fresh) $(if $(PORT),--port $(PORT))

test: lint ## gates, then the suite; ARGS= goes to pytest
	@exec $(PYTHON) -m pytest $(ARGS)

test-long: venv ## the tests marked long: soaks, 10 M rows, model runs
	@exec $(PYTHON) -m pytest -m long --timeout=0 $(ARGS)

bench: venv ## print what the guard and the history cost: ratios against a bare table, in one run
	@exec $(PYTHON) -m pytest -m bench -s --timeout=0 -q tests/benchmarks $(ARGS)

lint: venv ## ruff, mypy, import-linter, djade, missing migrations
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	@git ls-files -co --exclude-standard 'templates/*.html' | xargs -r .venv/bin/djade --check --target-version 6.1
	FENCEWATCH_DEMO=1 $(PYTHON) manage.py makemigrations --check --dry-run

format: venv ## put code and templates into the house's form
	$(PYTHON) -m ruff check --fix-only .
	$(PYTHON) -m ruff format .
	@git ls-files -co --exclude-standard 'templates/*.html' | xargs -r .venv/bin/djade --target-version 6.1

manifest: venv ## write what a fresh database's catalog says, after a change of its SQL
	@FENCEWATCH_TEST_WRITE_MANIFEST=1 exec $(PYTHON) -m pytest -q tests/ground/test_drift.py -k fresh_database
	@git --no-pager diff --stat workitems/guards/manifest.txt

check: venv ## Django's deployment check on the settings in the environment
	@exec $(PYTHON) manage.py check --deploy --fail-level WARNING

lock: venv ## write requirements/*.txt from *.in; ARGS=--upgrade takes newer versions
	@sh deploy/lock.sh $(ARGS)
