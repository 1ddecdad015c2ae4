"""The backend of torch.distributed under real MPI, and PyTorch's trainers bit for bit, where PyTorch is installed."""

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpirun

torch = pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")

WAYS = 15


def zerosim_torch(ranks, *arguments):
    return mpirun(ranks, ["-m", "zerosim", "torch", *arguments], timeout=SECONDS_TO_END)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_gives_what_pytorch_promises(ranks):
    outcome = mpirun(ranks, ["-W", "ignore", "-m", "tests.torch.collectives"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("passed 15") == ranks


@pytest.mark.mpi
def test_an_unchanged_script_trains_to_the_same_losses_by_ddp_and_fsdp2():
    one, other = (zerosim_torch(4, "tests/torch/training.py", way) for way in ("ddp", "fsdp2"))
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    assert one.stdout.count("step") == 5
    assert one.stdout == other.stdout


@pytest.mark.mpi
def test_fsdp2_sends_what_stage_iii_sends_and_its_lines_are_named():
    outcome = zerosim_torch(2, "--calls", "tests/torch/training.py", "fsdp2")
    assert outcome.returncode == 0, outcome.stderr
    calls = [line.split() for line in outcome.stdout.splitlines() if " × " in line]
    sent = {name: sum(int(call[5].replace(",", "")) for call in calls if call[4] == name)
            for _, _, _, _, name, *_ in calls}
    assert sent["all_gather"] == 2 * sent["reduce_scatter"] == 5 * 4 * 17226
    assert all("training.py:" in call[-1] or "training.py:" in " ".join(call) for call in calls)


@pytest.mark.mpi
def test_programs_of_others_compute_what_they_do_over_gloo():
    outcome = mpirun(4, ["-W", "ignore", "-m", "tests.torch.beside_gloo"])
    assert outcome.returncode == 0, outcome.stderr
    found = outcome.stdout.splitlines()
    assert [line for line in found if not line.endswith(": equal")] == []
    assert len(found) == 17


def test_a_script_that_is_not_there_is_one_line():
    outcome = zerosim_torch(1, "nowhere.py")
    assert outcome.returncode == 2
    assert outcome.stderr == ("zerosim: there is no script 'nowhere.py'; give a Python file, or -m and a module, after "
                              "the flags\n")


# -- bits

@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_pytorchs_trainers_have_the_bits_of_one_process(ranks):
    outcome = mpirun(ranks, ["-m", "tests.torch.bits"])
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert outcome.stdout.count("same bits as one process") == WAYS - (ranks != 4)


@pytest.mark.mpi
def test_a_planted_fault_is_seen():
    outcome = mpirun(3, ["-m", "tests.torch.bits", "--planted"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("where one process has") == 9
