"""A limit on the memory of this process, which shows the stages that fit.

The limit is the operating system's (`RLIMIT_DATA`), set by each rank for itself. Model states are allocated before
the first step, so a stage that does not fit fails there, on all ranks at once, and the other rows are trained. OpenBLAS
ends the process if it cannot allocate its buffers, so it allocates them before the limit holds.
"""

import resource
import sys
from types import TracebackType

import numpy as np

BLAS_BYTES = 1 << 26
"""More memory than OpenBLAS allocates on one thread."""


class MemoryLimit:
    """A context in which the process gets at most `allowed_bytes` more memory; more raises `MemoryError`.

    0 is no limit. The operating system counts private writable memory (`RLIMIT_DATA`), used or not. Call
    `let_blas_allocate` before: otherwise BLAS ends the process when it cannot allocate its buffers.
    """

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed = allowed_bytes
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def __enter__(self) -> None:
        if self._allowed:
            _, hard = self._before
            most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
            resource.setrlimit(resource.RLIMIT_DATA, (min(data_bytes() + self._allowed, most), hard))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, self._before)


def let_blas_allocate() -> None:
    """Multiply matrices that are large enough for BLAS to allocate its buffers; `MemoryError` if there is too little
    memory.

    Call it after the number of BLAS threads has been set: OpenBLAS then reserves a buffer that products used before.
    """
    np.empty(BLAS_BYTES, np.uint8)
    for dtype in (np.float32, np.float64):
        matrix = np.ones((256, 256), dtype)
        np.matmul(matrix, matrix)


def data_bytes() -> int:
    """Private writable memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
