"""Plans: a step on a cluster, simulated by running the code of the stages on shapes over a virtual clock.

Plans are checked against closed forms (exactly), against SimGrid (to 10⁻⁴), against runs of drawn scenarios (to the
byte) and against published runs (`tests/accuracy`). `docs/accuracy.md` states the errors.
"""
