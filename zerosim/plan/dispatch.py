"""The all-to-alls of experts as named dispatchers send them: a token's row once for each host, and in it for each rank.

    written    once for each chosen expert, as the model's code: Megatron's `alltoall` dispatcher as well
    deepep     once for each host that has one of them, to the rank with the sender's number there, which forwards it
               once to each rank of the host that has one; hybridep does the same. Outputs are added on their way back

Bytes are expectations: a token chooses different ones of `experts` that are equally likely. Source:
deepseek-ai/DeepEP, csrc/kernels, internode.cu (`is_token_in_rank`, `num_tokens_per_rdma_rank`) and intranode.cu; its
branch hybrid-ep.

With `overlap_experts` an all-to-all runs beside the computation of another micro-batch, up to the next all-to-all
(Megatron's --overlap-moe-expert-parallel-comm), and occupies multiprocessors meanwhile.
"""

from dataclasses import dataclass
from math import comb

from zerosim.plan.cluster import Cluster
from zerosim.scenario.machine import ClusterKeys
from zerosim.scenario.sections import ModelKeys
from zerosim.training.config import Config


@dataclass(frozen=True)
class Dispatch:
    """The experts of a model, the direction over which they are cut, and how their rows travel."""

    direction: str = ""
    experts: int = 1
    chosen: int = 1
    once: bool = False
    """Whether a row travels once for each host and rank, not for each expert."""
    beside: bool = False
    """Whether all-to-alls run beside the computation of another micro-batch."""

    def reached(self, groups: int) -> float:
        """The mean number of `groups` equal groups of experts in which a token has one of its own.

        >>> Dispatch(experts=4, chosen=2).reached(2)
        1.6666666666666667
        """
        elsewhere = comb(self.experts - self.experts // groups, self.chosen)
        return groups * (1 - elsewhere / comb(self.experts, self.chosen))

    def sent_bytes(self, cluster: Cluster, ranks: int, queued_bytes: int) -> tuple[float, float]:
        """The bytes that a rank sends inside its host and to other hosts; `queued_bytes` has a row for each expert.

        >>> from zerosim.plan.cluster import Device, Link
        >>> two = Cluster(Device("", 1, 1, 1), 2, Link("", 0, 1), Link("", 0, 1), pipelined=True, fused=False)
        >>> [round(each) for each in Dispatch(experts=4, chosen=2).sent_bytes(two, 4, 1200)]
        [600, 500]
        """
        row_bytes, near = queued_bytes / self.chosen, min(cluster.devices_per_host, ranks)
        hosts = ranks // near
        inside, between = (row_bytes * self.reached(groups) * (each - 1) / each
                           for groups, each in ((ranks, near), (hosts, hosts)))
        return inside, between

    def ns(self, cluster: Cluster, ranks: int, queued_bytes: int) -> int:
        """The time of a dispatch, or of what returns: the slower of the links inside and between hosts."""
        inside, between = self.sent_bytes(cluster, ranks, queued_bytes)
        near = min(cluster.devices_per_host, ranks)
        return max(cluster.inside.message_ns(round(inside)),
                   cluster.links(ranks)[-1].message_ns(round(near * between)) if between else 0)


def dispatch_of(config: Config, cluster: Cluster) -> Dispatch:
    """How the rows of a model's experts travel."""
    cuts = [place.parameter.cut for place in config.model.places if place.name.endswith(".outer")]
    model = config.keys
    if model.kind != "mixture" or not cuts or cuts[0] is None:
        return Dispatch()
    return Dispatch(cuts[0].direction.name, model.experts, model.experts_per_token,
                    bool(cluster.dispatcher), cluster.overlap_experts)


def dispatch_problem(model: ModelKeys, keys: ClusterKeys) -> str:
    """The reason why a plan has no such dispatch; empty if it has."""
    asked = "dispatcher" if keys.dispatcher else "overlap_experts" if keys.overlap_experts else ""
    if asked and model.kind != "mixture":
        return f"cluster.{asked} is for model.kind mixture, and this is {model.kind}; leave it out"
    if keys.dispatcher and keys.collectives == "written":
        return "cluster.dispatcher sends no messages as written; set cluster.collectives to pipelined"
    return ""
