"""Software as part of the machine: what it adds to a plan's time and memory, and figures of devices set anew."""

import pytest

import zerosim as zs
from zerosim.plan.cluster import HOST_BYTES_PER_SECOND, Device, machines, software_of
from zerosim.plan.rehearsal import rehearse
from zerosim.plan.software import WHOLE_SCORES
from zerosim.scenario.machine import ClusterKeys

SMALL = {
    "world.ranks": 8, "train.micro_batches": 8, "model.layers": 2, "model.sequence": 2048, "parallel.stages": ["zero3"],
    "check.fits": [], "check.does_not_fit": [], "check.mfu": [], "parallel.recompute": False,
}
SCORES = 2048 * 128256


def shown(more=(), **cluster):
    keys = {f"cluster.{name}": value for name, value in cluster.items()} | dict(more)
    return zs.plan("llama3_8b", set={**SMALL, **keys})


def row(*more, **cluster):
    (found,) = shown(more, **cluster).subject.rows
    return found


def test_eager_is_slower_and_keeps_more_than_compiled_and_that_more_than_fused():
    eager, compiled, fused = (row(software=name) for name in ("eager", "compiled", "fused"))
    assert eager.step_seconds > compiled.step_seconds > fused.step_seconds
    assert eager.peak_bytes > compiled.peak_bytes > fused.peak_bytes


def test_a_whole_loss_has_up_to_eight_bytes_more_of_each_score_and_a_chunked_one_has_none():
    usual, whole, compiled, chunked = (row(loss=name) for name in ("", "whole", "compiled", "chunked"))
    assert whole.peak_bytes - compiled.peak_bytes >= 3 * SCORES
    assert 3 * SCORES <= whole.peak_bytes - usual.peak_bytes <= WHOLE_SCORES * SCORES
    assert usual.peak_bytes - chunked.peak_bytes >= 2 * SCORES


def test_attention_keeps_five_bytes_of_each_score_as_korthikanti_counts_them():
    shorter, longer = (row(("model.sequence", tokens), software="megatron").rehearsal.peak["activations"]
                       for tokens in (2048, 4096))
    assert longer - 2 * shorter == 2 * 5 * 32 * (4096**2 - 2 * 2048**2)          # of 2 layers, 32 heads


def test_recomputation_of_a_block_stops_before_its_last_product():
    plain, again, deeper = (row(*keys).rehearsal.clock.counts["computing"]["forward"] for keys in (
        [], [("parallel.recompute", True)], [("model.layers", 4)]))
    assert 0 < again - plain < deeper - plain


def test_an_allocators_reserve_is_a_share_of_the_peak_and_no_more_than_the_device_has():
    assert row().reserved_bytes == row().peak_bytes
    found = row(reserve=0.5)
    assert found.reserved_bytes == round(1.5 * found.peak_bytes)
    full = row(reserve=9.0, figures={"memory": 2e10})
    assert full.reserved_bytes == 20_000_000_000
    assert full.fits


def test_a_plan_says_its_software_and_what_it_leaves_of_the_device():
    assert "allocator" not in str(shown())
    words = " ".join(str(shown(software="eager")).split())
    assert "10% of the peak in the allocator's reserve" in words
    assert "software: PyTorch's kernels one by one" in words
    assert "GB to spare, and the allocator holds" in words


