"""Judges the inputs of a step and the state of all ranks before its update.

No two ranks may train on one batch, and none may have fewer micro-batches. Weights, hyperparameters and frozen
parameters must be alike, and gradients cleared.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from zerosim.torch.verdicts.findings import NOT_JUDGED, SAME_BITS, Book
from zerosim.torch.verdicts.ranks import CheckRanks
from zerosim.torch.verdicts.reference import ForwardCall, digest
from zerosim.torch.verdicts.session import Followed, Session, parameters_of
from zerosim.torch.verdicts.trainers import TrainerFacts


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


def judge_inputs(book: Book, of_all: list[list[Given]], peers: list[int], step: int, repeated: str,
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


@dataclass
class Facts:
    """The facts of one rank about a model before its update."""

    names: dict[str, tuple[int, ...]]
    calls: list[Given]
    weights: dict[str, str]
    """Digests of the parameters that are not sharded."""
    trains: dict[str, bool]
    gradients: dict[str, bool]
    """For each parameter of the optimizer, whether it has a gradient."""
    hyperparameters: list[dict[str, Any]]
    shards: dict[str, tuple[str, bool]]
    """Each sharded parameter's digest before sharding, and whether its shard is still the same."""
    wrapping_line: str
    obstacles: list[str]
    cleared: bool
    zeroed: bool
    drops: list[tuple[int, str]]
    """Gradients that were cleared unused: the number of the backward, and the line."""
    emptied: str
    """The line that has cleared all gradients after the last backward."""
    untied: list[str]
    strange: list[tuple[int, ...]]
    alike: str
    """The digest of the gradients that are not sharded."""
    buffers: dict[str, str]
    """Digests of the buffers before the first forward; empty in later steps."""
    samplers: list[dict[str, Any]]
    scheduled: int
    unscaled: bool
    """Whether the gradients are free of a GradScaler's factor."""
    line: str
    row: list[int]
    """The ranks that share this one's samples, with it."""

    @property
    def before_training(self) -> tuple[dict[str, str], dict[str, str]]:
        """The digests of all weights, and of those that are sharded before they were."""
        return self.weights, {name: whole for name, (whole, _) in self.shards.items()}


