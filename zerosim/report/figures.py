"""Figures of a run that several tables, sentences and pictures print."""

from collections.abc import Mapping

from zerosim.sharding import padded
from zerosim.verdict.outcome import Outcome, RankMemory, TrainedRow
from zerosim.words import FAR, ByteUnit, common_unit, spread


def sent_per_step(stage: TrainedRow, collective: str | None = None) -> list[int]:
    """The bytes that each rank sends in a step, ascending: by all collectives, or by one."""
    counts = [rank.counts for rank in stage.traffic]
    sent = [
        each.sent_bytes if collective is None else each.by_collective.get(collective, {}).get("sent_bytes", 0)
        for each in counts
    ]
    return sorted(each // steps_of(stage) for each in sent)


def messages_per_step(stage: TrainedRow) -> str:
    """The number of messages that a rank sends in a step; if ranks differ, the fewest and the most."""
    messages = sorted(rank.counts.messages // steps_of(stage) for rank in stage.traffic)
    return spread(str(each) for each in messages)


def steps_of(stage: TrainedRow) -> int:
    """The number of steps over which the figures of a run are averaged."""
    return max(stage.config.steps_here, 1)


def fullest(stage: TrainedRow) -> RankMemory:
    """The memory of the rank with the highest peak."""
    return max(stage.memory, key=lambda rank: rank.figures.peak_bytes["total"])


def far_kept(memory: RankMemory, tier: str) -> dict[str, int]:
    """The bytes of each kind that a rank keeps in another tier than the device: see `kept_in`."""
    return kept_in(tier, memory.figures.far_resting_bytes, memory.figures.offloaded_bytes)


def far_kept_as_due(memory: RankMemory, tier: str) -> bool:
    """Whether these bytes equal the formula's."""
    due = kept_in(tier, memory.due.far_resting_bytes, memory.due.offloaded_bytes)
    return far_kept(memory, tier) == due


def kept_in(tier: str, states: Mapping[str, Mapping[str, int]], activations: int) -> dict[str, int]:
    """The bytes of a tier by kind: model states between steps, and offloaded activations at the peak on disk.

    >>> kept_in("disk", {"host": {"gradients": 8}, "disk": {"optimizer": 16}}, 5)
    {'optimizer': 16, 'activations': 5}
    """
    found = {**states.get(tier, {}), "activations": activations * (tier == "disk")}
    return {kind: count for kind, count in found.items() if count}


def far_tiers(outcome: Outcome) -> list[str]:
    """The tiers other than the device in which some row keeps bytes."""
    return [tier for tier in FAR if any(far_kept(fullest(stage), tier) for stage in outcome.trained)]


def gathering_bytes(outcome: Outcome) -> int:
    """The bytes that a rank sends in one all-gather of all weights, padding included."""
    ranks = outcome.scenario.world.ranks
    count = sum(padded(unit.count, ranks) for unit in outcome.model.units)
    return count * element_bytes(outcome) * (ranks - 1) // ranks


def element_bytes(outcome: Outcome) -> int:
    """The bytes of one weight."""
    return outcome.experiment.rows[0].precision.weights.itemsize


def sent_in_units(outcome: Outcome, stage: TrainedRow) -> float:
    """The volume of a step in all-gathers of all weights, the mean over ranks: by formula if it holds, else counted."""
    if all(rank.holds for rank in stage.traffic):
        return stage.volume
    return mean_sent(stage) / max(gathering_bytes(outcome), 1)


def mean_sent(stage: TrainedRow) -> int:
    """The counted bytes that a rank sends in a step: the mean over ranks and steps."""
    messages = sum(rank.counts.sent_bytes for rank in stage.traffic)
    return messages // (len(stage.traffic) * steps_of(stage))


def memory_unit(outcome: Outcome) -> ByteUnit:
    """The unit for all bytes of a run, chosen by the highest peak."""
    return common_unit(max(fullest(stage).figures.peak_bytes["total"] for stage in outcome.trained))
