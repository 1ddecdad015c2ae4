"""The causes of exceptions in a learner's function, with fixes, of loops that do not end, and of runs that end early.

Python and NumPy say which operation failed. The hints here say what that means in code of collectives and stages.
A loop is explained by its condition and the values of its variables, an early end by unreceived messages, unanswered
receives, or the exception.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from zerosim.errors import CollectiveError, Deadlock, Runaway
from zerosim.instruments.record import Sent
from zerosim.parts.loading import read_python
from zerosim.payloads.terms import LIKE
from zerosim.teach.proofs.case import Case, Observation, listed
from zerosim.worlds.local import StillRunning
from zerosim.worlds.running import CodePlace, places_of

TABLE: Mapping[str, Any] = tomllib.loads(
    resources.files("zerosim.teach.proofs").joinpath("hints.toml").read_text("utf-8"))
CUT: str = TABLE["cause"]["cut"]
HINTS = (
    (r"(Cannot cast ufunc|cast.*from dtype\('O'\))", LIKE),
    *((each["pattern"], each.get("says", "") + TABLE["cause"].get(each.get("cause"), "")) for each in TABLE["hint"]),
)
"""Patterns of exceptions' messages, and the cause of each."""
TOO_MUCH = ("it needs more than the 4 GB that a function may use here: vectors have a few dozen elements, so look for "
            "a list or an array that grows in a loop, or for a wrong length")
UNCERTAIN = tuple(TABLE["cause"][name] for name in ("cut", "around", "whole"))
"""The hints that are often right, and not always."""


def hint(error: BaseException) -> str | None:
    """The cause of an exception, in words; None if its message says all that is known.

    >>> hint(TypeError("Observed.send() takes 2 positional arguments but 3 were given"))[:34]
    'only the sent array is positional:'
    """
    said = f"{error}"
    if isinstance(error, MemoryError):
        return TOO_MUCH
    found = next((words for pattern, words in HINTS if re.search(pattern, said)), None)
    return Observation(found) if found in UNCERTAIN else found


def line_in(error: BaseException, file: str) -> int | None:
    """The last line of `file` in the traceback of an exception, or in the stack of a rank that still runs."""
    lines = [place.line for place in places_in(error) if place.file == file]
    return lines[-1] if lines else None


def places_in(error: BaseException) -> Sequence[CodePlace]:
    """The traceback of an exception, or the stack of a rank that still runs, the innermost call last."""
    return error.places if isinstance(error, StillRunning) else places_of(error)


def raised(error: BaseException, file: str) -> str:
    """An exception in one line: its message, the line of a learner's file, and the rank."""
    line = line_in(error, file)
    where = f"in line {line}" if line else ""
    if isinstance(error, NotImplementedError):
        return f"not written yet: NotImplementedError {where}".rstrip()
    said = re.sub(r"\b(?:Observed|\w*Communicator)\.(exchange|send|recv)\(", r"comm.\1(", f"{error}").rstrip()
    named = "" if type(error).__module__.startswith("zerosim.") else type(error).__name__
    if isinstance(error, AssertionError) and not said:
        said = "an assertion does not hold"
    what = ": ".join(filter(None, [named, said]))
    return " ".join([", ".join(filter(None, [what, where])), *getattr(error, "__notes__", [])])


Loop = ast.While | ast.For


def why_it_never_ends(places: Sequence[CodePlace], file: str) -> str | None:
    """The reason in words, from a rank's call stack, the innermost call last; None if it is in no loop of `file`."""
    found = [(loop, place) for place in places if place.file == file for loop in loops_around(file, place.line)]
    endless = [(loop, place) for loop, place in found if isinstance(loop, ast.While)] or found
    if not endless:
        return None
    loop, place = endless[-1]
    told = f"the loop of line {loop.lineno}, {written(loop)}, does not end"
    return f"{told}: {asked_by(loop, place)}" if isinstance(loop, ast.While) else told


def while_that_never_ends(places: Sequence[CodePlace], file: str) -> str | None:
    """The reason why a `while` loop never ends; None if the rank is in none."""
    return why_it_never_ends([place for place in places if any(
        isinstance(loop, ast.While) for loop in loops_around(file, place.line))], file)


def loops_around(file: str, line: int) -> Iterator[Loop]:
    """The loops of a file that contain a line, the innermost last."""
    try:
        tree = ast.parse(read_python(file))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, Loop) and node.lineno <= line <= (node.end_lineno or 0):
            yield node


def written(loop: Loop) -> str:
    """The first line of a loop.

    >>> written(ast.parse("while  step<2 :\\n    pass").body[0])
    'while step < 2'
    """
    if isinstance(loop, ast.While):
        return f"while {ast.unparse(loop.test)}"
    return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"


