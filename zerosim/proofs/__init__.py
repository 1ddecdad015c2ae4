"""Proofs of collectives on symbols, checks of a user's parts, and laws for users' tests.

    subject, proof, case     a collective on symbols: the sum that each rank holds, as a tree
    schedule                 the same round by round, to be drawn
    cause, ended             why one is wrong: the first message that differs; an exception; a loop that does not end
    parts, stage_cause       what each kind of part promises; the first call in which a stage differs
    contents                 a step of a stage on symbols: what each rank holds after each event
    example, values          a call with vectors of numbers, and what a user's function does in it, in every dtype
    law, laws, strategies    what `zerosim.testing` offers to tests of users
    programs                 scenarios of collectives

An exercise is a part with its declarations and without a body.
"""
