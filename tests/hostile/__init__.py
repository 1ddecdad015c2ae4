"""Damaged and hostile files: each must be refused in one line, or be as good as any other.

`make fuzz` tries 10,000 mutated scenarios and 1,000 mutants each of data, weights, checkpoints and outcomes; none may
take more than 60 s. It found five files that were not met well: a checkpoint with a unit without layers, three whose
stage was no word, and an outcome with a word for a number. The suite's own mutants had found that naming 15,000
variants took cubic time.
"""
