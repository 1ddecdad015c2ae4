"""Is a training in one parallel layout the same function as in another? Two runs are recorded, and compared afterwards.

    torchrun --nproc-per-node 1 -m zerosim.torch --record one train.py …
    torchrun --nproc-per-node 8 -m zerosim.torch --record eight train.py … --tensor-parallel 4
    zerosim torch --same one eight

Nobody says who holds which part: a part is recognised in the whole by the content of the initial weights.
"""
