"""The causes of exceptions in a learner's function, with fixes, and of loops that do not end.

Python and NumPy say which operation failed. The hints here say what that means in code of collectives and stages.
A loop is explained by its condition and the values of its variables.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from zerosim.parts.loading import read_python
from zerosim.payloads.terms import LIKE
from zerosim.teach.proofs.case import Observation
from zerosim.worlds.local import StillRunning
from zerosim.worlds.running import CodePlace, places_of

NAMED = ("only the sent array is positional: comm.exchange(outgoing, to=…, into=…, source=…, reduce=…), "
         "comm.send(outgoing, to=…), comm.recv(into=…, source=…, reduce=…)")
WHOLE = "a rank, a chunk and a length are integers: / makes a float of them, // does not"
CUT = ("chunks have ceil(count / size) elements, and the last may have fewer or none: take the length of chunks[c] "
       "itself, or cut with zerosim.sharding.split")
AROUND = ("a partner's number is outside 0 … comm.size − 1: on a ring take it modulo comm.size, as right(comm) does; "
          "in a tree skip the exchange if there is no partner; in groups check the group's number and the number "
          "within the group")
ASKED = ("a communicator has only rank, size, exchange, send and recv: MPI's Get_rank() is comm.rank, its "
         "Sendrecv comm.exchange, its Send and Recv comm.send and comm.recv; write an all-reduce with these")

HINTS: tuple[tuple[str, str], ...] = (
    (r"(exchange|send|recv)\(\) (takes|missing|got an unexpected|got some positional)", NAMED),
    (r"'(Observed|\w*Communicator)' object has no attribute", ASKED),
    (r"'int' object is not callable", "comm.rank and comm.size are numbers: write them without parentheses"),
    (r"'int' object has no attribute '(rank|size)'", "left and right take comm itself: right(comm)"),
    (r"'(Observed|\w*Communicator)' object is not subscriptable", "comm is no list: the vector is the next parameter"),
    (r"(left|right)\(\) missing 1 required", "left and right take the communicator: right(comm), left(comm)"),
    (r"'int' object is not iterable", "a loop over a number needs range: for step in range(comm.size - 1)"),
    (r"add\(\) takes from 2 to 3 positional arguments but 0 were given",
     "pass the function itself, reduce=reduce or np.add; parentheses call it at once"),
    (r"name '(left|right)' is not defined", "from zerosim.comm import left, right"),
    (r"name 'np' is not defined", "import numpy as np"),
    (r"=-?\d+ is not a rank", AROUND),
    (r"=-?\d+\.\d* is not a rank", WHOLE),
    (r"=None is not a rank", "a rank that has no partner in a round sends nothing: skip the call there"),
    (r"(slice indices|list indices|indices|index) must be integers", WHOLE),
    (r"'(numpy\.)?float(64)?' object cannot be interpreted as an integer", WHOLE),
    (r"(Cannot cast ufunc|cast.*from dtype\('O'\))", LIKE),
    (r"(could not broadcast|operands could not be broadcast|non-broadcastable|cannot reshape|equal division)", CUT),
    (r"^matmul:", "the input has another width than the unit: pass each unit the result of the one before it, and the "
                  "first one part.inputs"),
    (r"truth value of an array",
     "an array was given where a list of arrays is expected (forward and backward take one for each micro-batch, as "
     "part.inputs is), or two arrays are compared: np.array_equal does that"),
    (r"cannot access local variable", "it has no value there: was it deleted before, or set only on another path?"),
    (r"'generator' object is not subscriptable", "loop over it: for part in replica.parts(batch)"),
    (r"zero-size array", "a chunk may be empty: " + CUT),
    (r"too many values to unpack|not enough values to unpack", "there are comm.size chunks, on one rank a single one"),
    (r"(modulo by zero|division by zero|modulo or division by zero)",
     "on one rank comm.size − 1 is 0: count ranks and chunks modulo comm.size"),
    (r"math domain error|log2", "on one rank there may be nothing to do: let the loop run no rounds"),
    (r"maximum recursion depth", "it calls itself without end: does its name hide another function?"),
    (r"assignment destination is read-only", "write into a copy: x = x.copy()"),
    (r"(string|str)' object is not callable", "reduce= is a function of two arrays, such as np.add"),
    (r"sum\(\) (got|takes)|'Term' object cannot be interpreted as an integer|_sum_dispatcher",
     "reduce= adds two arrays: np.add; np.sum adds up one"),
    (r"'(tuple|generator|range)' object does not support item assignment", "make a list of it"),
    (r"is of type (Chunks|list|tuple); a message is", "send one chunk, chunks[c], or several at once, chunks[a:b]"),
    (r"is of type (\w+); a message is a NumPy array", "wrap a single number: np.array([value])"),
    (r"operand type\(s\) for .*: '(NoneType|builtin_function_or_method|function|method)'",
     "a function that works in place returns None: use the array that it wrote to"),
    (r"'NoneType' object (has no attribute|is not subscriptable|is not iterable)",
     "a function that works in place returns None: use the array that it wrote to"),
)
"""Patterns of exceptions' messages, and the cause of each."""


TOO_MUCH = ("it needs more than the 4 GB that a function may use here: vectors have a few dozen elements, so look for "
            "a list or an array that grows in a loop, or for a wrong length")
UNCERTAIN = (CUT, AROUND, WHOLE)
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
