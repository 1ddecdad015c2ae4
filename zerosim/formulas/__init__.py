"""What a training run must send, keep and hold, by formula: nothing here plans a step or looks at a run.

Formulas are written from the definitions, not from the code that sends: which collectives a step needs, and n (N −
1)/N for each. They need a row and a model, never a data set in memory.
"""
