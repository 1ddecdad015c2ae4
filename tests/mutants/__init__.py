"""Mutation testing: change one line of the package at a time and see which test notices.

The changed file lies in a copy of the tree, where processes that a test starts read it as well. One traced run finds
out which tests run which function, in whatever process; those tests are asked, the fastest first, until one fails. A
test that takes five times its usual time and ten seconds more has caught its mutant. A mutant that changes no
behaviour is listed in `equivalent.toml` with the reason, and is judged all the same: if a test catches it, it is no
equivalent, and the tool says so.

Two maintained tools were considered. `cosmic-ray` runs one command for every mutant without knowing which tests could
notice it, which takes minutes for each mutant of a suite with tests under `mpirun`. `mutmut` knows, and forks, but it
puts all mutants of a function behind a dispatcher: it cannot change tables, constants and defaults, and the
dispatcher's frames hold arrays, which the memory ledger then counts.

A sample says little about one module: 6 mutants each, as a rule. Survivors in limits and defaults are often harmless.

    operators    what may be changed in a line
    mutations    which files are changed, all the changes of a file, and a sample of them
    tracing      which functions a process runs
    learning     which tests run which functions, and how long each takes
    choosing     which tests are asked about a mutant
    copying      a copy of the tree, and one mutant in it
    forks        pytest in a fork, and what it tells
    judging      the first test that fails
    report       what came of it; mutants that change no behaviour, with the reason
    by_hand      faults written by hand: a list of them, and its runner

`python -m tests.mutants --help` and `python -m tests.mutants.by_hand --help`, or `make mutants` for both.
"""