def asked_by(loop: ast.While, place: CodePlace) -> str:
    """The variables of its condition with their present values, and the statements of the loop that change them."""
    names = names_in(loop.test)
    if not names:
        return "only break or return can end it, and neither is reached"
    now = " and ".join(f"{name} is {place.numbers[name]}" for name in names if name in place.numbers)
    changed = [name for name in names if may_change(name, loop, place)]
    if not changed:
        return f"{now}, and nothing within it changes {' or '.join(names)}".removeprefix(", and ")
    lines = " and ".join(f"line {node.lineno}, {ast.unparse(node)}," for node in assignments(loop, changed))
    done = lines or f"the code that uses {' and '.join(changed)}"
    return f"{now}: does {done} ever make this false?".removeprefix(": ")


def assignments(loop: ast.While, names: Sequence[str]) -> list[ast.Assign | ast.AugAssign]:
    """The assignments in a loop to one of these variables, in their order."""
    found = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Assign | ast.AugAssign)]
    targets = [(node, node.targets if isinstance(node, ast.Assign) else [node.target]) for node in found]
    return sorted((node for node, assigned in targets for each in assigned
                   if isinstance(each, ast.Name) and each.id in names), key=lambda node: node.lineno)


def may_change(name: str, loop: ast.While, place: CodePlace) -> bool:
    """Whether a statement in the loop assigns to a variable or, if it is no number, uses it at all."""
    uses = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.Name) and node.id == name]
    return any(not isinstance(node.ctx, ast.Load) or name not in place.numbers for node in uses)


def names_in(test: ast.expr) -> list[str]:
    """The variables of a condition, in their order in it, except functions and the communicator.

    >>> names_in(ast.parse("distance < min(comm.size, step)").body[0].value)
    ['distance', 'step']
    """
    functions = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    found = [node for node in ast.walk(test) if isinstance(node, ast.Name) and node not in functions]
    ordered = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    return list(dict.fromkeys(node.id for node in ordered if node.id != "comm"))


SHOWN = 4
"""The most messages that are drawn."""

FITTING = "A message sent to right(comm) is received from left(comm) by that neighbour: to= and source= must match"


def why_it_ended(case: Case) -> str | None:
    """Why a run ended early, in words; None if the exception's message says all."""
    failure = case.recording.failure
    if "comm" in case.subject.parameters[1:]:
        return (f"its parameters are ({', '.join(case.subject.parameters)}), but it is called with the communicator "
                "first: make comm the first parameter")
    if isinstance(failure, StillRunning | Runaway):
        return why_it_never_ends(places_in(failure), case.subject.file)
    if isinstance(failure, Deadlock):
        said = why_it_waits(case)
        return said if case.sends == "rendezvous" else Observation(said)
    if isinstance(failure, CollectiveError):
        return unequal(case) or left_over(case) or returned_otherwise(case) or hint(failure)
    return None if failure is None else called_otherwise(case, failure) or hint(failure)


def why_it_waits(case: Case) -> str:
    """The cause of a deadlock."""
    if case.sends == "rendezvous":
        return only_buffered(case)
    awaited, unasked = case.recording.awaited, case.recording.unasked
    alone = [rank for rank, receive in awaited.items() if receive.source == rank]
    if alone:
        return (f"rank {alone[0]} waits for a message from rank {alone[0]}, itself, which it has not sent: source= "
                "is its own number there; skip the rank itself in a loop over all ranks, or check how the partner is "
                "computed")
    stray = [sent for sent in unasked if sent.to in awaited and awaited[sent.to].source != sent.source]
    if stray:
        first = stray[0]
        return (
            f"no rank receives {drawn(case, stray)}: rank {first.to} waits for a message from rank "
            f"{awaited[first.to].source} instead. {FITTING if around(case, stray) else PAIRED}"
        )
    ended = [rank for rank, receive in awaited.items() if receive.source not in awaited]
    if ended:
        return too_few_sent(case, ended[0])
    if not case.messages and not unasked:
        return ("all waiting ranks receive before they send: use comm.exchange, which does both at once, or have one "
                "rank of each pair send first")
    waits = ", ".join(f"rank {rank} for rank {receive.source}" for rank, receive in sorted(awaited.items())[:SHOWN])
    return (f"ranks wait for each other, {waits}: which of them should send first, in the round in which the others "
            "receive?")


PAIRED = "to= of the sender and source= of the receiver must name each other: which rank sends to which in each round?"


def around(case: Case, stray: Sequence[Sent]) -> bool:
    """Whether all these messages go to ring neighbours."""
    return all((sent.to - sent.source) % case.size in (1, case.size - 1) for sent in stray)


