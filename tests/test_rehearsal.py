"""Extents in the lockstep world, where a rank is a vector."""

import numpy as np
import pytest

from zerosim.core.errors import Unlike
from zerosim.core.extents import Extent
from zerosim.core.sharding import split
from zerosim.worlds.lockstep import ranks


def test_extents_are_cut_by_vectors_where_pieces_are_equally_long():
    padded = split(Extent(12, np.float32), 4)
    assert padded[ranks(4)].shape == (3,)
    assert padded[(ranks(4) + 1) % 4].shape == (3,)
    with pytest.raises(Unlike, match="not equally long"):
        split(Extent(10, np.float32), 4)[ranks(4)]
