"""The code of functions that are there already, exchanged for that of a changed file."""

import gc
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType


def functions_by_file() -> dict[str, list[FunctionType]]:
    """All functions there are, those made by others and kept somewhere among them."""
    found = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType:
            found[each.__code__.co_filename].append(each)
    return found


def exchange(functions: Iterable[FunctionType], path: str, source: str) -> bool:
    """Give each of the functions, which come from the file at `path`, the code that it has in `source`.

    False if it cannot be told which is which, or a function uses other variables of the one around it than before.
    """
    found = list(codes(compile(source, path, "exec", dont_inherit=True)))
    namesakes = Counter(map(place, found))
    new = {place(code): code for code in found}
    for function in functions:
        where = place(function.__code__)
        if namesakes[where] != 1 or new[where].co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = new[where]
    return True


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno
