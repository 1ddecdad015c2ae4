"""PyTorch's own tests of its collectives and of DDP, over the backend: those that run on CPUs.

Run as `mpirun -n 4 python -m tests.torch.pytorchs_own`. Each test has groups of its own; a line says what came of it.
"""

import os
import re
import sys
import tempfile
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

import zerosim.torch  # noqa: F401 - registers the backend
from zerosim.worlds.mpi import connect
from zerosim.worlds.objects import broadcast_object, gather_objects

comm = connect()
folder = broadcast_object(comm, tempfile.mkdtemp() if comm.rank == 0 else None)
if comm.rank == 0:
    for each in ("barrier", "test_dir"):
        (Path(folder) / each).mkdir()
os.environ.update(BACKEND="zerosim", WORLD_SIZE=str(comm.size), TEMP_DIR=folder)

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.common_distributed import TEST_SKIPS, DistTestCases  # noqa: E402
from torch.testing._internal.common_utils import set_rng_seed  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

os.environ["BACKEND"] = "mpi"  # read later, by decorators alone: tests of groups need 8 ranks unless they are MPI's
for feature in ("ddp", "subgroup"):
    DistTestCases.backend_feature[feature].add("zerosim")

REASONS = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
SELECTED = re.compile(
    r"test_(get_rank.*|new_subgroups.*|coalescing_manager.*|isend|irecv|send_recv(_any_source|_with_tag)?|broadcast(_group|_full_group|_object_list)?"
    r"|reduce_.*|all_reduce_.*|scatter.*|gather.*|all_gather.*|all_to_all.*|barrier(_group|_full_group)?"
    r"|average_parameters|DistributedDataParallelCPU.*|get_future|ddp_hook_parity_.*"
    r"|ddp_hook_with_optimizer_parity_.*|ddp_sync_module_states|static_graph_api_cpu|ddp_join_model_equivalence"
    r"|ddp_uneven_inputs|grads_same_across_ranks_with_no_sync|ddp_broadcast_buffer|output_unused_in_loss_.*)")
NOT_FOR_CPUS = re.compile("cuda|nccl|profiler")


class Case(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        """Ranks are there already."""

    def tearDown(self):
        """Nothing was started."""


def outcome_of(name):
    """passed, skipped, or the last line of what went wrong on this rank."""
    dist.init_process_group(
        "zerosim", timeout=timedelta(seconds=60), store=dist.PrefixStore(name, store), rank=comm.rank,
        world_size=comm.size)
    try:
        case = Case(name)
        case.rank = comm.rank
        set_rng_seed(0)
        getattr(case, name)()
    except unittest.SkipTest as reason:
        return f"skipped: {reason}"
    except SystemExit as code:
        return f"skipped: {REASONS.get(code.code, code.code)}"
    except BaseException as error:
        if "-v" in sys.argv and comm.rank == 0:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "passed"


store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), comm.size, comm.rank == 0)
found = {}
names = [name for name in dir(Case) if SELECTED.fullmatch(name) and not NOT_FOR_CPUS.search(name)]
for name in [name for name in names if not sys.argv[1:] or name in sys.argv[1:]]:
    outcomes = gather_objects(comm, outcome_of(name))
    if comm.rank == 0:
        worst = next((each for each in outcomes if each != "passed" and not each.startswith("skipped")), outcomes[0])
        found[name] = worst
        print(f"{name}: {worst}", flush=True)
if comm.rank == 0:
    count = {word: sum(each.startswith(word) for each in found.values()) for word in ("passed", "skipped")}
    failed = len(found) - sum(count.values())
    print(f"{count['passed']} passed, {count['skipped']} skipped, {failed} failed")
