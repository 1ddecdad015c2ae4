"""Mutation testing: change one line of the package at a time and see which test notices.

    modules      which files are changed
    operators    what may be changed in a line
    mutations    all the changes of a file, and a sample of them
    tracing      which functions a process runs
    learning     which tests run which functions, and how long each takes
    judging      a copy of the tree, one mutant in it, and the first test that fails
    equivalent   mutants that change no behaviour, with the reason
    report       what came of it

`python -m tests.mutants --help`, or `make mutants`.
"""
