"""The line of the user's code, and that of a library, that called a collective."""

import os
import sys
from functools import cache
from pathlib import Path
from traceback import walk_stack

import torch

PACKAGES = f"{Path(torch.__file__).parents[1]}{os.sep}"
"""The folder of PyTorch and other libraries."""
PARAM_GROUP_FILE = f"{PACKAGES}torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py"
"""The file whose methods belong to a unit of FSDP2."""
BETWEEN = (
    *(f"{PACKAGES}{name}" for name in ("torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py",
                                       "torch/utils/_contextlib.py", "typing_extensions.py")),
    f"{Path(__file__).parents[1]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}", "<",
)
"""Files that only forward calls."""


@cache
def of_a_library(file: str) -> bool:
    """Whether a file belongs to PyTorch or another installed package, wherever packages are."""
    return file.startswith(PACKAGES) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


@cache
def passes_on(file: str) -> bool:
    """Whether a file only forwards calls, or is Python's own."""
    return file.startswith(BETWEEN)


def calling(group: str) -> str:
    """The line of a library that called the collective, and the line of the user's code that led to it.

    If one of them is unknown, the other alone; a unit of FSDP2 and a group other than the default one are named.
    """
    library = user = unit = ""
    for frame, line in walk_stack(sys._getframe(2)):
        file = frame.f_code.co_filename
        if file == PARAM_GROUP_FILE and not unit:
            unit = getattr(frame.f_locals.get("self"), "_module_fqn", None) or ""
        if file.startswith(PACKAGES):
            if not library and not passes_on(file):
                package, *_, name = file.removeprefix(PACKAGES).split(os.sep)
                library = f"{package}/…/{name}:{line}"
        elif not passes_on(file):
            user = f"{file.rpartition('/')[2]}:{line}"
            break
    lines = " from ".join(filter(None, (library, user))) + (f" for {unit}" if unit else "")
    return lines if group == "0" else f"{lines} in group {group}"
