"""The keys of [parallel] for the ranks that share and those that hold copies: the conditions that they must satisfy."""

from collections.abc import Sequence

from zerosim.errors import ScenarioError
from zerosim.scenario.origin import Origin
from zerosim.scenario.sections import Parallel

ALL_AT_ONCE = ("exact", "two_level", "two_hop")
ON_HOSTS = ("two_level", "two_hop")
"""The orders without groups of ranks, or with groups of their own."""


def check_groups(
    parallel: Parallel, ranks: int, per_host: int, other_ranks: Sequence[int], origin: Origin
) -> None:
    """Raises `ScenarioError` if groups do not divide the ranks, or two keys contradict each other.

    `other_ranks` are the numbers of ranks that the scenario is run on besides `ranks`.
    """
    otherwise = {"shard_ranks": "for one group of all ranks", "replicas": "for as many as shard_ranks makes",
                 "secondary_ranks": "for no second copy"}
    for key, instead in otherwise.items():
        check_divides(key, getattr(parallel, key), (ranks, *other_ranks), instead, origin)
    check_product(parallel, (ranks, *other_ranks), origin)
    grouped = parallel.group_of(ranks) != ranks
    key = "shard_ranks" if parallel.shard_ranks else "replicas"
    group = f"{key} = {getattr(parallel, key)}"
    if parallel.secondary_ranks:
        if grouped:
            raise no_copy(f"of weights that all ranks share, but {group} makes groups", key, origin)
        check_second_copy(parallel, per_host, origin)
    if grouped and parallel.order in ALL_AT_ONCE:
        raise origin.error(
            f"parallel.{group} makes several groups, but order {parallel.order} adds all ranks at once; set order to "
            f"ring, rank or tree, or {key} to 0", ("parallel", key), ("parallel", "order"))


def check_divides(key: str, group: int, numbers: Sequence[int], otherwise: str, origin: Origin) -> None:
    for ranks in numbers:
        if group and ranks % group:
            divisors = ", ".join(str(each) for each in range(1, min(ranks, 64) + 1) if ranks % each == 0)
            raise origin.error(
                f"parallel.{key} = {group} does not divide {ranks} ranks; give a divisor ({divisors}), or 0 "
                f"{otherwise}", ("parallel", key), ("world", "ranks"))


def check_product(parallel: Parallel, numbers: Sequence[int], origin: Origin) -> None:
    product = parallel.shard_ranks * parallel.replicas
    for ranks in numbers:
        if product not in (0, ranks):
            raise origin.error(
                f"parallel.shard_ranks = {parallel.shard_ranks} times replicas = {parallel.replicas} is {product}, "
                f"but world.ranks is {ranks}; remove one of them",
                ("parallel", "shard_ranks"), ("parallel", "replicas"), ("world", "ranks"))


def check_second_copy(parallel: Parallel, per_host: int, origin: Origin) -> None:
    secondary = parallel.secondary_ranks
    if parallel.all_gather:
        raise no_copy("that a ring gathers, but all_gather names another algorithm", "all_gather", origin)
    if not parallel.reshard_after_forward:
        raise no_copy("for backward to gather from, but reshard_after_forward = false needs none",
                      "reshard_after_forward", origin)
    if parallel.order in ON_HOSTS and secondary % per_host and per_host % secondary:
        raise no_copy(f"over {secondary} ranks, but order {parallel.order} needs a divisor or a multiple of "
                      f"{per_host}, the ranks of a host", "order", origin)


def no_copy(why: str, key: str, origin: Origin) -> ScenarioError:
    return origin.error(f"parallel.secondary_ranks keeps a second copy {why}; remove one of them",
                        ("parallel", "secondary_ranks"), ("parallel", key))
