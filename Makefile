# make run    train digits by DDP and ZeRO Stages I–III on 4 MPI processes and compare every bit
# make test   the whole suite, the tests under mpirun included
# make lint   ruff and mypy --strict
# make clean  remove what the others made

PYTHON ?= python3
BIN := .venv/bin
PROGRESS := $(shell test -t 2 && echo live || echo auto)

.PHONY: run test lint clean

run: .venv/run
	$(BIN)/mpirun -n 4 $(BIN)/zerosim run scenarios/compare.toml --progress $(PROGRESS)

test: .venv/test
	$(BIN)/python -m pytest

lint: .venv/lint
	$(BIN)/ruff check
	$(BIN)/mypy

clean:
	rm -rf .venv build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv:
	$(PYTHON) -m venv .venv

# Each stamp is newer than setup.cfg once what its target needs is installed.
.venv/run: setup.cfg pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[mpich]'
	touch $@

.venv/test .venv/lint: .venv/%: setup.cfg pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[mpich,$*]'
	touch $@
