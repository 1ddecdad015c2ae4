"""Shapes without values: views, reductions and messages as of real arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerosim.core.errors import CollectiveError
from zerosim.core.extents import Extent
from zerosim.worlds.local import spawn


@given(size=st.integers(0, 20), start=st.integers(-25, 25) | st.none(), stop=st.integers(-25, 25) | st.none())
def test_a_slice_is_as_long_as_an_arrays(size, start, stop):
    array, extent = np.empty(size, np.int16), Extent(size, np.int16)
    part, real = extent[start:stop], array[start:stop]
    assert (len(part), part.size, part.shape, part.dtype, part.nbytes) == (
        len(real), real.size, real.shape, real.dtype, real.nbytes
    )


@pytest.mark.parametrize("index", [
    0, slice(1), slice(None, None, 2), (..., 1), (..., slice(1)), (0, slice(2)), (None, 1)], ids=str)
def test_a_view_lies_in_one_piece_where_an_arrays_does(index):
    for axes in ((0, 1, 2), (2, 0, 1), (0, 2, 1)):
        view, array = Extent((2, 3, 4), np.float32).transpose(axes)[index], np.empty((2, 3, 4)).transpose(axes)[index]
        assert (view.shape, view.in_one_piece) == (array.shape, array.flags.c_contiguous)


@pytest.mark.parametrize("reduce", [
    lambda: np.add(Extent(4, np.float32), Extent(5, np.float32)),
    lambda: np.add.reduce(Extent(4, np.float32)),
])
def test_what_cannot_be_reduced_is_refused(reduce):
    with pytest.raises(CollectiveError, match=r"np\.add of extents .*: their lengths must be equal"):
        reduce()


@pytest.mark.parametrize("into", [Extent(5, np.float32), Extent(4, np.float64)])
def test_a_message_must_fit_as_an_array_must(into):
    def program(comm):
        comm.send(Extent(4, np.float32), to=0)
        comm.recv(into=into, source=0)

    with pytest.raises(CollectiveError, match="rank 0 sent 4 × float32 to rank 0, which receives it into"):
        spawn(program, 1)
