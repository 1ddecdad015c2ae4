"""The verdict: it judges what a run measured, by the reference, by formulas and by the scenario's claims.

Looked at after every step, on every rank: weights, every slot of the optimizer, gradients (of a shard only the chunk
that is a sum there; of a NaN only that it is one), losses, updates, loss scale. Looked at once: messages, bytes and
calls of each collective, exactly; what is kept between steps, exactly; the peak of each kind, exactly or as a bound
(see `formulas/peaks.py`); the digests of what rank 0 collects; whether all ranks read the same scenario and data.

Equal bytes say nothing of what both sides share: the tape, the operations, the optimizer, the stream of samples.
`reference.py` says who judges those.

What is held as a reduction or an update begins is checked too. Full weights, and activations that nobody needs, must
be gone by then, or the peak of all kinds together is too high although that of each is right.
"""
