"""Compares a step with one process: before `optimizer.step()` the gradient, after it the update.

All ranks run this together. The facts of all ranks are exchanged first, so every rank takes the same branches.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from zerosim.torch.verdicts import waste
from zerosim.torch.verdicts.causes import WrongGradient, cause_of
from zerosim.torch.verdicts.declared import DeclaredSum, declared
from zerosim.torch.verdicts.findings import NOT_JUDGED, SAME_BITS, WITHIN
from zerosim.torch.verdicts.gradients import (
    FAR,
    MeanGradient,
    NotJudged,
    Share,
    due_of,
    place,
    replayed,
    rounding_of,
    wholes,
)
from zerosim.torch.verdicts.ranks import CheckRanks
from zerosim.torch.verdicts.reference import FullModel, digest
from zerosim.torch.verdicts.rounding import unit_roundoff
from zerosim.torch.verdicts.session import Followed, Session, Tracked, has_gradient, parameters_of
from zerosim.torch.verdicts.settings import Facts, Settings, given, judge_inputs, judge_samplers
from zerosim.torch.verdicts.split import is_whole, local, whole_shape
from zerosim.torch.verdicts.trainers import TrainerFacts, deepspeed_gradients, deepspeed_weights, trainer_of
from zerosim.torch.verdicts.updates import Prediction, clip_norms, judge_clipping, predicted, unclipped

MOST_UNEQUAL = 64
"""If more than one element in so many has different bits, all within the bound, the order is not the declared one."""


@dataclass
class Round:
    """One model in one step: what all parts of the judgement need."""

    model: Tracked
    followed: Followed
    trainer: TrainerFacts
    step: int
    peers: list[int]
    told: list[Facts]
    """The facts of the ranks in `peers`."""
    share: Share = field(default_factory=Share)
    most: int = 0
    """The largest number of backwards of a rank."""
    problems: list[str] = field(default_factory=list)
    averaged: dict[str, Any] | None = None
    """The gradients that DeepSpeed keeps elsewhere than in `grad`."""

    def found(self, name: str) -> Any:
        """This rank's part of a gradient, before clipping; None if there is none."""
        if self.averaged is not None:
            return self.averaged[name]
        found = unclipped(self.followed, self.named[name])
        if found is None and not local(self.named[name]).numel():
            return torch.zeros_like(local(self.named[name]).detach())
        return found

    @property
    def named(self) -> dict[str, Any]:
        return self.model.parameters()

    @property
    def unscaled(self) -> float:
        """GradScaler's factor in the gradients before clipping."""
        return self.followed.clips[0].unscaled if self.followed.clips else self.followed.unscaled