def only_buffered(case: Case) -> str:
    return (
        "it works only as long as a send does not wait for its receiver; an MPI send may wait if its message is large: "
        f"here {listed('rank', sorted({sent.source for sent in case.recording.unasked}))} sent first, and no rank "
        "had received yet. Use comm.exchange, which does both at once, or have one rank of each pair receive first"
    )


def too_few_sent(case: Case, rank: int) -> str:
    source = case.recording.awaited[rank].source
    got = sum(message.source == source and message.to == rank for message in case.messages)
    sent = Counter(message.source for message in case.messages)
    lists = f"; ranks have sent {', '.join(str(sent[each]) for each in range(case.size))} messages" * (case.size <= 8)
    return (
        f"rank {source} has sent rank {rank} {count(got)} and ended, but rank {rank} receives once more{lists}. Does "
        f"rank {source} skip a round, or does rank {rank} run one too many? Every receive needs its send"
    )


def count(messages: int) -> str:
    return {0: "nothing", 1: "one message"}.get(messages, f"{messages} messages")


def unequal(case: Case) -> str | None:
    """The reason why a receive fails: the message has a different length or dtype than its destination."""
    if "both sides must name the same" not in f"{case.recording.failure}":
        return None
    for rank, receive in case.recording.awaited.items():
        sent = next((sent for sent in case.recording.unasked if (sent.source, sent.to) == (receive.source, rank)), None)
        if sent is None or (len(sent.carried) == receive.count and receive.dtype == object):
            continue
        if len(sent.carried) == receive.count:
            return (f"rank {rank} receives into a buffer of {receive.dtype}, but the message has the dtype of "
                    f"the vector: {LIKE}")
        if sent.outgoing and receive.into:
            return (
                f"rank {sent.source} sends {case.words(sent.outgoing)}, and rank {rank} receives it into "
                f"{case.words(receive.into)}, which has a different length: the outgoing chunk of a rank must be the "
                "incoming chunk of its neighbour"
            )
        return (f"rank {sent.source} sends {len(sent.carried)} elements, but rank {rank} receives into "
                f"{receive.count}: {CUT}")
    return None


def returned_otherwise(case: Case) -> str | None:
    """The reason why a result is refused: it has a different length or dtype than expected."""
    found = re.search(r"returned (\d+) × (\S+) on rank \d+; expected (\d+) × (\S+)", f"{case.recording.failure}")
    if found is None:
        return None
    count, dtype, due, due_dtype = found.groups()
    if dtype != due_dtype:
        return f"the result must have the dtype of the input, {due_dtype}: {LIKE}"
    if case.subject.collective == "reduce_scatter" and count == str(case.count):
        return "it returns the whole vector: return this rank's own chunk alone, split(x, comm.size)[comm.rank]"
    if case.subject.collective == "all_gather" and int(count) < int(due):
        return "it returns too few elements: join the chunks of all ranks in the order of ranks, as np.concatenate does"
    return CUT


def left_over(case: Case) -> str | None:
    """The reason why messages are left over: no rank had received them when all ranks had ended."""
    if "ended without receiving" not in f"{case.recording.failure}":
        return None
    return (f"no rank receives {drawn(case, case.recording.unasked)}: a send too many, or a receive too few; "
            "do sends and receives run for the same number of rounds, and on the same ranks?")


def drawn(case: Case, unasked: Sequence[Sent]) -> str:
    """Messages as arrows.

    >>> from zerosim.instruments.record import Recording
    >>> from zerosim.teach.proofs.subject import named_subject
    >>> case = Case(named_subject("ring.all_gather"), Recording(3), 3)
    >>> drawn(case, [Sent(1, 0, 2, (), range(1, 2))])
    '0 ─chunk 1─▶ 2 (round 1)'
    """
    arrows = [
        f"{sent.source} ─{case.words(sent.outgoing) if sent.outgoing else case.cargo(sent.carried)}─▶ {sent.to} "
        f"(round {sent.round})"
        for sent in unasked[:SHOWN]
    ]
    more = f" and {len(unasked) - SHOWN} more" if len(unasked) > SHOWN else ""
    return ", ".join(arrows) + more


def called_otherwise(case: Case, failure: Exception) -> str | None:
    """The reason why a call fails: the function takes other arguments than it is called with."""
    name, said = getattr(case.subject.function, "__name__", ""), f"{failure}"
    if not (isinstance(failure, TypeError) and said.startswith(f"{name}() ")):
        return None
    root = ["root"] * case.subject.kind.rooted
    inside = case.subject.manner == "in place"
    given = ", ".join(["comm", *(case.subject.kind.parameters if inside else ["x"]), *root])
    return (f"it is called as {name}({given}), and reduce= if it has a parameter of that name: declare these "
            "parameters")
