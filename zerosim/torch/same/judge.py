"""Judges the records of two runs: is the second the same function as the first? NumPy alone.

First, are they comparable: steps, inputs, initial weights. Then, step by step, gradients of parameters, clipping and
updated weights decide. Where they differ, outputs forward, the loss and gradients of outputs backward say where it
began, and the first is the finding. A module whose difference is undone later is not accused: parts may be added there.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from zerosim.core.allocation import Array
from zerosim.core.words import plural
from zerosim.torch.check.book import NOT_JUDGED, CheckFinding
from zerosim.torch.check.record import Entry
from zerosim.torch.same.wholes import AXES, OF_MODULES, Place, Run, distance, like, nearest, placed

SAME = "the same within rounding"
LEAST = 0.01
"""Numbers smaller than this part of the largest of their kind are judged like those."""
MARGIN = 8
"""The threshold, in differences that moving each weight by a rounding makes in the same numbers."""
CANNOT = "cannot be compared"


class Kind(NamedTuple):
    """What the numbers of a kind are about, the cause of a finding in them, and their name."""

    what: str
    cause: str
    words: str = ""


KINDS = {
    "input": Kind("inputs", "another global batch"),
    "weight": Kind("initial weights", "other initial weights"),
    "output": Kind("outputs", "another output", "forward"),
    "loss": Kind("loss", "another loss"),
    "output gradient": Kind("gradients of outputs", "another gradient of an output", "backward"),
    "gradient": Kind("gradient", "another gradient", "the gradient"),
    "clipped": Kind("clipping", "another clipping", "the clipped gradient"),
    "updated": Kind("update", "another update", "the updated weight"),
}
OF_PARAMETERS = ("gradient", "clipped", "updated")


@dataclass
class Difference:
    """One tensor, or the tokens of one module, that are not the reference's on these ranks."""

    name: str
    ranks: list[int]
    text: str = ""
    factor: float | None = None
    line: str = ""


class Compared(NamedTuple):
    """What differs, in the order of the reference, and the names of what is equal."""

    wrong: list[Difference]
    equal: list[str]


