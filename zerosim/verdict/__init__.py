"""The verdict: it judges the measurements of a run by the reference, by formulas and by the scenario's claims.

After every step it compares on every rank: weights, every slot of the optimizer, gradients (for a shard only the chunk
that is a sum there; two NaNs count as equal), losses, updates, loss scale. Once per run: messages, bytes and calls of
each collective, exactly; the state kept between steps, exactly; the peak of each kind, exactly or as a bound (see
`verdict/shapes.py`), and within bounds from the papers' formulas, as operations are (`verdict/bounds.py`); the digests
of the arrays that rank 0 collects; whether all ranks read the same scenario and data.

Equal bytes prove nothing about code that both sides share: the tape, the operations, the optimizer, the stream of
samples. `reference.py` names the checks of those.

The memory alive at the beginning of a reduction or an update is checked too. Full weights and unneeded activations must
be freed by then; otherwise the peak of all kinds together is too high although that of each is right.
"""
