"""What is kept and sent of tuned models: states in few bits, adapters beside frozen weights, DeepSpeed's buffers."""

import pytest

import zerosim as zs
from zerosim.plan.cluster import Cluster, Device, Link
from zerosim.plan.directions import all_to_all_ns

ALONE = {"model.layers": 2, "world.ranks": 1, "train.micro_batches": 1, "parallel.stages": ["ddp"], "check.mfu": [],
         "model.sequence": 512, "check.fits": [], "check.does_not_fit": [], "cluster.software": "eager"}
BLOCK = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
OTHERS = 2 * 128256 * 4096 + 5 * 4096
ADAPTERS = 2 * 16 * (2 * 8192 + 2 * (4096 + 1024) + 3 * (4096 + 14336))


def row(**keys):
    (planned,) = zs.plan("llama3_8b", set=ALONE | {key.replace("__", "."): value for key, value in keys.items()}).rows()
    return planned


@pytest.mark.parametrize(("keys", "weights", "gradients", "states"), [
    ({}, 2, 2, 12), ({"train__precision": "bf16_alone"}, 2, 2, 4),
    ({"cluster__optimizer_dtype": "int8"}, 2, 2, 4 + 2.03125),
    ({"train__precision": "bf16_alone", "cluster__optimizer_dtype": "int8"}, 2, 2, 2.03125)])
def test_states_have_the_bytes_of_their_precision(keys, weights, gradients, states):
    count, planned = 2 * BLOCK + OTHERS, row(**keys)
    assert [planned[f"resting_{kind}_bytes"] / count for kind in ("parameters", "gradients", "optimizer")] == [
        pytest.approx(each, rel=1e-6) for each in (weights, gradients, states)]


@pytest.mark.parametrize(("dtype", "each"), [("weights", 2), ("int8", 1), ("nf4", 0.5)])
def test_adapters_alone_have_gradients_and_states(dtype, each):
    planned, whole = row(cluster__adapter_rank=16, cluster__frozen_dtype=dtype), row()
    assert planned["resting_gradients_bytes"] == pytest.approx(2 * ADAPTERS, rel=1e-6)
    assert planned["resting_optimizer_bytes"] == pytest.approx(12 * ADAPTERS, rel=1e-6)
    assert planned["resting_parameters_bytes"] == pytest.approx(2 * BLOCK * each + 2 * OTHERS + 2 * ADAPTERS, rel=1e-6)
    assert planned["peak_bytes"] < whole["peak_bytes"]
    assert planned["step_seconds"] < whole["step_seconds"]


def test_adapters_send_less_and_buffers_take_memory():
    four = {"world__ranks": 4, "train__micro_batches": 4, "parallel__stages": ["zero3"]}
    whole, tuned = row(**four), row(**four, cluster__adapter_rank=16)
    assert tuned["sent_bytes"] < 0.7 * whole["sent_bytes"]
    buffers = row(**four, cluster__bucket_elements=10**8, cluster__live_parameters=0)
    assert buffers["peak_bytes"] == whole["peak_bytes"] + 2 * 2 * 10**8


def test_copies_for_one_host_leave_once():
    cluster = Cluster(Device("", 1, 1, 1), 2, Link("", 0, 1e12), Link("", 0, 1e9), pipelined=True, fused=False)
    plain, sliced, once = (all_to_all_ns(cluster, 4, 1000, *more) for more in ((), (2,), (1, 2)))
    assert (plain, sliced, once) == (4000, 2001, 3000)
