"""Top-k with error feedback: a rank sends the tenth of a chunk that is largest in magnitude, and keeps the rest.

Sources: Aji and Heafield, "Sparse communication for distributed gradient descent" (2017); Stich, Cordonnier and Jaggi,
"Sparsified SGD with memory" (2018), algorithm 1.
"""

import numpy as np

from zerosim.extend import wire_format

PAIR = np.dtype([("position", "<u4"), ("value", "<f4")])


def message_bytes(count):
    """A tenth of the elements, with positions."""
    return -(-count // 10) * PAIR.itemsize


def decode(coded, out):
    """Zeros, and the values at their positions."""
    sent = coded.view(PAIR)
    out[:] = 0
    out[sent["position"]] = sent["value"]


def residual(x, coded):
    """All but what was sent."""
    x[coded.view(PAIR)["position"]] = 0


@wire_format(decode=decode, encoded_bytes=message_bytes, residual=residual)
def top_k(x, out):
    """The largest magnitudes, in order of position; what is not finite counts as the largest."""
    sent, magnitudes = out.view(PAIR), np.where(np.isfinite(x), np.abs(x), np.inf)
    sent["position"] = np.sort(np.argsort(-magnitudes, kind="stable")[: len(sent)])
    sent["value"] = x[sent["position"]]
