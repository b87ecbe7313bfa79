# The interpreter for a new .venv. An existing .venv is used as it is.
PYTHON ?= python3
BIN := .venv/bin
RUN_STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-dev

.PHONY: test lint demo docs benchmarks clean

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist loadfile --ignore tests/cluster
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/cluster  # alone: to Ray a busy machine looks dead

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(RUN_STAMP)
	$(BIN)/cprompt demo

# Builds the site in build/site. A dead link or a missing page is an error.
docs: $(DEV_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# OPTIONS=--quick checks that they run; see benchmarks/README.md.
benchmarks: $(RUN_STAMP)
	$(BIN)/python -m benchmarks $(OPTIONS)

# Leaves .venv, runs/ and demo/ in place.
clean:
	rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	$(PYTHON) -m venv .venv

$(RUN_STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/pip install -e .
	touch $@

# The development install includes the plain one: `make demo` after `make test` installs nothing.
$(DEV_STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/pip install -e '.[dev]'
	touch $(RUN_STAMP) $@
