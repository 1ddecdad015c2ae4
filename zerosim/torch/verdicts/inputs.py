"""Judges the inputs of a step: no two ranks may train on one batch, and none may have fewer micro-batches."""

from dataclasses import dataclass
from typing import Any

from zerosim.torch.verdicts.findings import NOT_JUDGED, SAME_BITS, Book
from zerosim.torch.verdicts.reference import ForwardCall, digest


@dataclass(frozen=True)
class Given:
    """A micro-batch as the other ranks see it; `digest` is empty for inputs without data, such as constants."""

    digest: str
    line: str
    backward_line: str
    chances: str
    """The digest of the state of the random numbers; empty if no Dropout draws any."""


def given(call: ForwardCall, draws: bool) -> Given:
    return Given(call.digest, call.line, call.backward_line, digest([call.chances.cpu]) if draws else "")


def judge_samplers(book: Book, of_all: list[list[dict[str, Any]]], peers: list[int], step: int) -> None:
    """Compare the samplers of equal data that have begun an epoch on all ranks."""
    for row in zip(*of_all, strict=False):
        first = row[0]
        for rank, each in zip(peers, row, strict=True):
            key = next((key for key in ("num_replicas", "seed", "epoch") if each[key] != first[key]), "")
            if key and each["samples"] == first["samples"]:
                book.find("inputs", step, rank, "the same samples",
                          f"the DistributedSampler has {key}={each[key]}, and {first[key]} on rank {peers[0]}: the "
                          "ranks draw shares of different orders, which overlap", line=each["line"])
                return
        if first["num_replicas"] > len(peers):
            book.observe("samples", f"DistributedSampler has num_replicas={first['num_replicas']} for {len(peers)} "
                         "ranks: a part of the samples is never drawn", line=first["line"])


def judge(book: Book, of_all: list[list[Given]], peers: list[int], step: int, repeated: str,
          rows: list[list[int]]) -> bool:
    """Compare the micro-batches of all ranks; `of_all[k]` are those of rank `peers[k]`.

    `repeated` is the line where a sampler began an epoch for the second time. The ranks in `rows[k]` must have the
    samples of rank `peers[k]`; false if they do not.
    """
    if repeated:
        book.find("inputs", step, peers[0], "the same samples every epoch",
                  "a DistributedSampler gives the samples of an earlier epoch again: call sampler.set_epoch(epoch)",
                  line=repeated)
    counts = [len(calls) for calls in of_all]
    if len(set(counts)) > 1:
        few = counts.index(min(counts))
        book.find("inputs", step, peers[few], "a rank with fewer micro-batches",
                          f"ranks {peers} have {counts} micro-batches",
                  line=of_all[few][-1].line if of_all[few] else "")
    for number, row in enumerate(zip(*of_all, strict=False), 1):
        for rank, each, due in zip(peers, row, rows, strict=True):
            if each.digest != row[peers.index(due[0])].digest:
                book.find("inputs", step, rank, "different samples in a tensor-parallel group",
                          f"ranks {', '.join(map(str, due))} hold parts of the same layers and were given different "
                          f"batches (micro-batch {number}): the sampler and the seed must depend on the data-parallel "
                          "rank only", line=each.line)
                return False
        heads = [index for index, due in enumerate(rows) if peers[index] == due[0]]
        digests = [each.digest for index, each in enumerate(row) if index in heads]
        if len(heads) > 1 and row[0].chances and all(row[index].chances == row[0].chances for index in heads):
            book.observe("dropout", "Dropout drops the same elements on all ranks: their seeds are equal",
                         line=row[0].line)
        same = [index for index, each in enumerate(digests) if each and digests.count(each) > 1]
        if same:
            among = [peers[heads[index]] for index in same if digests[index] == digests[same[0]]]
            book.find("inputs", step, among[1], "the same samples",
                f"ranks {', '.join(map(str, among))} were given the same batch (micro-batch {number}): is there a "
                "DistributedSampler, or a seed that depends on the rank?", line=row[heads[same[1]]].line)
            return True
    if any(each.digest for calls in of_all for each in calls):
        book.judge("inputs", SAME_BITS, "all batches of all ranks differ")
    else:
        book.judge("inputs", NOT_JUDGED, "the models have no tensors of data as inputs")
    return True