@dataclass
class Settings:
    """Judges them in each step."""

    last_drop: tuple[int, str] = (0, "")
    """The first step of a row in which gradients were cleared unused, and the line."""

    def judge(self, book: Book, told: list[Facts], peers: list[int], trainer: TrainerFacts, step: int,
              first: int) -> bool:
        """True if the ranks train models of their own, without a trainer: nothing else is judged then."""
        if self.weights(book, told, peers, trainer, step, first):
            return True
        self.hyperparameters(book, told, peers, step)
        self.cleared(book, told, peers, step)
        self.once(book, told, peers, step)
        return False

    def once(self, book: Book, told: list[Facts], peers: list[int], step: int) -> None:
        """Judge parameters outside the model, ties, and schedulers."""
        first = told[0]
        if first.strange:
            book.find("parameters", step, peers[0], "an unregistered parameter",
                      f"the forward uses a parameter of shape {first.strange[0]} that belongs to no module of the "
                      "model and to no optimizer (a list instead of nn.ModuleList?)", line=first.calls[0].line)
        if first.untied:
            book.find("tied weights", step, peers[0], "tied weights are no longer tied",
                      f"{' and '.join(first.untied)} were one parameter when the model was wrapped, and are two",
                      first.untied[1], prod(first.names[first.untied[1]]), first.wrapping_line)
        elif not any(each.untied for each in told):
            book.judge("tied weights", SAME_BITS, "no weight was untied by sharding")
        micro = max(len(each.calls) for each in told)
        if first.scheduled > 1 and first.scheduled in (len(peers), micro):
            book.find("update", step, peers[0], "a scheduler stepped several times",
                      f"scheduler.step() was called {first.scheduled} times since the last update", line=first.line)

    def weights(self, book: Book, told: list[Facts], peers: list[int], trainer: TrainerFacts, step: int,
                first: int) -> bool:
        what = "initial weights" if step == first else "replicas"
        size = {name: prod(shape) for name, shape in told[0].names.items()}
        for name, due in told[0].weights.items():
            other = next((rank for rank, each in zip(peers, told, strict=True) if each.weights[name] != due), None)
            if other is None:
                continue
            own = any(each.alike != told[0].alike for each in told)
            if own and trainer.name == "no trainer" and step == first:
                book.judge(what, NOT_JUDGED, "each rank has a model of its own, without a trainer")
                return True
            if not book.findings:
                cause = "other initial weights" if step == first else "replicas have drifted apart"
                book.find(what, step, other, cause, f"{name} has different bits than on rank {peers[0]}", name,
                                  size[name], told[0].line)
            return False
        for name, due in told[0].buffers.items():
            apart = [rank for rank, each in zip(peers, told, strict=True) if each.buffers.get(name, due) != due]
            if apart:
                book.find(what, step, apart[0], "other initial weights",
                          f"the buffer {name} has different bits than on rank {peers[0]}", name, line=told[0].line)
                return False
        for name, (due, _) in told[0].shards.items():
            apart = [rank for rank, each in zip(peers, told, strict=True) if each.shards[name][0] != due]
            if apart and step == first and all(each.shards[name][1] for each in told):
                book.find("initial weights", step, apart[0], "other initial weights",
                    f"{name} was initialised with other values than on rank {peers[0]}, and sharding does not "
                    f"broadcast: the model is a patchwork of {len(peers)} initialisations", name, size.get(name, 0),
                    told[0].wrapping_line)
                return False
        book.judge(what, SAME_BITS, "all ranks hold the same bits" if told[0].weights else "sharded from equal ones")
        return False

    def hyperparameters(self, book: Book, told: list[Facts], peers: list[int], step: int) -> None:
        first = told[0]
        for rank, each in zip(peers, told, strict=True):
            for mine, theirs in zip(each.hyperparameters, first.hyperparameters, strict=False):
                other = next((key for key in theirs if mine.get(key) != theirs[key]), None)
                if other is not None:
                    named = "another learning rate on a rank" if other == "lr" else f"another {other} on a rank"
                    book.find("update", step, rank, named,
                                      f"{other} is {mine.get(other)}, and {theirs[other]} on rank {peers[0]}",
                                      line=each.line)
            name = next((name for name, on in each.trains.items() if on != first.trains[name]), None)
            if name is not None:
                book.find("parameters", step, rank, "a parameter is frozen on one rank",
                                  f"{name} has requires_grad={each.trains[name]}, and {first.trains[name]} on rank "
                                  f"{peers[0]}", name, prod(first.names[name]), line=each.line)

    def cleared(self, book: Book, told: list[Facts], peers: list[int], step: int) -> None:
        """A gradient that is cleared unused in one step may be a choice; in each step it is lost."""
        for rank, each in zip(peers, told, strict=True):
            if not each.cleared:
                loop = each.zeroed
                book.find("gradient", step, rank, "step in the loop" if loop else "zero_grad is missing",
                          "gradients of the last update were not cleared before backward added to them" +
                          (": optimizer.step() runs more often than zero_grad" if loop else ""), line=each.line)
                return
            if each.emptied:
                book.find("gradient", step, rank, "no gradient",
                          "zero_grad between backward and optimizer.step() clears it unused", line=each.emptied)
                return
            if each.drops:
                line = each.drops[0][1]
                if len(each.drops) > 1 or self.last_drop[1] == line:
                    book.find("gradient", self.last_drop[0] or step, rank, "gradient of the last micro-batch only",
                        "zero_grad in the loop clears the gradients of earlier micro-batches", line=line)
                self.last_drop = (self.last_drop[0] or step, line)
                return
        self.last_drop = (0, "")

    def strangers(self, book: Book, session: Session, followed: Followed, ranks: CheckRanks) -> None:
        """An optimizer of parameters that no model has."""
        idle = all(each.grad is None for each in parameters_of(followed.optimizer))
        trains = [call for model in session.models for call in model.calls if call.backward]
        sharded = any(hasattr(p, "to_local") for model in session.models for p in model.parameters().values())
        if all(ranks.everyone(idle and bool(trains) and sharded)):
            book.find("parameters", followed.updates + 1, 0, "optimizer built before sharding",
                              "none of its parameters belongs to the model that trains, and none has a gradient",
                              line=followed.line)
        else:
            book.judge("gradient", NOT_JUDGED, "the optimizer's parameters belong to no module that was called")