class Judge:
    """The verdicts on `other`, by `reference`; `again` is a record of the reference with moved weights."""

    def __init__(self, reference: Run, other: Run, again: Run | None = None) -> None:
        self.reference, self.other, self.again = reference, other, again
        self.roundoff = max(reference.roundoff, other.roundoff)
        self.moved = cache(self._moved)
        self.counts, self.worst = defaultdict[str, list[str]](list), defaultdict[str, float](float)
        self.places: dict[tuple[int, str], Place] = {}
        self.held, self.below = defaultdict[int, set[str]](set), defaultdict[str, set[str]](set)
        """The parameters of which each rank has a part, and the reference's parameters below each module."""
        self.findings, self.unequal = list[CheckFinding](), set[str]()
        self.others: list[Difference] = []
        """The parameters whose optimizer has other settings than in the reference."""
        self.cannot = ""
        """Why the runs cannot be compared, where neither of them is wrong."""

    # -- thresholds

    def _moved(self, kind: str, step: int) -> dict[Any, tuple[float, float]]:
        """For each name how far moved weights move its numbers, at most and together (see `along`).

        For None, the largest number of the kind in the reference, and the median of how far they move together.
        """
        moved, due = dict[Any, tuple[float, float]](), self.reference.numbers(kind, step)
        again = self.again.numbers(kind, step) if self.again is not None else {}
        for name, numbers in due.items():
            a, b = (np.concatenate(parts) for parts in (numbers, again.get(name, [np.zeros(0)])))
            if len(a) == len(b) > 0:
                size = max(float(np.linalg.norm(a)), 1e-300) * len(a) ** 0.5
                moved[name] = float(np.abs(a - b).max()), max(along(a, b), float(np.linalg.norm(a - b)) / size)
        moved[None] = max((float(np.abs(values).max(initial=0)) for numbers in due.values() for values in numbers),
                          default=0.0), float(np.median([together for _, together in moved.values()] or [np.inf]))
        return moved

    def limits(self, kind: str, step: int, name: Any, due: Array) -> tuple[float, float]:
        """The largest difference that is rounding: measured, or half of the digits of the coarsest dtype.

        The second is that of all numbers together, which is seen before each is, and infinite without a measure.
        """
        (largest, together), (most, own) = (self.moved(kind, step).get(key, (0.0, np.inf)) for key in (None, name))
        size = max(float(np.abs(due).max(initial=0)), LEAST * largest, 1e-300)
        if self.again is None:
            return float(np.sqrt(self.roundoff)) * size, np.inf
        return MARGIN * max(most, self.roundoff * size), MARGIN * max(own, together, self.roundoff)

    def far(self, kind: str, step: int, name: Any, due: Array, part: Array, own: Array) -> tuple[Array, float]:
        """How far numbers are from this part of those that are `due`, in thresholds: each, and all together."""
        limit, together = self.limits(kind, step, name, due)
        return distance(own, part) / limit, along(part, own) / together

    def find(self, kind: str, step: int, difference: Difference, cause: str = "") -> None:
        ranks = difference.ranks
        on = f", on {plural(len(ranks), 'rank')[2:]} {', '.join(map(str, ranks))}" if ranks else ""
        self.findings.append(CheckFinding(KINDS[kind].what, step, min(ranks, default=0), cause or KINDS[kind].cause,
                                          difference.text + on, difference.name, line=difference.line))

    # -- are the runs comparable?

    def inputs(self, step: int) -> None:
        """Compare the tokens given to models: those of the reference, all of them equally often.

        An argument without its name in the other run is looked for among all; later pipeline ranks get activations.
        """
        others = self.other.tokens("input", step)
        for key, of_rank in self.reference.tokens("input", step).items() if not self.findings else ():
            due = np.concatenate([*of_rank.values()])
            values, counts = np.unique(due, return_counts=True)
            tolerance = 0.0 if key[1] == 0 else np.sqrt(self.roundoff) * float(np.abs(due).max(initial=0))
            for name in [key] if key in others else [name for name in others if name[1] == key[1]]:
                total, ranks = np.zeros(len(values)), []
                for rank, given in others[name].items():
                    at, far = nearest(values, given)
                    if (far <= tolerance).all():
                        np.add.at(total, at, 1)
                    elif (far <= tolerance).any() or len(self.other.ranks) == 1:
                        ranks.append(rank)
                times = total / counts
                if not ranks and times.any() and np.ptp(times) == 0:
                    self.counts["input"].append(f"{plural(len(due), 'token')} of argument {key[0]} in step {step}")
                elif name == key and (ranks or times.any()):
                    text = (f"argument {key[0]} has tokens that the reference's batch has not" if ranks else
                            f"{int((times == 0).sum())} of {len(values)} different tokens of the reference's batch are "
                            f"missing in argument {key[0]}, others come {times.max():g} times as often")
                    return self.find("input", step, Difference(str(key[0]), ranks, text))
        return None

    def weights(self) -> None:
        """Find each tensor of the other run in the reference's, and what of it is cut."""
        if self.findings:
            return
        own, due = self.other.wholes("weight", 1), self.reference.named("weight", 1)
        self.places, lost = placed(self.reference, self.other)
        for (rank, _), place in self.places.items():
            self.held[rank].add(place.whole.name)
        for whole in self.reference.wholes("weight", 1):
            for path in (f".{name}".split(".") for name in (whole.name, *whole.aliases)):
                for length in range(1, len(path)):
                    self.below[".".join(path[1:length])].add(whole.name)
        named = [whole for whole in lost if not whole.name.startswith("?")]
        absent = sorted(due.keys() - {place.whole.name for place in self.places.values()})
        if named and any(whole.rows.size * whole.columns.size < named[0].rows.size * named[0].columns.size
                         for whole in due.get(named[0].name, [])):
            self.cannot = (f"{CANNOT}: the reference holds {named[0].name} in smaller parts; "
                           "take a reference on fewer ranks")
        elif named:
            self.find("weight", 1, Difference(named[0].name, [*named[0].ranks], (
                f"{len(named)} of {plural(len(own), 'tensor')} are no parts of the reference's, first {named[0].name} "
                f"of shape {named[0].shape}: give both runs the same weights")))
        elif absent:
            self.find("weight", 1, Difference(absent[0], [], (
                f"no rank has {plural(len(absent), 'parameter')} of the reference, first {absent[0]}")),
                "missing weights")
        cut = {place.whole.name for place in self.places.values() if place.cut}
        self.counts["weight"].append(f"{plural(len(own), 'tensor')} on {plural(len(self.other.ranks), 'rank')} are "
                                     f"parts of {len(due)}, of which {len(cut)} are cut")

    # -- modules

    def modules(self, kind: str, step: int) -> Compared:
        """The modules that differ, and those that are equal on all ranks.

        What is undone within a module, or before the last one, is no difference: parts of a sum may be added there.
        """
        due, order = self.reference.tokens(kind, step), self.reference.order(kind, step)
        parts: dict[Any, dict[int, Array]] = {}
        for (own, width), of_rank in self.other.tokens(kind, step).items():
            for rank, tokens in of_rank.items():
                key = self.other.there(rank, own), width
                if key in due and self.below[key[0]] <= self.held[rank]:
                    parts.setdefault(key, {})[rank] = tokens
        scale, off = 0.0, dict[str, Difference]()
        for key in (key for key in due if key in parts):
            values, own = (np.sort(np.concatenate([*of_rank.values()])) for of_rank in (due[key], parts[key]))
            full = np.repeat(values, len(own) // max(1, len(values)))
            if not 0 < len(full) == len(own):
                parts.pop(key)
                continue
            if not scale:  # a loss that is a mean over fewer tokens has larger gradients
                scale = float(own @ full / max(float(full @ full), 1e-300)) if kind == "output gradient" else 1.0
                scale = scale or 1.0
            far, together = self.far(kind, step, key, values, full, own / scale)
            if (error := max(float(far.max()), together)) <= 1:
                self.worst[kind] = max(self.worst[kind], error)
                continue
            limit, _ = self.limits(kind, step, key, values)
            counts = {rank: int((nearest(values, tokens / scale)[1] > limit).sum())
                      for rank, tokens in parts[key].items()}
            off.setdefault(key[0], Difference(key[0], [rank for rank in counts if counts[rank]] or [*counts], (
                f"{max(1, *counts.values())} of {plural(max(map(len, parts[key].values())), 'token')}")))
        compared = {name for name, _ in parts}
        last = next((name for name in reversed(order) if name in compared), "")

        def undone(name: str) -> bool:
            above = {name[:at] for at in range(len(name)) if name[at] == "." or not at} - {name}
            later = [] if self.again is None else [  # noise may hide it in the last one
                module for module in order[order.index(name) + 1 :] if module in off
                and not module.startswith(f"{name.rpartition('.')[0]}.")]
            return (kind == "output" and bool(above & (compared - off.keys()))) or not (last in off or later)

        wrong = [off[name] for name in order if name in off and not undone(name)]
        equal = compared - {difference.name for difference in wrong}
        return Compared(wrong, [name for name in order if name in equal])

    # -- parameters

    def tensors(self, kind: str, step: int) -> Compared:
        """The tensors that are not the reference's parts, and those that are."""
        due, compared = self.reference.named(kind, step), Compared([], [])
        for whole in self.other.wholes(kind, step):
            place = self.places.get((whole.ranks[0], whole.name))
            full = like(due, place.whole) if place is not None else None
            if place is None or full is None or len(place.of(full.rows, "rows")) != len(whole.rows):
                continue
            ranks = [*whole.ranks]
            self.others += [Difference(full.name, ranks, f"{key} is {value:g}, and {full.settings[key]:g} in the "
                                       "reference", None, whole.line) for key, value in sorted(whole.settings.items())
                            if abs(value - full.settings.get(key, value)) > 1e-6 * abs(value)]
            axes = [axis for axis in AXES[: len(full.columns)] if not place.cut or axis == place.axis]
            due_all, values, own = (np.concatenate(numbers) for numbers in zip(*(
                (getattr(full, axis), place.of(getattr(full, axis), axis), getattr(whole, axis)) for axis in axes),
                strict=True))
            far, together = self.far(kind, step, full.name, due_all, values, own)
            gradient = like(self.reference.named("gradient", step), full) if kind == "updated" else None
            if gradient is not None and len(full.columns) == 1:  # the sign of a rounding may decide an update
                near = np.abs(gradient.rows) > self.limits("gradient", step, full.name, gradient.rows)[0]
                far = np.where(place.of(near, "rows"), far, 0)
            error, size = max(float(far.max(initial=0)), together * (kind != "updated")), float(values @ values)
            if error <= 1:
                compared.equal.append(full.name)
                self.worst[kind] = max(self.worst[kind], error)
                continue
            factor = float(own @ values) / size if size else None
            if factor is not None and (self.far(kind, step, full.name, due_all, factor * values, own)[0]
                                       > max(1, abs(factor))).any():
                factor = None
            of_axes = dict(zip(axes, np.split(far, [len(getattr(whole, axes[0]))]), strict=False))
            ranks = sorted({rank for rank, at in whole.parts if all(
                (far[at[axis]] > 1).any() for axis, far in of_axes.items() if (far > 1).any())})
            compared.wrong.append(Difference(full.name, ranks, "", factor, whole.line))
        if kind == "gradient":
            there = {*compared.equal, *(one.name for one in compared.wrong)}
            holders = {rank for rank, _ in self.other.kinds.get((kind, step), [])}
            compared.wrong.extend(
                Difference(place.whole.name, [rank], "there is no gradient", 0.0)
                for (rank, _), place in self.places.items()
                if rank in holders and place.whole.name in due and place.whole.name not in there)
        return compared

    # -- a step

    def judge(self) -> dict[str, Any]:
        steps = min(self.reference.steps, self.other.steps)
        self.by_hand = {step: self.align_clipping(step) for step in range(1, steps + 1)}
        for step in range(1, steps + 1):
            self.inputs(step)
        self.weights()
        if self.again is None and self.roundoff > 1e-5:
            self.cannot = f"{CANNOT}: in 16 bits give a third record, of the reference with --noise"
        for step in range(1, steps + 1):
            self.step(step)
        if not self.findings and not self.cannot and self.reference.steps != self.other.steps:
            self.find("input", steps + 1, Difference("", [], (
                f"{plural(self.other.steps, 'update')}, and {self.reference.steps} in the reference")),
                "another number of steps")
        return self.document(steps)

    def step(self, step: int) -> None:
        """Compare a step kind by kind, and name the first difference, if parameters end up with another update."""
        if self.findings or self.cannot:
            return
        outcome = {kind: self.modules(kind, step) for kind in OF_MODULES} | {
            kind: self.tensors(kind, step) for kind in OF_PARAMETERS}
        if self.roundoff > 1e-12 and (self.again is None or not outcome["updated"].wrong):
            outcome["updated"] = Compared(self.others, outcome["updated"].equal if self.again is not None else [])
        loss, due = self.other.loss(step), self.reference.loss(step)
        limit, _ = self.limits("loss", step, "", np.array([due]))
        factor = simple(loss / due if due else np.nan, limit / abs(due or 1))
        times = "" if factor in (1, None) else f", {factor:g} times {due:.9g}"
        self.counts["loss"].append(f"{loss:.9g} in step {step}{times}")
        for kind, (wrong, equal) in outcome.items():
            if wrong:
                self.unequal.add(kind)
            if wrong or equal:
                of = plural(len(wrong) + len(equal), "module" if kind in OF_MODULES else "tensor")
                self.counts[kind].append(f"{len(equal)} of {of} of step {step}")
        if any(outcome[kind].wrong for kind in OF_PARAMETERS):
            self.cannot = self.obstacle(step)
            if not self.cannot:
                self.blame(step, outcome, factor)

    def blame(self, step: int, outcome: dict[str, Compared], factor: float | None) -> None:
        """Name the first difference: `factor` is that of the loss, if it has a simple one."""
        kind = next(kind for kind in OF_PARAMETERS if outcome[kind].wrong)
        if outcome["output"].wrong:
            return self.first_module("output", step, *outcome["output"])
        wrong, equal = outcome[kind]
        if kind != "gradient":
            wrong[0].text = self.others[0].text if self.others and kind == "updated" else ""
            return self.first_parameter(kind, step, wrong, equal)
        shares = {rank: float(np.median([one.factor or 0.0 for one in wrong if rank in one.ranks]))
                  for rank in {rank for one in wrong for rank in one.ranks}}
        odd = [one for one in wrong if one.factor is None or any(
            abs(one.factor - shares[rank]) > self.coarseness * abs(shares[rank]) for rank in one.ranks)]
        common = max(shares.values()) if not odd and not equal and np.ptp([*shares.values()]) <= self.coarseness * max(
            shares.values()) else None
        by_hand = self.by_hand[step]
        if not by_hand and (factor is None or (
                common is not None and factor != 1 and abs(common / factor - 1) <= self.coarseness)):
            line = next((entry.line for _, entry in self.other.kinds.get(("loss", step), [])), "")
            of = f"{factor:g} times the reference's" if factor is not None else "no multiple of the reference's"
            share = f", and each gradient is {common:.4g} times the reference's" if common is not None else ""
            text = f"{self.other.loss(step):.9g}, {of}, {self.reference.loss(step):.9g}; outputs are equal{share}"
            return self.find("loss", step, Difference("", [], text, line=line))
        if outcome["output gradient"].wrong:
            return self.first_module("output gradient", step, *outcome["output gradient"])
        if len(wrong) > 1 and not odd and (by_hand or (len(wrong) > len(equal) and all(
                simple(share, self.coarseness) is None for share in shares.values()))):
            kind, wrong[0].text = "clipped", by_hand or "no simple factor, as of clipping by hand with another norm"
        elif odd and len(wrong) > len(equal) and 2 * len(odd) <= len(wrong):
            wrong, equal = odd, [*equal, *(one.name for one in wrong if one not in odd)]
        return self.first_parameter(kind, step, wrong, equal)

    def align_clipping(self, step: int) -> str:
        """Where one run alone clips by a function, compare what optimizers see; says which, empty if none or both do.

        The other may clip by hand. A norm without clipped gradients is that of an engine, which clips within its step.
        """
        runs = {name: run for name, run in (("this run", self.other), ("the reference", self.reference))
                if ("clipped", step) in run.kinds}
        if len(runs) != 1 or all(("norm", step) in run.kinds for run in (self.other, self.reference)):
            return ""
        (name, run), = runs.items()
        for one in (run, self.again) if self.again is not None and run is self.reference else (run,):
            one.kinds["gradient", step] = one.kinds.pop(("clipped", step))
        return f"{name} alone clips by a function of PyTorch"

    @property
    def coarseness(self) -> float:
        """The relative error of a factor."""
        return min(max(1e-6, 10 * float(np.sqrt(self.roundoff))), 0.1)

    def obstacle(self, step: int) -> str:
        """Why a difference in this step says nothing about the layout; empty if it does."""
        for run, name in ((self.reference, "the reference"), (self.other, "this run")):
            for _, entry in run.kinds.get(("random", step), []):
                return (f"{CANNOT}: {name} draws random numbers in the forward of {entry.name or 'the model'} "
                        f"({entry.line}), as dropout does, and another layout draws others; set all rates to 0")
        for kind in ("output", "loss", "gradient", "updated"):
            for _, entry in self.reference.kinds.get((kind, step), []):
                if not np.isfinite(entry.rows).all():
                    return f"{CANNOT}: in the reference the {kind} of {entry.name or 'the model'} is NaN or infinite"
        return ""

    def first_module(self, kind: str, step: int, wrong: list[Difference], equal: list[str]) -> None:
        first, order = wrong[0], self.reference.order(kind, step)
        before = [name or "the model" for name in order[: order.index(first.name)] if name in equal]
        entry = next(entry for _, entry in self.reference.kinds[kind, step] if entry.name == first.name)
        first.line, first.text = entry.line, (
            f"{first.name or 'the model'} ({entry.module}) is the first {KINDS[kind].words} whose {kind} is not the "
            f"reference's: {first.text}; "
            f"{f'{before[-1]} before it is equal' if before else 'it is the first of all'}")
        self.find(kind, step, first)

    def first_parameter(self, kind: str, step: int, wrong: list[Difference], equal: list[str]) -> None:
        first, names = wrong[0], [*dict.fromkeys(one.name for one in wrong)]
        many = f"{len(wrong)} of {len(wrong) + len(equal)} tensors" if equal else "every parameter"
        times = f"{first.factor:.6g} times the reference's" if first.factor is not None else "not the reference's"
        norms = [f"{min(float(entry.rows[0]) for _, entry in run.kinds['norm', step]):.9g}"
                 for run in (self.other, self.reference) if ("norm", step) in run.kinds and kind == "clipped"]
        first.text = "; ".join(filter(None, [
            f"{KINDS[kind].words} of {first.name} is {times} ({many}: {', '.join(names[:4])}"
            f"{' …' if len(names) > 4 else ''})", first.text,
            f"the norm is {norms[0]}, and {norms[1]} in the reference" if len(norms) == 2 else
            f"{' and '.join(self.before(kind))} are equal"]))
        first.ranks = sorted({rank for one in wrong if one.name == first.name for rank in one.ranks})
        self.find(kind, step, first)

    def before(self, kind: str) -> list[str]:
        """What comes before numbers of this kind, and is equal."""
        return [KINDS[one].what for one in [*KINDS][2 : [*KINDS].index(kind)]
                if self.counts[one] and one not in self.unequal]

    def document(self, steps: int) -> dict[str, Any]:
        """The document `zerosim.check/3`."""
        wrong, verdicts = {finding.what for finding in self.findings}, []
        threshold = (f"{MARGIN} times what moving the weights by a rounding changes" if self.again is not None else
                     f"{np.sqrt(self.roundoff):.1e} of the largest number")
        for kind, about in KINDS.items():
            why = "; ".join(self.counts[kind][:4]) + (
                f"; at most {self.worst[kind]:.1g} of the threshold, {threshold}" if kind in self.worst else "")
            reason = (
                self.cannot if self.cannot and kind not in ("input", "weight") else
                f"equal are {why}; others {'follow the finding' if wrong else 'are parts of sums'}"
                if kind in self.unequal else
                "in 32 bits give a third record, of --noise"
                if kind == "updated" and self.roundoff > 1e-12 and self.again is None else
                "" if self.counts[kind] else "it was not seen")
            if about.what not in wrong:
                verdicts.append({"what": about.what, "verdict": NOT_JUDGED if reason else SAME, "why": reason or why,
                                 "judged": 0 if reason else steps, "of": steps})
        return {"schema": "zerosim.check/3", "findings": [vars(finding) for finding in self.findings], "suspicions": [],
                "steps": steps, "updates": steps, "ranks": len(self.other.ranks), "micro_batches": 0, "parameters": 0,
                "parameters_judged": 0, "verdicts": verdicts}


def along(a: Array, b: Array) -> float:
    """How far `b` is from `a` along `a`, by a factor, and along ones, by a shift, as a part of `a`: the larger.

    >>> along(np.array([3.0, -4.0]), np.array([6.0, -8.0])), along(np.array([3.0, -4.0]), np.array([8.0, 1.0]))
    (1.0, 1.414213562373095)
    """
    size = max(float(np.linalg.norm(a)), 1e-300)
    return float(max(abs((b - a) @ a) / size, abs((b - a).sum()) / len(a) ** 0.5) / size)


def simple(ratio: float, error: float) -> float | None:
    """The quotient of integers of at most 64 that a ratio is, within a relative error; of smaller ones if it is large.

    >>> simple(1.5, 1e-9), simple(1.51, 1e-9), simple(0.85, 0.01)
    (1.5, None, None)
    """
    most = int(min(64, max(4, 0.3 / max(error, 1e-12) ** 0.5)))
    for below in range(1, most + 1):
        above = round(ratio * below) if np.isfinite(ratio) else 0
        if 0 < above <= most and abs(ratio * below / above - 1) <= max(error, 1e-12):
            return above / below
    return None


def same(reference: list[list[Entry]], other: list[list[Entry]],
         again: list[list[Entry]] | None = None) -> dict[str, Any]:
    """The document of the comparison of two runs, from the records of their ranks."""
    return Judge(Run(reference), Run(other), Run(again) if again else None).judge()
