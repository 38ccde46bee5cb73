# `make test` and `make demo` are the only set-up a newcomer needs.
PYTHON ?= python3
PALMETTE_DATA ?= ../shared/data
export PALMETTE_DATA
# One thread inside an operation: tests run in two processes, and Palmette parallelises over chunks of devices itself.
export OMP_NUM_THREADS ?= 1

.PHONY: setup test check demo clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: .venv/ready
	.venv/bin/python -m pytest -q -n 2

check: .venv/ready
	.venv/bin/ruff format --check src tests
	.venv/bin/ruff check src tests
	.venv/bin/mypy

demo: .venv/ready
	.venv/bin/palmette demo

clean:
	rm -rf .venv