def test_an_optimizer_on_the_host_leaves_its_memory_and_takes_longer():
    device, host = row(), row(("parallel.offload_optimizer", "host"))
    states = device.rehearsal.resting["optimizer"]
    assert host.rehearsal.resting["optimizer"] == host.rehearsal.resting["gradients"] == 0
    assert host.host_bytes >= states + states // 6
    assert device.peak_bytes - host.peak_bytes >= states
    moved = 2 * (states + states // 6) + states // 6     # states have 12 bytes of a parameter, weights and gradient 2
    assert host.seconds["update"] == pytest.approx(moved / HOST_BYTES_PER_SECOND, rel=1e-3)


def test_attention_has_its_rate_on_long_sequences_and_half_of_it_on_short_ones():
    device = Device("", 1e12, 1, 1, attention={"flash2": 0.5})
    half, whole = device.attention_ns(10**12, 300, "flash2"), device.attention_ns(10**12, 10**9, "flash2")
    assert half == pytest.approx(2 * whole)
    assert whole == pytest.approx(1e9)                   # the half that is not behind the mask, at half of the peak
    assert device.attention_ns(10**12, 300, "flash3") == 1e9


def test_a_figure_of_a_named_device_can_be_set():
    assert row(figures={"memory": 1e9}).missing_bytes == row().peak_bytes - 10**9


def test_8_bits_with_a_scale_for_each_row_are_slower_than_with_one_for_an_array():
    """github.com/pytorch/torchtitan pull request 808: 5,760 tokens a second in 16 bits, 6,468 and 7,186 in 8."""
    keys = {"model.layers": 32, "model.sequence": 8192, "train.precision": "fp32", "parallel.param_dtype": "bf16",
            "parallel.reduce_dtype": "fp32", "parallel.recompute": list(range(1, 33)),
            "parallel.recompute_keeps": "half_products"}
    published = {"weights": 5760, "fp8_rowwise": 6468, "fp8": 7186}
    found = {products: row(*keys.items(), device="h100_96gb", software="compiled", kernels="fused", products=products)
             .tokens_per_second for products in published}
    assert found == pytest.approx(published, rel=0.15)
    assert found["weights"] < found["fp8_rowwise"] < found["fp8"]


def test_a_step_of_the_optimizer_has_room_beside_its_operands():
    tiny = ("model.layers", 1), ("model.sequence", 32)
    with_room, without = (row(*tiny, software=name, loss="chunked") for name in ("eager", "fused"))
    parameters = with_room.config.model.count / 8
    assert with_room.rehearsal.resting == without.rehearsal.resting
    assert with_room.rehearsal.peak["buffers"] >= (4 + 4) * parameters * 0.99


@pytest.mark.parametrize("device", machines()["device"])
def test_every_device_has_a_plan_with_launches_and_links(device):
    assert machines()["device"][device]["launch_ns"] > 0
    few = ("model.layers", 1), ("model.sequence", 64), ("world.ranks", 1), ("train.micro_batches", 1)
    found = row(*few, device=device, kernels="fused", figures={"launch_ns": 1e6})
    assert found.cluster.device.launch_ns == 1e6
    assert found.step_seconds > row(*few, device=device, kernels="fused").step_seconds > 0


def test_software_with_the_kernels_of_another_has_its_rate():
    assert {software_of(ClusterKeys(device="a100_80gb", software=name)).products
            for name in ("deepspeed", "deepspeed_bf16")} == {0.72}


STAGE_I = {"parallel.stages": ["zero1"], "parallel.overlap": True}


def test_software_waits_for_reductions_at_its_update_and_gathers_weights_beside_the_next_forward(monkeypatch):
    def found(ahead):
        monkeypatch.setitem(machines()["software"]["fused"], "ahead", ahead)
        return row(*STAGE_I.items(), software="fused")

    ahead, waiting = found(True), found(False)
    clock = ahead.rehearsal.clock
    gathered, forward = clock.counts["communicating"]["all_gather"], clock.counts["computing"]["forward"]
    exposed = [found.seconds["exposed_communication"] for found in (waiting, ahead)]
    assert exposed[0] - exposed[1] >= min(gathered, forward) / 1e9 > 0
    assert ahead.step_seconds >= ahead.seconds["compute"] + ahead.seconds["update"] + max(gathered - forward, 0) / 1e9


def test_collectives_that_last_longer_than_the_passes_beside_them_are_waited_for():
    slow = {"devices_per_host": 1, "between": {"latency_us": 1, "gigabytes_per_second": 0.1}}
    planned = row(*STAGE_I.items(), software="fused", **slow)
    clock = planned.rehearsal.clock
    sent, computed = clock.counts["communicating"], clock.counts["computing"]
    assert clock.exposed_ns >= sum(sent.values()) - computed["forward"] - computed["backward"]
    clock = rehearse(planned.config, planned.cluster, traced=True).clock
    reduced = max(span.end_ns for span in clock.spans if span.what == "reduce_scatter")
    assert min(span.end_ns for span in clock.spans if span.what == "update") >= reduced


def test_software_that_keeps_what_a_pipeline_has_sent_and_buffers_of_its_own_has_more_memory():
    layout = {"parallel.stages": ["zero1"], "parallel.pipeline_ranks": 4, "train.micro_batches": 16}
    before, after = (row(*layout.items(), software=name) for name in ("megatron", "deepspeed"))
    sent = 2 * 2048 * 4096                               # bytes of an activation, of which the first rank keeps four
    held, kept = (found.rehearsal.stages[0].peak["activations"] for found in (before, after))
    assert 4 * sent <= kept - held <= 5 * sent
    assert after.reserved_bytes == round(1.1 * after.peak_bytes + after.rehearsal.resting["optimizer"] / 2 + 1e9)
