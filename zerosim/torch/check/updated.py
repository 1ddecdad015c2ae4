"""Judges what updates did with each parameter, and what they could not do."""

from zerosim.core.words import plural
from zerosim.torch.check.book import EQUAL, Book
from zerosim.torch.check.record import Record, Step


def updates_of(book: Book, records: list[Record], rounds: list[list[Step]]) -> None:
    """What the updates did with each parameter, and what they could not do."""
    every = [step for record in records for step in record.steps if not step.skipped]
    steps, first = records[0].steps, records[0].steps[0]
    reached(book, steps, every)
    calls = [step.schedules for step in every if step.number > 1]
    if len(calls) >= 3 and len(records) > 1 and set(calls) == {len(records)}:
        book.find(first, "the scheduler steps once per rank",
                  f"it has stepped {len(records)} times for each update")
    if idle(book, steps):
        return
    changed = dict[str, list[bool]]()
    """Whether each update has changed a parameter in 32 bits that had a gradient."""
    last = dict[int, list[Step]]()
    for now in (steps for steps in rounds if not any(step.skipped for step in steps)):
        before, last[now[0].optimizer] = last.get(now[0].optimizer, []), now
        for name in before[0].gradients if before and not any(
                group.get("lr") == 0.0 for step in before for group in step.settings) else ():
            weights = [(step.weights.get(name), after.weights.get(name))
                       for step, after in zip(before, now, strict=True)]
            if all(one and two and not one.narrow for one, two in weights) and any(
                    step.gradients[name].squares.any() for step in before if name in step.gradients):
                changed.setdefault(name, []).append(any(one and two and one.bits != two.bits for one, two in weights))
    stuck = [name for name, changes in changed.items() if len(changes) > 1 and not any(changes)]
    if stuck and any(map(any, changed.values())):
        due, moved = rounded(every, stuck[0])
        why = f"{due - moved} of {due} sampled updates were rounded away" if due else "no update was seen to reach it"
        count = plural(len(changed[stuck[0]]), "update")
        book.find(first, "a parameter is never changed", f"{stuck[0]} gets gradients, an optimizer has it, and none of "
                  f"{count} has changed it ({why}; {len(stuck)} such)", stuck[0])
    due, moved = rounded(every, *{name for step in every for name, weight in step.weights.items() if weight.narrow})
    if 2 * moved < due:
        book.find(first, "updates are rounded away",
                  f"{due - moved} of {due} sampled elements of 16 bits that had a gradient were the same after the "
                  "update: keep weights in float32, or round stochastically")


def reached(book: Book, steps: list[Step], every: list[Step]) -> None:
    """Whether gradients reach what is optimized, and optimizers what gets gradients: `steps` are those of rank 0."""
    first, updated = steps[0], {name for step in every for name in step.parameters}
    lonely = [name for name in first.orphans if name not in updated and (len(steps) == 1 or name in steps[1].orphans)
              and len({source[name].bits for step in steps for source in (step.weights, step.others)
                       if name in source}) <= 1]
    if lonely and not (first.ahead and len(lonely) >= len(updated)):  # else a head is trained alone
        book.find(first, "a parameter that no optimizer has",
                  f"{lonely[0]} gets gradients and is never updated ({len(lonely)} such): is it frozen on purpose?",
                  lonely[0])
    trains = {name for step in every for name, weight in step.weights.items() if weight.trains and name in updated}
    got = trains & {name for step in every for name in (*step.terms, *step.gradients)}
    never = sorted(trains - got)
    frozen = [name for name, weight in first.weights.items() if not weight.trains]
    if 0 < len(frozen) < len(trains) and frozen != [*first.weights][: len(frozen)]:  # else a backbone, or adapters
        book.find(first, "a parameter never gets a gradient", f"{frozen[0]} has an optimizer and no requires_grad, "
                  f"between parameters that train; {len(frozen)} of {len(first.weights)} parameters have none",
                  frozen[0])
    if never and got and not any("sparse gradients" in step.reasons for step in every):
        book.find(first, "a parameter never gets a gradient",
                  f"{never[0]} has requires_grad and an optimizer, and got no gradient in "
                  f"{plural(len(steps), 'step')}; {len(never)} of {len(trains)} parameters did not: "
                  "detached, or below a reentrant checkpoint whose input needs no gradient?", never[0])
    elif got:
        book.judge("parameters", EQUAL, f"all {plural(len(trains), 'parameter')} that an optimizer has and that train "
                   "got gradients; an optimizer has each parameter with a gradient")


def idle(book: Book, steps: list[Step]) -> bool:
    """Whether the learning rate of an optimizer is 0 in several steps, up to the last one."""
    for number in {step.optimizer for step in steps}:
        own = [step for step in steps if step.optimizer == number and not step.skipped]
        zeros = [{group.get("lr") for group in step.settings} == {0.0} for step in own]
        first = max((at for at, zero in enumerate(zeros, 1) if not zero), default=0)
        if len(own) - first > 1:
            book.find(own[first], "the learning rate is 0",
                      f"in the last {len(own) - first} of {plural(len(own), 'step')}: nothing is updated")
            return True
    return False


def rounded(steps: list[Step], *names: str) -> tuple[int, int]:
    """Of the sampled elements of these parameters, how many had a gradient, and how many of them an update changed."""
    weights = [step.weights[name] for step in steps for name in names if name in step.weights]
    return sum(weight.due for weight in weights), sum(weight.moved for weight in weights)
