"""Judges the records of two runs: is the second the same function as the first? NumPy alone.

First, are they comparable: steps, inputs, initial weights. Then, step by step, gradients of parameters, clipping and
updated weights decide. Where they differ, outputs forward, the loss and gradients of outputs backward say where it
began, and the first is the finding. A module whose difference is undone later is not accused: parts may be added there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zerosim.core.words import plural
from zerosim.torch.check.book import NOT_JUDGED, CheckFinding
from zerosim.torch.check.gradients import listed
from zerosim.torch.check.record import Array, Entry
from zerosim.torch.same.wholes import Place, Run, Whole, distance, nearest, placed

SAME = "the same within rounding"
LEAST = 0.01
"""Numbers smaller than this part of the largest of their kind are judged like those."""
MARGIN = 8
"""The threshold, in differences that moving each weight by a rounding makes in the same numbers."""
CANNOT = "cannot be compared"
SUBJECTS = ("inputs", "initial weights", "outputs", "loss", "gradients of outputs", "gradient", "clipping", "update")


@dataclass
class Difference:
    """One tensor, or the tokens of one module, that are not the reference's on these ranks."""

    name: str
    ranks: list[int]
    text: str = ""
    factor: float | None = None
    line: str = ""
    module: str = ""


@dataclass
class Judge:
    """The verdicts on `other`, beside `reference`; `again` is a record of it with moved weights."""

    reference: Run
    other: Run
    again: Run | None = None
    counts: dict[str, list[str]] = field(default_factory=dict)
    worst: dict[str, float] = field(default_factory=dict)
    places: dict[tuple[int, str], Place] = field(default_factory=dict)
    held: dict[int, set[str]] = field(default_factory=dict)
    """The parameters of which each rank has a part."""
    below: dict[str, set[str]] = field(default_factory=dict)
    """The reference's parameters below each module."""
    findings: list[CheckFinding] = field(default_factory=list)

    def __post_init__(self) -> None:
        runs = [self.reference, self.other]
        self.roundoff = max((entry.roundoff for run in runs for entries in run.ranks for entry in entries), default=0.0)
        self.coarse = self.again is None and self.roundoff > 1e-5
        """Whether 16 bits are judged without a measure: step 1 alone, because optimizers may enlarge any difference."""
        self.compared: set[str] = set()
        self.unequal: set[str] = set()
        self.measured: dict[tuple[Any, ...], float] = {}
        self.factors: dict[tuple[str, int], dict[str, float]] = {}
        """For each kind and step, how far a rounding of the weights moves the factor of each parameter."""
        self.largest: dict[tuple[str, int], float] = {}
        self.cannot = ""
        """Why the runs cannot be compared, where neither of them is wrong."""

    # -- thresholds

    def limit(self, kind: str, step: int, name: Any, due: Array) -> float:
        """The largest difference that is rounding: measured, or half of the digits of the coarsest dtype."""
        own = float(np.abs(due).max(initial=0))
        if (kind, step) not in self.largest:
            self.largest[kind, step] = max((float(np.abs(entry.rows).max(initial=0)) for _, entry in
                                            self.reference.kinds.get((kind, step), [])), default=0.0)
        if self.again is None:
            margin = MARGIN if self.coarse else 1
            return margin * float(np.sqrt(self.roundoff)) * max(own, LEAST * self.largest[kind, step], 1e-300)
        moved = self.measured.get((kind, step, name))
        if moved is None:
            moved = self.measured[kind, step, name] = max(
                (float(np.abs(a - b).max(initial=0)) for a, b in self.pairs(kind, step, name)), default=0.0)
        return MARGIN * max(moved, self.roundoff * max(own, LEAST * self.largest[kind, step]), 1e-300)

    def pairs(self, kind: str, step: int, name: Any) -> Iterable[tuple[Array, Array]]:
        """The numbers of the reference and of its repetition, side by side."""
        assert self.again is not None
        if kind in ("output", "output gradient"):
            here, there = (run.tokens(kind, step).get(name, {}) for run in (self.reference, self.again))
            yield from ((here[rank], there[rank]) for rank in here.keys() & there.keys()
                        if len(here[rank]) == len(there[rank]))
            return
        if kind == "loss":
            both = [np.array([run.loss(step)]) for run in (self.reference, self.again)]
            yield both[0], both[1]
            return
        both_runs = (run.named(kind, step).get(name, []) for run in (self.reference, self.again))
        for one, two in zip(*both_runs, strict=False):
            if one.rows.shape == two.rows.shape:
                yield one.rows, two.rows
                yield one.columns, two.columns

    def say(self, subject: str, text: str) -> None:
        self.counts.setdefault(subject, []).append(text)

    def note(self, subject: str, error: float) -> None:
        self.worst[subject] = max(self.worst.get(subject, 0.0), error)

    def find(self, what: str, step: int, cause: str, difference: Difference) -> None:
        on = listed(difference.ranks) if difference.ranks else ""
        text = difference.text + (f", on {plural(len(difference.ranks), 'rank')[2:]} {on}" if on else "")
        self.findings.append(CheckFinding(what, step, min(difference.ranks, default=0), cause, text, difference.name,
                                          line=difference.line))

    # -- are the runs comparable?

    def comparable(self, steps: int) -> bool:
        for step in range(1, steps + 1):
            if not self.findings:
                self.inputs(step)
        if not self.findings:
            self.weights()
        return not self.findings

    def inputs(self, step: int) -> None:
        """Compare the tokens given to models: those of the reference, all of them equally often.

        An argument without its name in the other run is looked for among all; a stage may be given something else.
        """
        others = self.other.tokens("input", step)
        for key, of_rank in self.reference.tokens("input", step).items():
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
                    self.say("inputs", f"{plural(len(due), 'token')} of argument {key[0]} in step {step}")
                elif name == key and (ranks or times.any()):
                    text = (f"argument {key[0]} has tokens that the reference's batch has not" if ranks else
                            f"{int((times == 0).sum())} of {len(values)} different tokens of the reference's batch are "
                            f"missing in argument {key[0]}, others come {times.max():g} times as often")
                    return self.find("inputs", step, "another global batch", Difference(str(key[0]), ranks, text))
        return None

    def weights(self) -> None:
        """Find each tensor of the other run in the reference's, and what of it is cut."""
        wholes = self.other.wholes("weight", 1)
        self.places, lost = placed(self.reference, self.other)
        named = [whole for whole in lost if not whole.name.startswith("?")]
        absent = self.reference.names - {place.whole.name for place in self.places.values()}
        if named:
            first = named[0]
            self.find("initial weights", 1, "other initial weights", Difference(first.name, [*first.ranks], (
                f"{len(named)} of {plural(len(wholes), 'tensor')} are no parts of the reference's, first {first.name} "
                f"of shape {first.shape}: give both runs the same weights, or --start-from")))
        elif absent:
            self.find("initial weights", 1, "missing weights", Difference(min(absent), [], (
                f"no rank has {plural(len(absent), 'parameter')} of the reference, first {min(absent)}")))
        cut = {axis: len({place.whole.name for place in self.places.values() if place.axis == axis and place.cut})
               for axis in ("rows", "columns")}
        self.say("initial weights", f"{plural(len(wholes), 'tensor')} on {plural(len(self.other.ranks), 'rank')} are "
                 f"parts of {len(self.reference.names)}; {cut['rows']} are cut by rows, {cut['columns']} by columns")

    # -- modules

    def covers(self, rank: int, module: str) -> bool:
        """Whether a rank has a part of every parameter that the reference has below a module."""
        if not self.held:
            for (holder, _), place in self.places.items():
                self.held.setdefault(holder, set()).add(place.whole.name)
            for whole in self.reference.wholes("weight", 1):
                for path in (f".{name}".split(".") for name in (whole.name, *whole.aliases)):
                    for length in range(1, len(path)):
                        self.below.setdefault(".".join(path[1:length]), set()).add(whole.name)
        return self.below.get(module, set()) <= self.held.get(rank, set())

    def modules(self, kind: str, step: int, scale: float = 1.0) -> tuple[dict[str, Difference], list[str]]:
        """The modules that differ, and those that are equal on all ranks, in the order of the reference.

        What is undone within a module, or before the last one, is no difference: parts of a sum may be added there.
        """
        due, order = self.reference.tokens(kind, step), self.reference.order(kind, step)
        subject = "outputs" if kind == "output" else "gradients of outputs"
        results: dict[int, dict[str, tuple[int, int]]] = {}
        seen: dict[Any, list[Array]] = {}
        for (name, width), of_rank in self.other.tokens(kind, step).items():
            for rank, tokens in of_rank.items():
                key = self.other.there(rank, name), width
                if key in due and self.covers(rank, key[0]):
                    values, own = np.sort(np.concatenate([*due[key].values()])), tokens / scale
                    limit, far = self.limit(kind, step, key, values), nearest(values, own)[1]
                    results.setdefault(rank, {})[key[0]] = int((far > limit).sum()), len(own)
                    self.note(subject, float(far[far <= limit].max(initial=0)) / limit)
                    seen.setdefault(key, []).append(own)
        wrong: dict[str, Difference] = {}
        for rank, counts in results.items():
            last = next((name for name in reversed(order) if name in counts), "")
            for name, (off, of) in counts.items():
                above = {name[:at] for at in range(len(name)) if name[at] == "." or not at} - {name}
                inside = kind == "output" and any(counts.get(module, (1, 0))[0] == 0 for module in above)
                if off and counts[last][0] and not inside:
                    difference = wrong.setdefault(name, Difference(name, [], f"{off} of {plural(of, 'token')}"))
                    difference.ranks.append(rank)
        for key, parts in seen.items():
            values = np.concatenate([*due[key].values()])
            far = nearest(np.sort(np.concatenate(parts)), values[values != 0])[1]
            lost = int((far > self.limit(kind, step, key, values)).sum())
            if lost and not any(counts.get(key[0], (0, 0))[0] for counts in results.values()):
                wrong[key[0]] = Difference(key[0], [], f"{lost} of {plural(len(values), 'token')} are on no rank")
        equal = {name for counts in results.values() for name in counts} - wrong.keys()
        return {name: wrong[name] for name in order if name in wrong}, [name for name in order if name in equal]

    def scale(self, step: int) -> float:
        """By what gradients of outputs exceed the reference's: a loss may be a mean over fewer tokens.

        It is that of the first module in backward whose outputs tell tokens apart; where none does, that of means.
        """
        due, out = (self.reference.tokens(kind, step) for kind in ("output gradient", "output"))
        own, own_out = ({(self.other.there(rank, name), width, rank): tokens for (name, width), of_rank in
                         self.other.tokens(kind, step).items() for rank, tokens in of_rank.items()}
                        for kind in ("output gradient", "output"))
        for name in self.reference.order("output gradient", step):
            for key, rank in ((key[:2], key[2]) for key in own if key[0] == name and key[:2] in due and key in own_out):
                values, gradients = (np.concatenate([*tokens[key].values()]) for tokens in (out, due))
                given, limit = own_out[*key, rank], self.limit("output", step, key, values)
                if len(values) != len(gradients) or len(given) != len(own[*key, rank]):
                    continue
                sort = np.argsort(values)
                apart = np.diff(values[sort], prepend=-np.inf, append=np.inf) > 2 * limit
                at, far = nearest(values[sort], given)
                gradient = gradients[sort][at]
                use = (far <= limit) & apart[at] & apart[at + 1] & (np.abs(gradient) > 1e-3 * np.abs(gradients).max())
                if use.any():
                    return float(np.median(own[*key, rank][use] / gradient[use]))
            every = [tokens for key, tokens in own.items() if key[0] == name and key[:2] in due]
            if every:
                means = [np.abs(np.concatenate(parts)).mean() for parts in (every, [
                    tokens for key in due if key[0] == name for tokens in due[key].values()])]
                return float(means[0] / means[1]) if means[1] else 1.0
        return 1.0

    def loss(self, step: int) -> tuple[float | None, float, float]:
        """The factor of the loss, if it is a simple one, the loss, and the reference's; both are means over ranks."""
        means = [run.loss(step) for run in (self.other, self.reference)]
        ratio = means[0] / means[1] if means[1] else float("nan")
        error = self.limit("loss", step, "", np.array([means[1]])) / abs(means[1] or 1)
        return simple(ratio, error), means[0], means[1]

    # -- parameters

    def parameters(self, kind: str, step: int) -> tuple[list[Difference], int]:
        """The tensors that are not the reference's parts, and how many were compared."""
        due = {whole.name: whole for whole in self.reference.wholes(kind, step)}
        gradients = {whole.name: whole for whole in self.reference.wholes("gradient", step) if kind == "updated"}
        subject = {"gradient": "gradient", "clipped": "clipping", "updated": "update"}[kind]
        wrong, count, parts = [], 0, dict[str, list[Whole]]()
        for whole in self.other.wholes(kind, step):
            place = self.places.get((whole.ranks[0], whole.name))
            full = due.get(place.whole.name) if place is not None else None
            if place is None or full is None or len(whole.rows) != place.size[0]:
                continue
            count += 1
            parts.setdefault(full.name, []).append(whole)
            error, factor, ranks = 0.0, None, list(whole.ranks)
            for axis, owners in (("rows", whole.owners), ("columns", whole.column_owners)):
                if axis != place.axis and place.cut:
                    continue
                of_full, own = getattr(full, axis), getattr(whole, axis)
                values = of_full[place.at] if axis == place.axis and place.at is not None else of_full
                limit = self.limit(kind, step, full.name, of_full)
                far = distance(own, values)
                if full.name in gradients and len(full.columns) == 1:  # the sign of a rounding may decide an update
                    gradient = gradients[full.name].rows
                    still = np.abs(gradient) <= self.limit("gradient", step, full.name, gradient)
                    far = far * ~(still if place.at is None or axis != place.axis else still[place.at]
                                  ) if axis == "rows" else far * (not still.any())
                if len(far) and far.max() / limit > max(error, 1.0):
                    size = float(values @ values)
                    factor = float(own @ values) / size if size else None
                    if factor is not None and np.abs(own - factor * values).max() > limit * max(1, abs(factor)):
                        factor = None
                    of = {*owners[far > limit].tolist()}
                    ranks = sorted(of) if of <= {*whole.ranks} else ranks
                error = max(error, float(far.max(initial=0)) / limit)
                if kind != "updated" and axis == place.axis and error <= 1 and (share := self.factor_off(
                        kind, step, full.name, own, values)) > 1:
                    error, factor = share, float(own @ values) / float(values @ values)
            self.note(subject, error if error <= 1 else 0.0)
            if error > 1:
                wrong.append(Difference(full.name, ranks, "", factor, whole.line))
        if kind == "gradient":
            self.compared = {*parts}
            without = due.keys() - parts.keys()
            absent = [Difference(place.whole.name, [rank], "there is no gradient", 0.0)
                      for (rank, _), place in self.places.items() if place.whole.name in without
                      and self.other.has_gradients(rank, step)]
            wrong, count = wrong + absent, count + len(absent)
        if wrong and not wrong[0].text:
            wrong[0].text = self.sum_of(parts[wrong[0].name], due[wrong[0].name], kind, step)
        return wrong, count

    def sum_of(self, parts: list[Whole], full: Whole, kind: str, step: int) -> str:
        """Whether whole tensors of several ranks make the reference's together."""
        whole = [part for part in parts if part.rows.shape == full.rows.shape]
        different = [part for number, part in enumerate(whole) if not any(
            np.allclose(part.columns, other.columns, rtol=1e-9, atol=0) for other in whole[:number])]
        if not 1 < len(different) < len(full.rows) + len(full.columns):
            return ""
        left = np.array([np.concatenate([part.rows, part.columns]) for part in different]).T
        right = np.concatenate([full.rows, full.columns])
        shares = np.linalg.lstsq(left, right, rcond=None)[0]
        if np.abs(left @ shares - right).max() > self.limit(kind, step, full.name, right) or np.ptp(shares) > 1e-3:
            return ""
        ranks = listed([part.ranks[0] for part in different])
        return f"the reference's is {shares[0]:.4g} times the sum over ranks {ranks}: they were not added"

    # -- a step

    def judge(self) -> dict[str, Any]:
        steps = min(self.reference.steps, self.other.steps)
        comparable = self.comparable(steps)
        steps = min(steps, 1) if self.coarse else steps
        for step in range(1, steps + 1) if comparable else ():
            self.step(step)
            if self.findings or self.cannot:
                return self.document(steps)
        if comparable and self.reference.steps != self.other.steps:
            self.find("inputs", steps + 1, "another number of steps", Difference("", [], (
                f"{plural(self.other.steps, 'update')}, and {self.reference.steps} in the reference")))
        return self.document(steps)

    def step(self, step: int) -> None:
        results = {kind: self.parameters(kind, step) for kind in ("gradient", "clipped", "updated")}
        settings = self.settings(step)
        if self.roundoff > 1e-12 and self.again is None:
            results["updated"] = settings, len(settings)
        forward, alike = self.modules("output", step)
        backward, unlike = self.modules("output gradient", step, self.scale(step))
        factor, loss, due = self.loss(step)
        for subject, equal, differing in (("outputs", alike, forward), ("gradients of outputs", unlike, backward)):
            self.unequal |= {subject} if differing else set()
            self.say(subject, f"{len(equal)} of {plural(len(equal) + len(differing), 'module')} of step {step}")
        times = "" if factor in (1, None) else f", {factor:g} times {due:.9g}"
        self.say("loss", f"{loss:.9g} in step {step}{times}")
        for kind, subject in (("gradient", "gradient"), ("clipped", "clipping"), ("updated", "update")):
            wrong, count = results[kind]
            self.unequal |= {subject} if wrong else set()
            if count:
                self.say(subject, f"{count - len(wrong)} of {plural(count, 'tensor')} of step {step}")
        if not any(wrong for wrong, _ in results.values()):
            return None
        self.cannot = self.obstacle(step)
        if self.cannot:
            return None
        if forward:
            return self.first_module("outputs", "output", step, forward, alike)
        clips = [bool(run.kinds.get(("clipped", step))) for run in (self.other, self.reference)]
        if clips[0] != clips[1] and not results["gradient"][0]:
            return self.find("clipping", step, "clipping in one run", Difference("", [], (
                f"gradients are clipped in {'this run' if clips[0] else 'the reference'} only")))
        kind = next(kind for kind, (wrong, _) in results.items() if wrong)
        wrong, count = results[kind]
        common = self.common(wrong)
        if kind == "gradient" and (factor is None or (
                common is not None and len(wrong) == count and not self.normalised(factor, step))):
            line = next((entry.line for _, entry in self.other.kinds.get(("loss", step), [])), "")
            of = f"{factor:g} times the reference's" if factor is not None else "no multiple of the reference's"
            share = f", and each gradient is {common:.4g} times the reference's" if common is not None else ""
            return self.find("loss", step, "another loss", Difference("", [], (
                f"{loss:.9g}, {of}, {due:.9g}; outputs are equal{share}"), line=line))
        if kind == "gradient" and backward and self.explains(next(iter(backward)), step, {one.name for one in wrong}):
            return self.first_module("gradients of outputs", "output gradient", step, backward, unlike)
        ranks = {rank for one in wrong for rank in one.ranks}
        shares = [self.common([one for one in wrong if rank in one.ranks]) for rank in ranks]
        if kind == "gradient" and not any(clips) and 2 * len(wrong) > count > 1 and all(
                share is not None and simple(share, self.coarseness) is None for share in shares):
            wrong[0].text = "no simple factor, as of clipping by hand with another norm"
            return self.first_parameter("clipped", step, wrong, count, common, by_hand=True)
        if kind == "updated" and settings:
            wrong[0].text = settings[0].text
        return self.first_parameter(kind, step, wrong, count, common, bool(backward))

    @property
    def coarseness(self) -> float:
        """The relative error of a factor."""
        return max(1e-6, 10 * float(np.sqrt(self.roundoff)))

    def common(self, wrong: list[Difference]) -> float | None:
        """The factor that all of these have, if there is one."""
        factors = [one.factor for one in wrong if one.factor is not None]
        equal = len(factors) == len(wrong) and np.ptp(factors) <= self.coarseness * max(map(abs, factors))
        return factors[0] if equal else None

    def normalised(self, factor: float, step: int) -> bool:
        """Whether a factor of the loss is that of a mean over a rank's own tokens, or over those of several."""
        ranks = [len({rank for rank, _ in run.kinds.get(("loss", step), [])}) for run in (self.other, self.reference)]
        shares = [[number for number in range(1, count + 1) if count % number == 0] for count in ranks]
        return any(abs(factor * above / below - 1) < 1e-9 for above in shares[0] for below in shares[1])

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

    def settings(self, step: int) -> list[Difference]:
        """The parameters whose optimizer has other settings than in the reference."""
        due = {whole.name: whole for kind in ("gradient", "clipped") for whole in self.reference.wholes(kind, step)
               if whole.settings}
        wrong = []
        for whole in (whole for kind in ("gradient", "clipped") for whole in self.other.wholes(kind, step)):
            place = self.places.get((whole.ranks[0], whole.name))
            full = due.get(place.whole.name) if place is not None else None
            own, of_full = whole.settings, full.settings if full is not None else {}
            other = [f"{key} is {own[key]:g}, and {of_full[key]:g} in the reference"
                     for key in own.keys() & of_full.keys() if abs(own[key] - of_full[key]) > 1e-6 * abs(of_full[key])]
            if full is not None and other:
                wrong.append(Difference(full.name, [*whole.ranks], min(other), None, whole.line))
        return wrong

    def factor_off(self, kind: str, step: int, name: str, own: Array, due: Array) -> float:
        """How far numbers are from the reference's along these, in thresholds: a factor is seen before its numbers are.

        What a rounding of the weights makes of the factor is measured on all parameters; without a measure it is 0.
        """
        size = float(due @ due)
        if self.again is None or not size:
            return 0.0
        if (kind, step) not in self.factors:
            self.factors[kind, step] = {}
            for whole in self.reference.wholes(kind, step):
                both = [(a, b) for a, b in self.pairs(kind, step, whole.name) if a.any()]
                if both:
                    a, b = (np.concatenate(parts) for parts in zip(*both, strict=True))
                    self.factors[kind, step][whole.name] = max(abs(float(a @ b / (a @ a)) - 1), float(
                        np.linalg.norm(a - b) / np.linalg.norm(a)) / len(a) ** 0.5)
        measured = self.factors[kind, step]
        if name not in measured:
            return 0.0
        limit = MARGIN * max(measured[name], float(np.median([*measured.values()])), self.roundoff)
        return abs(float(own @ due) / size - 1) / limit

    def explains(self, module: str, step: int, wrong: set[str]) -> bool:
        """Whether a wrong gradient of a module's output is behind the wrong parameters: most before it are wrong then.

        Ranks may hold parts of a sum in the gradient of an output, as where a loss is a mean on each of them.
        """
        order = self.reference.order("output", step)
        earlier = {name for name in order[: order.index(module)] if not f"{name}.".startswith(f"{module}.")}
        before = [name for name in self.compared if name.rpartition(".")[0] in earlier]
        return not before or 2 * len(wrong & {*before}) >= len(before)

    def first_module(self, what: str, kind: str, step: int, wrong: dict[str, Difference], equal: list[str]) -> None:
        name, order = next(iter(wrong)), self.reference.order(kind, step)
        before = [other for other in order[: order.index(name)] if other in equal]
        entry = next(entry for _, entry in self.reference.kinds[kind, step] if entry.name == name)
        first, way = wrong[name], "forward" if kind == "output" else "backward"
        last = f"{before[-1] or 'the model'} before it is equal" if before else "it is the first of all"
        first.line, first.text = entry.line, (
            f"{name or 'the model'} ({entry.module}) is the first {way} whose {kind} is not the reference's: "
            f"{first.text}; {last}")
        self.find(what, step, "another output" if kind == "output" else "another gradient of an output", first)

    def first_parameter(self, kind: str, step: int, wrong: list[Difference], count: int, common: float | None,
                        parts: bool = False, by_hand: bool = False) -> None:
        what, words = {"gradient": ("gradient", "the gradient"), "clipped": ("clipping", "the clipped gradient"),
                       "updated": ("update", "the updated weight")}[kind]
        first = wrong[0]
        names = [*dict.fromkeys(one.name for one in wrong)]
        many = "every parameter" if len(wrong) == count else f"{len(wrong)} of {count} tensors"
        times = f"{first.factor:.6g} times the reference's" if first.factor is not None else "not the reference's"
        norms = [sorted({float(entry.rows[0]) for _, entry in run.kinds.get(("norm", step), [])})
                 for run in (self.other, self.reference)] if kind == "clipped" else []
        equal = (f"; the norm is {norms[0][0]:.9g}, and {norms[1][0]:.9g} in the reference" if norms and all(norms) else
                 "; outputs, loss and gradients of outputs are equal" if by_hand else
                 "; outputs and loss are equal" if kind == "gradient" and parts else
                 "; outputs, loss and gradients of outputs are equal" if kind == "gradient" else
                 "; gradients are equal")
        listing = f"{', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
        first.text = (f"{words} of {first.name} is {times} ({many}{', with this factor' if common is not None else ''}"
                      f": {listing}){f'; {first.text}' if first.text else ''}{equal}")
        first.ranks = sorted({rank for one in wrong if one.name == first.name for rank in one.ranks})
        self.find(what, step, f"another {what}", first)

    def document(self, steps: int) -> dict[str, Any]:
        """The document `zerosim.check/3`."""
        wrong, verdicts = {finding.what for finding in self.findings}, []
        threshold = (f"{MARGIN} times what moving the weights by a rounding changes" if self.again is not None else
                     f"{(MARGIN if self.coarse else 1) * np.sqrt(self.roundoff):.1e} of the largest number")
        for what in SUBJECTS:
            if what in wrong:
                continue
            why = "; ".join(self.counts.get(what, [])[:4])
            judged = bool(why) and not (what == "gradient" and not self.counts.get(what))
            if what in self.worst:
                why += f"; at most {self.worst[what]:.1g} of the threshold, {threshold}"
            if what == "update" and self.roundoff > 1e-12 and self.again is None:
                judged, why = False, "in 32 bits and fewer give a third record, of --noise" + (
                    "; without it only step 1 is judged in 16 bits" if self.coarse else "")
            if self.cannot and what in SUBJECTS[2:]:
                judged, why = False, self.cannot
            elif what in self.unequal:  # before a finding has begun, or parts of a sum
                judged, why = False, f"equal are {why}; others {'follow the finding' if wrong else 'are parts of sums'}"
            verdicts.append({"what": what, "verdict": SAME if judged else NOT_JUDGED, "why": why or "it was not seen",
                             "judged": steps * judged, "of": steps})
        return {"schema": "zerosim.check/3", "findings": [vars(finding) for finding in self.findings], "suspicions": [],
                "steps": steps, "updates": steps, "ranks": len(self.other.ranks), "micro_batches": 0, "parameters": 0,
                "parameters_judged": 0, "verdicts": verdicts}


def simple(ratio: float, error: float) -> float | None:
    """The quotient of integers of at most 64 that a ratio is, within a relative error."""
    for below in range(1, 65):
        above = round(ratio * below)
        if 0 < above <= 64 and abs(ratio * below / above - 1) <= max(error, 1e-12):
            return above / below
    return None


def same(reference: list[list[Entry]], other: list[list[Entry]],
         again: list[list[Entry]] | None = None) -> dict[str, Any]:
    """The document of the comparison of two runs, from the records of their ranks."""
    return Judge(Run(reference), Run(other), Run(again) if again else None).judge()
