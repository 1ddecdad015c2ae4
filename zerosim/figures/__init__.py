"""Formulas for the traffic and the memory of a training run: nothing here plans a step or observes a run.

Formulas are derived from the definitions, not from the code that sends: the collectives of a step, and n (N −
1)/N for each. They need a row and a model, never a data set in memory.
"""
