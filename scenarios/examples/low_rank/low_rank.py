"""Gradients of low rank: a chunk as a matrix M ≈ P Qᵀ, of which P and Q are sent.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed optimization" (2019),
algorithm 1, with three differences: the matrix is a chunk, not a layer; each message starts from the same Q and takes
two power iterations, since a format has no memory; ranks add decoded gradients, not factors.
"""

from math import isqrt

import numpy as np

from zerosim.extend import wire_format

RANK, ITERATIONS = 2, 2


def sides(count):
    """The rows and columns of a nearly square matrix of a chunk; fewer elements than a row has are left over."""
    columns = isqrt(count)
    return count // columns, columns


def message_bytes(count):
    """Four bytes for each element of P and Q and for each that is left over."""
    rows, columns = sides(count)
    return 4 * (RANK * (rows + columns) + count - rows * columns)


def parts(message, count):
    """P, Q and the elements left over: views of a message."""
    rows, columns = sides(count)
    p, q, rest = np.split(message, np.cumsum([RANK * rows, RANK * columns]))
    return p.reshape(rows, RANK), q.reshape(columns, RANK), rest


def decode(coded, out):
    """P Qᵀ, and what is left over."""
    p, q, rest = parts(coded.view("<f4").astype(np.float32), len(out))
    out[:] = np.concatenate([(p @ q.T).ravel(), rest])


def orthonormal(p):
    """The columns, orthonormal by Gram and Schmidt; a column of zeros stays one."""
    for column in range(RANK):
        for before in range(column):
            p[:, column] -= (p[:, before] @ p[:, column]) * p[:, before]
        p[:, column] /= np.sqrt(p[:, column] @ p[:, column]) or 1
    return p


@wire_format(decode=decode, encoded_bytes=message_bytes, rounding=1e-4)
def low_rank(x, out):
    """P is orthonormal, Q = Mᵀ P."""
    message = np.empty(len(out) // 4, np.float32)
    p, q, rest = parts(message, len(x))
    m, rest[:] = np.split(x, [len(p) * len(q)])
    m = m.reshape(len(p), len(q)).copy()
    q[:] = np.random.default_rng(0).standard_normal(q.shape)
    for _ in range(ITERATIONS):
        p[:] = orthonormal(m @ q)
        q[:] = m.T @ p
    out.view("<f4")[:] = message
