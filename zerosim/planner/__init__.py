"""Plans: a step on a cluster, simulated by running the code of the stages on shapes over a virtual clock.

Plans are checked against closed forms (exactly), against SimGrid (to 10⁻⁴), against this machine (`zerosim bench
cluster`) and against published runs (`zerosim bench published`). `docs/planning.md` states the errors.
"""
