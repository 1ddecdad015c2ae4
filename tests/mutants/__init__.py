"""Mutation testing: change one line of the package at a time and see which test notices.

    modules      which files are changed
    operators    what may be changed in a line
    mutations    all the changes of a file, and a sample of them
    tracing      which functions a process runs
    learning     which tests run which functions, and how long each takes
    choosing     which tests are asked about a mutant
    copying      a copy of the tree, and one mutant in it
    forks        pytest in a fork, and what it tells
    exchange     new code for the functions that are there
    judging      the first test that fails
    equivalent   mutants that change no behaviour, with the reason
    report       what came of it

`python -m tests.mutants --help`, or `make mutants`.
"""
