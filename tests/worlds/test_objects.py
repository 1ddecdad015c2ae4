import pytest

from tests.worlds.object_checks import check_objects_arrive
from zerosim.worlds.local import spawn


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_objects_arrive(ranks):
    spawn(check_objects_arrive, ranks)
