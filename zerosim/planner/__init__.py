"""A step on a cluster, priced: the stages' own code on shapes, over a virtual clock.

A plan is trusted as far as it was checked: against closed forms exactly, against SimGrid to 10⁻⁴, against this
machine (`zerosim bench cluster`), and against published runs (`zerosim bench published`). `docs/planning.md` has the
errors.
"""
