"""A limit on the memory of this process, for as long as it takes to see what fits."""

import resource
from types import TracebackType


class MemoryLimit:
    """Within it the process gets at most `allowed_bytes` more memory than it has; what exceeds it is a `MemoryError`.

    0 is no limit. The operating system counts private writable memory (`RLIMIT_DATA`), whether it is touched or not.
    """

    def __init__(self, allowed_bytes: int) -> None:
        self._allowed = allowed_bytes
        self._before = resource.getrlimit(resource.RLIMIT_DATA)

    def __enter__(self) -> None:
        if self._allowed:
            _, hard = self._before
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + self._allowed, hard))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, self._before)


def data_bytes() -> int:
    """Private writable memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024
