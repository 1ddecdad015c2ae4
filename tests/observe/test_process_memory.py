"""What a process has in memory, and the limit on it: as the operating system sees them."""

import os
import resource
import subprocess
import sys

import pytest

from zerosim.observe import resident as module
from zerosim.observe.resident import data_bytes, memory_limit, resident_bytes

MEGABYTES = 10**6
HELD = 50 * MEGABYTES


def limits():
    return resource.getrlimit(resource.RLIMIT_DATA)


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_a_limit_holds_within_and_ends_with_its_block(error):
    before, allowed = limits(), 1000 * MEGABYTES
    try:
        with memory_limit(allowed):
            within, taken = limits(), data_bytes()
            if error:
                raise error
    except ZeroDivisionError:
        pass
    assert within == (pytest.approx(taken + allowed, abs=5 * MEGABYTES), before[1])
    assert limits() == before


def ran(program, **environment):
    """What a program says, and how it ends, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False,
                          env=os.environ | environment)
    return done.stdout.split("\n")[:-1], done.returncode, done.stderr


STARVED = """
import numpy as np
from zerosim.observe.resident import memory_limit
with memory_limit(100_000_000):
    np.empty(50_000_000, np.uint8)
    try:
        np.empty(150_000_000, np.uint8)
    except MemoryError:
        print("did not fit")
np.empty(150_000_000, np.uint8)
print("fits again")
"""


def test_what_exceeds_a_limit_is_a_memory_error():
    assert ran(STARVED) == (["did not fit", "fits again"], 0, "")


HOLDING = """
import numpy as np
from zerosim.observe.resident import data_bytes, resident_bytes
def grown():
    return data_bytes() - data, resident_bytes() - resident
data, resident = data_bytes(), resident_bytes()
held = np.empty(50_000_000, np.uint8)
print(*grown())
held[:] = 1
print(*grown())
del held
print(*grown())
"""


def test_memory_counts_as_data_while_it_is_held_and_as_resident_from_its_first_touch():
    said, code, _ = ran(HOLDING)
    assert ([int(grown) for line in said for grown in line.split()], code) == (
        pytest.approx([HELD, 0, HELD, HELD, 0, 0], abs=10 * MEGABYTES), 0)


def test_where_it_cannot_be_told_nothing_is_resident(monkeypatch):
    def fails(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(module, "open", fails, raising=False)
    assert resident_bytes() == 0


class Library:
    """A C library that writes down how it is called."""

    def __init__(self, called):
        self.mallopt = lambda *arguments: called.append(("mallopt", *arguments))
        self.malloc_trim = lambda *arguments: called.append(("malloc_trim", *arguments))


def test_threads_share_the_first_arena_and_all_that_is_free_is_given_back(monkeypatch):
    """glibc's malloc.h has M_ARENA_MAX as −8; without a name the library is the process's own."""
    called, loaded = [], []
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: loaded.append(name) or Library(called))
    assert resident_bytes() > 0
    assert called == [("mallopt", -8, 1), ("malloc_trim", 0)]
    assert {*loaded} == {None}


def not_there():
    raise OSError


@pytest.mark.parametrize("library", [object, not_there])
def test_a_library_that_cannot_be_asked_is_not(monkeypatch, library):
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: library())
    assert resident_bytes() > 0


SCANTY = """
import resource, sys
from zerosim.observe.resident import let_blas_allocate, data_bytes
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + 40_000_000, -1))
try:
    let_blas_allocate()
except MemoryError:
    sys.exit(9)
"""
AFTERWARDS = """
import numpy as np
from zerosim.observe.resident import memory_limit, let_blas_allocate
let_blas_allocate()
with memory_limit(2_000_000):
    assert (np.ones((200, 200)) @ np.ones((200, 200)))[0, 0] == 200
"""


@pytest.mark.parametrize(("program", "code"), [(SCANTY, 9), (AFTERWARDS, 0)])
def test_blas_does_not_end_the_process(program, code):
    assert ran(program, OPENBLAS_NUM_THREADS="1") == ([], code, "")
