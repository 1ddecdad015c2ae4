"""The backend of torch.distributed under real MPI; these tests run where PyTorch is installed."""

import re
import sys

import pytest

from tests.mpi.launch import SECONDS_TO_END, mpiexec, mpirun

pytest.importorskip("torch", reason="make torch runs these in an environment that has PyTorch")


def zerosim_torch(ranks, *arguments):
    return mpirun(ranks, ["-m", "zerosim", "torch", *arguments], timeout=SECONDS_TO_END)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_collective_gives_what_pytorch_promises(ranks):
    outcome = mpirun(ranks, ["-W", "ignore", "-m", "tests.torch.collectives"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("passed 25") == ranks


@pytest.mark.mpi
def test_an_unchanged_script_trains_to_the_same_losses_by_ddp_and_fsdp2():
    one, other = (zerosim_torch(4, "tests/torch/training.py", way) for way in ("ddp", "fsdp2"))
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    assert one.stdout.count("step") == 5
    assert one.stdout == other.stdout


@pytest.mark.mpi
def test_dtensor_and_schedules_have_the_recorded_answers_and_our_bytes():
    outcome = mpirun(2, ["-W", "ignore", "-m", "tests.torch.split"])
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("bytes, as due") == 12


@pytest.mark.mpi
def test_programs_of_others_compute_what_they_do_over_gloo():
    outcome = mpirun(4, ["-W", "ignore", "-m", "tests.torch.beside_gloo"])
    assert outcome.returncode == 0, outcome.stderr
    found = outcome.stdout.splitlines()
    assert [line for line in found if not line.endswith(": equal")] == []
    assert len(found) == 33


@pytest.mark.mpi
@pytest.mark.parametrize(("way", "code", "said"), [
    ("early", 3, "ValueError: planted before there is a group"),
    ("raises", 3, "ValueError: planted on rank 1"),
    ("dies", 9, "rank 1 has died"),
    ("brings_less", 3, "in the all_reduce of failing.py:25, step 1: both sides must name the same length"),
    ("brings_less_beside", 3, "in the all_reduce of failing.py:27, step 1: both sides must name the same length"),
    ("calls_another", 3, "of failing.py:29, step 1: both sides must name the same length"),
    ("leaves", 7, "rank 1 has ended by sys.exit(7) while others run"),
    ("stays_away", 3, "rank 1 computes at failing.py:31 in step 1; rank 2 waits for a message from rank 1 in the all_"),
    ("nobody_sends", 3, "rank 1 waited 2 s for a message from any rank: rank 0 "),
    ("waits_a_second", 3, "waited 1 s, the timeout of this wait, for a message from rank 0"),
    ("exits", 5, ""),
])
def test_a_rank_that_fails_ends_all(way, code, said):
    outcome = zerosim_torch(3, "tests/torch/failing.py", way)
    assert outcome.returncode == code, outcome.stderr
    assert said in outcome.stderr
    assert way != "dies" or "no rank can go on" in outcome.stderr
    assert outcome.stderr.count('  File "') == (way in ("early", "raises"))
    assert outcome.stderr.count("zerosim: ") == bool(said)


@pytest.mark.mpi
@pytest.mark.parametrize(("fault", "code", "said"), [
    ("kind=kill,rank=1,step=3", 9, r"can go on(: rank 1 has died in step 3| in step 3: rank 1 has died); rank 0"),
    ("kind=drop,rank=1,step=2,collective=reduce_scatter", 3, "both sides must name the same length"),
    ("kind=delay,rank=1,step=9,seconds=1", 1, "zerosim: a fault was not injected"),
])
def test_faults_are_injected_into_a_script(fault, code, said):
    outcome = zerosim_torch(2, "--fault", fault, "tests/torch/training.py", "fsdp2")
    assert outcome.returncode == code, outcome.stderr
    assert re.search(said, outcome.stderr)


@pytest.mark.mpi
def test_a_world_size_that_is_not_the_launchers_is_one_line():
    environment = {"RANK": "1", "WORLD_SIZE": "8", "ZEROSIM_SET_RANK": "0 of 1"}
    command = ["-n", "2", sys.executable, "-m", "zerosim", "torch", "tests/torch/training.py", "ddp"]
    outcome = mpiexec(command, timeout=SECONDS_TO_END, environment=environment)
    assert outcome.returncode == 2, outcome.stderr
    assert "the environment has RANK=1 and WORLD_SIZE=8, and the launcher started rank" in outcome.stderr
    assert outcome.stderr.count("zerosim: ") == 1
    assert "Traceback" not in outcome.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(("words", "said"), [
    ("", "passed 2"),
    ("rank=int(os.environ['RANK']), world_size=8", "of 8, and the launcher started this process as rank"),
])
def test_ranks_are_the_launchers_whatever_a_parent_was(words, said):
    """A process without a launcher sets its environment as rank 0 of 1, which those that it launches inherit."""
    script = (f"import os, torch.distributed as dist, zerosim.torch; dist.init_process_group('zerosim', {words}); "
              "print(f'passed {dist.get_world_size()}')")
    inherited = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "1", "ZEROSIM_SET_RANK": "0 of 1"}
    outcome = mpiexec(["-n", "2", sys.executable, "-c", script], timeout=SECONDS_TO_END, environment=inherited)
    assert said in outcome.stdout + outcome.stderr


@pytest.mark.mpi
@pytest.mark.parametrize(("last", "code", "said"), [
    ("pass", 0, ""),
    ("torch.zeros(1).to(5).pin_memory(); torch.cuda.set_device(5)", 2, "torch.cuda.set_device(5): --cpu has one"),
    ("torch.cuda.nvtx.range_push('a'); torch._C._cuda_setDevice(0)", 2,
     "module 'torch._C' has no attribute '_cuda_setDevice' at gpus.py:16: --cpu does not map this function of CUDA"),
])
def test_a_script_for_gpus_runs_on_the_cpu(tmp_path, last, code, said):
    script = tmp_path / "gpus.py"
    script.write_text(FOR_GPUS + last)
    outcome = zerosim_torch(2, "--cpu", str(script))
    assert outcome.returncode == code, outcome.stderr
    assert said in outcome.stderr


FOR_GPUS = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, size):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    model = torch.nn.Linear(4, 4).to(rank)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    scaler, began = torch.amp.GradScaler("cuda"), torch.cuda.Event(enable_timing=True)
    began.record()
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.stream(torch.cuda.Stream()):
        loss = model(torch.randn(2, 4, device=f"cuda:{rank}")).sum()
    scaler.scale(loss).backward()
    torch.cuda.synchronize()
    torch.load(os.devnull, map_location="cuda") if rank > 9 else dist.barrier(device_ids=[rank])
mp.spawn(work, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


def test_a_script_that_is_not_there_is_one_line():
    outcome = zerosim_torch(1, "nowhere.py")
    assert outcome.returncode == 2
    assert outcome.stderr == "zerosim: there is no script 'nowhere.py'; give a Python file after the flags\n"


@pytest.mark.mpi
def test_pytorchs_own_tests_pass():
    outcome = mpirun(4, ["-W", "ignore", "-m", "tests.torch.pytorchs_own"])
    assert outcome.returncode == 0, outcome.stderr
    last = outcome.stdout.splitlines()[-1]
    assert last.endswith(" 0 failed"), outcome.stdout
    assert int(last.split()[0]) >= 70
