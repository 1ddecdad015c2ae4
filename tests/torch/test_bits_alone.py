"""What one process computes in the declared orders; needs no MPI."""

import pytest

torch = pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own, as it is imported


def trained(name, ranks):
    """The bytes of the weights that one process trains in this way, for so many ranks."""
    from tests.torch.alone import Alone
    from tests.torch.ways import way_named

    alone = Alone(way_named(name), ranks)
    for step in range(1, 4):
        alone.step(step)
    return [parameter.detach().numpy().tobytes() for parameter in alone.parameters]


@pytest.mark.parametrize(("ranks", "same"), [(1, True), (2, True), (3, False), (4, False)])
def test_ddp_and_fsdp2_have_the_same_bits_on_two_ranks_at_most(ranks, same):
    assert (trained("DDP", ranks) == trained("FSDP2", ranks)) == same


def test_what_fsdp2_keeps_between_forward_and_backward_changes_no_bit():
    assert trained("FSDP2", 3) == trained("FSDP2, reshard_after_forward=False", 3)


def test_three_replicas_are_added_chunk_by_chunk():
    from tests.torch.adding import over_mesh

    found = over_mesh([[torch.full((3,), value).numpy()] for value in (1e8, 1.0, -1e8)], 0, 0, 3)
    assert [float(each) > 0 for each in found] == [False, True, False]