@dataclass
class Judge:
    """One rank's part in the judgement of all steps. `ours` says that zerosim's collectives add."""

    session: Session
    ranks: CheckRanks
    ours: bool
    predictions: list[tuple[Round, Prediction]] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)

    def before(self, followed: Followed) -> None:
        """Judge inputs, forwards, gradients and clipping of the step that this optimizer ends."""
        book = self.session.book
        own = {id(each) for each in parameters_of(followed.optimizer)}
        models = [model for model in self.session.models
                  if any(id(each) in own for each in model.parameters().values())]
        told = self.ranks.everyone(len(models))
        self.predictions.clear()
        if any(each != told[0] for each in told):
            book.judge("gradient", NOT_JUDGED, "the ranks update different models")
        elif not models:
            self.settings.strangers(book, self.session, followed, self.ranks)
        for model in models if all(each == told[0] for each in told) else ():
            try:
                self.model(model, followed)
            except NotJudged as reason:
                book.judge("gradient", NOT_JUDGED, str(reason))
                book.judge("update", NOT_JUDGED, str(reason))

    def model(self, model: Tracked, followed: Followed) -> None:
        """Judge one model. Raises `NotJudged` on all ranks for the same reason."""
        trainer, step = trainer_of(model.root, list(range(self.ranks.size))), followed.updates + 1
        shares = next(filter(None, self.ranks.everyone(self.session.communicates)), "")
        of_all: list[Facts] = self.ranks.everyone(self.facts(model, followed, trainer))
        if shares and trainer.name == "DDP":
            # Its replicas are alike, whatever a forward communicates.
            told = [of_all[rank] for rank in trainer.group]
            self.settings.weights(self.session.book, told, trainer.group, trainer, step, self.session.first)
        if shares:
            raise NotJudged(trainer.obstacle or shares)
        if any(each.names != of_all[0].names for each in of_all):
            raise NotJudged("the ranks have different parameters")
        group = trainer.group if self.ranks.rank in trainer.group else [self.ranks.rank]
        if model.reference is None and all(each.before_training == of_all[0].before_training for each in of_all):
            model.of_all_ranks = bool(of_all[0].weights or of_all[0].shards)
        peers = list(range(self.ranks.size)) if model.of_all_ranks else group
        if any(each != peers for each in self.ranks.everyone(peers)):
            raise NotJudged("groups of ranks train models of their own")
        now = Round(model, followed, trainer, step, peers, [of_all[rank] for rank in peers])
        if not judge_inputs(self.session.book, [each.calls for each in now.told], peers, step, self.session.repeated,
                            [each.row for each in now.told]):
            raise NotJudged("the ranks of a tensor-parallel group have different samples")
        first = self.session.first if model.reference is None else 0
        heads = [rank for rank, each in zip(peers, now.told, strict=True) if rank == each.row[0]]
        judge_samplers(self.session.book, [of_all[rank].samplers for rank in heads], heads, step)
        independent = self.settings.judge(self.session.book, now.told, peers, trainer, step, first)
        obstacles = [trainer.obstacle, *(reason for each in now.told for reason in each.obstacles)]
        if any(obstacles):
            raise NotJudged(next(filter(None, obstacles)))
        if independent:
            raise NotJudged("each rank has a model of its own, without a trainer")
        self.replay(now)
        self.gradient(now)

    def facts(self, model: Tracked, followed: Followed, trainer: TrainerFacts) -> Facts:
        named = model.parameters()
        own = parameters_of(followed.optimizer)
        ids = {id(each) for each in own}
        draws = any("Dropout" in type(each).__name__ and each.training and getattr(each, "p", 0)
                    for each in model.root.modules())
        last = [call for call in model.calls if call.backward == self.session.backwards]
        drops = [] if followed.others_stepped else [each for each in followed.drops if any(
            (call.backward_line, call.version) == (each.call.backward_line, each.call.version) for call in last)]
        emptied = [each.line for each in drops if each.call in last and not any(map(has_gradient, own))]
        return Facts(
            {name: whole_shape(each) for name, each in named.items()},
            [given(call, draws) for call in model.calls if call.backward],
            {name: digest([each]) for name, each in named.items() if is_whole(each)},
            {name: each.requires_grad for name, each in named.items()},
            {name: each.grad is not None for name, each in named.items() if id(each) in ids},
            [{key: value for key, value in group.items() if isinstance(value, float | int | str | bool | tuple)}
             for group in getattr(followed.optimizer, "param_groups", ())],
            self.session.shards_of(model), self.session.wrapping_line, [*dict.fromkeys(model.obstacles)],
            followed.cleared or not any(has_gradient(each) for each in own), followed.zeroed,
            [(each.call.backward, each.line) for each in drops], (emptied or [""])[0], self.session.untied(model),
            model.strange,
            "" if trainer.name != "no trainer" else digest(
                each.grad for each in named.values() if each.grad is not None and is_whole(each)),
            self.buffers(model, followed), list(self.session.sampled),
            max(followed.scheduled.values(), default=0), followed.unscaled != 1 or self.session.scale == 1,
            followed.line, trainer.row or [self.ranks.rank])

    def buffers(self, model: Tracked, followed: Followed) -> dict[str, str]:
        """The digests of the buffers before the first forward of all, without statistics of batches."""
        if followed.updates or self.session.first > 1 or not model.calls:
            return {}
        own = {model.plain(f"{path}.{name}".lstrip(".")) for path, each in model.root.named_modules()
               if isinstance(each, nn.modules.batchnorm._BatchNorm) for name in each._buffers}
        return {name: digest([each]) for name, each in model.calls[0].buffers.items() if name not in own}

    def replay(self, now: Round) -> None:
        """Compute this rank's calls again with full weights, and judge the forwards."""
        model, named = now.model, now.named
        whole = wholes(self.ranks, named)
        full = {name: whole.get(name, local(each).detach()) for name, each in named.items()}
        if now.trainer.name == "DeepSpeed":
            full, now.averaged = deepspeed_weights(named), deepspeed_gradients(named)
        failed, stale = "", None
        try:
            if model.reference is None:
                model.reference = FullModel(model.root, {id(named[name]): each.clone() for name, each in full.items()})
            model.reference.load(full)
            stale = self.stale(model)
            now.share = replayed(model.reference, model.calls, model.cleared)
        except Exception as error:
            text = (str(error) or "without a message").splitlines()[0]
            failed = f"the model cannot be computed again: {type(error).__name__}: {text}"
        of_all = self.ranks.everyone((failed, now.share.why, stale, now.share.backwards))
        self.in_parts(now)
        told = [of_all[rank] for rank in now.peers]
        now.most, now.problems = max(each[3] for each in told), [each[1] for each in told if each[1]]
        for rank, (_, _, found, _) in zip(now.peers, told, strict=True):
            if found is not None:
                cause, name, line = found
                self.session.book.find("weights of the forward", now.step, rank, cause,
                    f"the forward used values of {name} that are not those of its shards", name,
                    named[name].numel(), line)
                break
        else:
            same = "every forward computed again gives the same outputs"
            self.session.book.judge("weights of the forward", NOT_JUDGED if now.problems else SAME_BITS,
                                    now.problems[0] if now.problems else same)
        if any(each[0] for each in told) or now.most == 0:
            raise NotJudged(next((each[0] for each in told if each[0]), "no backward was seen since the last update"))

    def in_parts(self, now: Round) -> None:
        """Judge the outputs of tensor-parallel ranks: alike on all of them, and those of the whole model."""
        outputs = digest(each for call in now.model.calls for each in call.outputs)
        of_all = self.ranks.everyone((now.share.far and bool(now.trainer.row), outputs, now.share.near))
        for rank, each in zip(now.peers, now.told, strict=True):
            if of_all[rank][0] and of_all[rank][1] != of_all[each.row[0]][1] and not each.calls[0].chances:
                self.session.book.find("weights of the forward", now.step, rank, "another model in parts",
                    f"the outputs differ on the tensor-parallel ranks {', '.join(map(str, each.row))}, and are not "
                    "those of the whole model: parts were not added, or the plan leaves out a module",
                    line=each.calls[0].line)
                raise NotJudged("the ranks compute another model in parts")
        if now.trainer.row and not all(of_all[rank][2] for rank in now.peers):
            raise NotJudged("the whole model has different outputs: its parts draw random numbers, or keep outputs")

    def stale(self, model: Tracked) -> tuple[str, str, str] | None:
        """The first parameter whose gathered values were not those of its shards: the cause, its name and the line."""
        found, digests = None, {}
        assert model.reference is not None
        for name, each in model.reference.owners.items():
            if name in model.used:
                first = next(key for key, value in model.reference.parameters.items() if value is each)
                digests[name] = digest([each.to(model.reference.narrow.get(first, each.dtype))])
                used, line = model.used[name]
                if used != digests[name] and found is None:
                    stale = model.before.get(name) == used
                    found = "stale gathered weights" if stale else "weights changed between gather and use", first, line
        model.before = digests
        return found

    def gradient(self, now: Round) -> None:
        """Compare the gradient that the optimizer sees with the mean over ranks and micro-batches."""
        named, told, share = now.named, now.told, now.share
        names = [name for name in told[0].gradients if told[0].trains[name] and any(
            each.gradients.get(name) or name in each.gradients for each in told)]
        ready = self.ranks.everyone(share.ready)[now.peers[0]]
        order = declared(now.model, now.trainer, now.unscaled, now.most, ready) if (
            self.ours and not now.problems and now.peers == now.trainer.group) else None
        outside: dict[str, int] = {}
        distances: dict[str, float] = {}
        unequal: dict[str, int] = {}
        means: dict[str, MeanGradient] = {}
        promised, elements = order is not None, 0
        for name in names:
            due = self.due(now, share, name)
            where, found = self.where(now, name), now.found(name)
            if found is None and not bool(due.size.any()):
                continue
            means[name] = due
            part = torch.zeros_like(due.at(where).brought[0]) if found is None else found.cpu()
            exact = order.expected(name, due.brought, named[name]) if order is not None else None
            promised = promised and exact is not None
            elements += part.numel()
            if exact is not None and torch.equal(part, exact.to(part.dtype)):
                continue
            count = int(due.at(where).apart(part).sum())
            if count:
                outside[name] = count
                distances[name] = float((part.double() - due.at(where).mean).square().mean().sqrt())
            elif exact is not None:
                unequal[name] = int((part != exact.to(part.dtype)).sum())
        self.rounded(now, outside, distances, means)
        self.verdict(now, order if promised else None, outside, unequal, elements)
        clips = clip_norms(now.followed, named, means)
        judge_clipping(self.session.book, self.ranks, now.followed, clips, now.peers, now.step, self.session.scale,
                       any(what == "gradient" for what, _ in self.session.book.findings))
        if not now.trainer.row:
            waste.observe(self.session.book, now.model, len(now.peers), now.followed.line)
        self.predictions.append((now, predicted(now.followed.optimizer, named)))

    def rounded(self, now: Round, outside: dict[str, int], distances: dict[str, float],
                means: dict[str, MeanGradient]) -> None:
        """Drop from `outside` what the products of split layers can have rounded, which the bound does not cover."""
        sizes = {name: float(each.mean.square().mean().sqrt()) for name, each in means.items() if now.trainer.row}
        largest = max(sizes.values(), default=0.0)
        small = {name for name in outside if name in sizes and distances[name] <= max(
            min(FAR, rounding_of(means[name].dtype)) * sizes[name], 1e-5 * largest)}
        for found in self.ranks.everyone({name: outside.pop(name) for name in small}):
            if found:
                self.session.book.judge("gradient", NOT_JUDGED,
                    f"{sum(found.values())} elements are rounded in products of split layers, beyond the bound")

    def where(self, now: Round, name: str) -> Any:
        """The part of a parameter whose gradient this rank has."""
        return () if now.averaged is not None else place(now.named[name])

    def due(self, now: Round, share: Share, name: str) -> MeanGradient:
        reference = now.model.reference
        assert reference is not None
        own = reference.summed(name)
        return due_of(self.ranks, now.peers, share, now.most, name, whole_shape(now.named[name]),
                      (own, max(own, now.trainer.reduced or own, key=unit_roundoff)), now.unscaled)

    def verdict(self, now: Round, order: DeclaredSum | None, outside: dict[str, int], unequal: dict[str, int],
                elements: int) -> None:
        """Judge the gradient by what all ranks have counted."""
        book, of_all = self.session.book, self.ranks.everyone((outside, unequal, elements, order is not None))
        told = [of_all[rank] for rank in now.peers]
        few = sum(sum(each[1].values()) for each in told) * MOST_UNEQUAL <= sum(each[2] for each in told)
        counts = [each[0] or (each[1] if few else {}) for each in told]
        wrong = [name for name in now.named if any(name in each for each in counts)]
        if wrong and any(not each.cleared or each.drops or each.emptied for each in now.told):
            return  # zero_grad was found to be missing, or in the loop
        if wrong:
            self.mismatch(now, wrong, counts)
        elif not all(each.unscaled for each in now.told):
            book.find("gradient", now.step, now.peers[0], "not unscaled",
                      f"the optimizer sees gradients {self.session.scale:g} times too large: optimizer.step() does not "
                      "take GradScaler's factor out, scaler.step(optimizer) does", line=now.followed.line)
        elif all(each[3] and not each[1] for each in told):
            book.judge("gradient", SAME_BITS, f"{now.trainer.name} in its declared order of addition")
        else:
            terms = now.most * len(now.peers)
            book.judge("gradient", WITHIN, f"{now.trainer.name}: {terms} terms, by the bound γ Σ|g|")

    def mismatch(self, now: Round, wrong: list[str], counts: list[dict[str, int]]) -> None:
        """Find the cause of the first wrong gradient, from all ranks' gradients of each micro-batch."""
        name, reference, book = wrong[0], now.model.reference, self.session.book
        assert reference is not None
        share = replayed(reference, now.model.calls, now.model.cleared, (name,))
        due = self.due(now, share, name)
        found = now.found(name)
        of_all = self.ranks.everyone(
            (None if found is None else found.cpu(), self.where(now, name), share.each.get(name, []),
             found is not None and now.model.left.get(name, "") not in ("", digest([found]))))
        evidence = WrongGradient(
            name, due, {rank: of_all[rank][0] for rank in now.peers}, {rank: of_all[rank][1] for rank in now.peers},
            {rank: of_all[rank][2] for rank in now.peers}, now.peers, now.most, now.trainer, self.session.scale,
            self.session.scalars_reduced, bool(now.problems), now.told[0].unscaled,
            {rank: each.row for rank, each in zip(now.peers, now.told, strict=True)},
            all(of_all[rank][3] for rank in now.peers))
        index = next(index for index, each in enumerate(counts) if name in each)
        cause, text = cause_of(evidence, now.peers[index])
        if not cause:
            book.judge("gradient", NOT_JUDGED, text)
            return
        where, found = evidence.where[now.peers[index]], evidence.found[now.peers[index]]
        if found is not None:
            first = int(due.at(where).apart(found).reshape(-1).int().argmax())
            name = reference.parameter_at(name, first + (where.start if isinstance(where, slice) else 0))
        others = "" if len(wrong) == 1 else f"; {len(wrong)} of {len(now.named)} parameters are concerned"
        calls = now.told[index].calls
        book.find("gradient", now.step, now.peers[index], cause, f"the gradient of {name}: {text}{others}", name,
                          counts[index][wrong[0]], calls[-1].backward_line if calls else now.followed.line)

    def after(self, followed: Followed) -> None:
        """Judge the update, and that replicas are still alike."""
        book = self.session.book
        for now, prediction in self.predictions:
            named, peers = now.named, now.peers
            digests = {name: digest([each]) for name, each in named.items()}
            kept = {name: digests[name] for name, each in named.items() if is_whole(each)}
            of_all = self.ranks.everyone((kept, prediction.verdict(digests)))
            told = [of_all[rank] for rank in peers]
            name, index = next(((name, index) for index, each in enumerate(told) for name in kept
                                if each[0][name] != told[0][0][name]), ("", 0))
            if name and not book.findings:
                book.find("replicas", now.step, peers[index], "replicas have drifted apart",
                                  f"after the update {name} has different bits than on rank {peers[0]}", name,
                                  named[name].numel(), followed.line)
            elif not name:
                book.judge("replicas", SAME_BITS, "all ranks hold the same bits after the update")
            for rank, (_, (verdict, why, wrong)) in zip(peers, told, strict=True):
                if wrong:
                    book.find("update", now.step, rank, "another update", why, wrong,
                              local(named[wrong]).numel(), followed.line)
                    break
                book.judge("update", verdict, why)
        self.predictions.clear()
