"""The parts of zerosim that a learner's program uses, found in its source and while it runs.

    library_uses    the uses in the source, without running it; the names in `FREE`, which every solution needs, are
                    not reported, and ways around a plain import are reported as such
    watch           the calls and the loading of the library's solutions in this process, and attempts to stop it

A report leaves the process before the use takes effect, so a program cannot take it back. Not seen are copied code,
and calls in a thread that does not come from `threading`.
"""

import ast
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import zerosim
from zerosim.collectives import ALGORITHMS
from zerosim.stages import STAGES

FREE = ("zerosim.comm", "zerosim.sharding", "zerosim.errors")
"""Modules that every solution may use."""
AROUND = ("__import__", "eval", "exec", "compile", "globals", "vars", "setattr", "delattr", "import_module",
          "__class__", "__globals__", "__dict__", "__subclasses__", "modules", "_getframe", "settrace",
          "setprofile", "ctypes", "gc", "inspect", "importlib", "ast")
"""Names by which a program obtains what it does not import, or changes what belongs to others."""
MODULES = ("pydoc", "runpy", "pickle", "pkgutil", "marshal", "code", "codeop", "ctypes", "gc", "inspect", "importlib",
           "ast", "threading", "_thread", "multiprocessing", "subprocess", "socket")
"""Modules that do so."""


def library_uses(source: str | bytes) -> list[str]:
    """The uses, each with its line, in the order of the source; empty for source that is not Python.

    Bytes are read in the encoding that they declare, as Python reads a file.

    >>> library_uses("from zerosim.comm import left\\nfrom zerosim.collectives import ring\\nring.all_gather = 1")
    ['zerosim.collectives.ring in line 2', 'writes to ring.all_gather in line 3']
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return list(dict.fromkeys(found(tree)))


def found(tree: ast.Module) -> Iterator[str]:
    own: set[str] = set()
    for node in sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        yield from (f"{each} in line {node.lineno}" for each in modules if each.partition(".")[0] in MODULES)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if is_own(alias.name) and not is_free(alias.name):
                    own.add(alias.asname or alias.name.partition(".")[0])
                    yield f"{alias.name} in line {node.lineno}"
        elif isinstance(node, ast.ImportFrom) and is_own(node.module or ""):
            for alias in node.names:
                own.add(alias.asname or alias.name)
                name = f"{node.module}.{alias.name}"
                if not is_free(name):
                    yield f"{name} in line {node.lineno}"
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in AROUND:
                yield f"{name} in line {node.lineno}"
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root(node) in own:
                yield f"writes to {root(node)}.{node.attr} in line {node.lineno}"


def is_own(module: str) -> bool:
    return module.partition(".")[0] == "zerosim"


def is_free(name: str) -> bool:
    """Whether a name is one of `FREE`, or within one.

    >>> is_free("zerosim.comm.left"), is_free("zerosim.commands.show")
    (True, False)
    """
    return name.startswith(tuple(f"{each}." for each in FREE)) or name in FREE


def root(node: ast.expr) -> str:
    """The name with which an expression begins.

    >>> root(ast.parse("a.b.c", mode="eval").body)
    'a'
    """
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


HOUSE = os.path.dirname(zerosim.__file__) + os.sep
STEPS = frozenset(stage.step.__code__.co_filename for stage in STAGES.values())
SOLUTIONS = STEPS | {row.function.__code__.co_filename for row in ALGORITHMS.values()}
"""The files of the library's steps, and of these and its collectives."""
TAMPERING = ("gc.", "ctypes.cdata", "ctypes.addressof", "ctypes.string_at", "ctypes.PyObj", "sys.setprofile",
             "sys.settrace", "sys._getframe", "os.fork", "os.exec", "os.posix_spawn", "os.system", "subprocess.",
             "socket.__new__")
"""The audit events of ways to stop the watch or to leave the process, by their first letters."""


def watch(say: Callable[[str], None], *, own_calls: bool) -> None:
    """Report from here on what this process uses of the library's solutions.

    `own_calls`: also where zerosim itself calls a collective, which it does in a step.

    A doubt: the hooks are objects of this process. To reach them, a program must raise an event in `TAMPERING` or read
    a frame of a traceback; the events are reported.
    """
    said = set[str]()

    def note(what: str) -> None:
        if what not in said:
            said.add(what)
            say(what)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "exec" and isinstance(given[0], CodeType) and given[0].co_filename.startswith(HOUSE):
            note(f"reads {given[0].co_filename.removeprefix(HOUSE)}")
        elif event == "open" and isinstance(given[0], str | bytes | bytearray | memoryview):
            path = os.path.realpath(os.fsdecode(given[0] if isinstance(given[0], str) else bytes(given[0])))
            if path.startswith(HOUSE) and path.endswith((".py", ".pyc")):
                inside = path.removeprefix(HOUSE).replace("__pycache__" + os.sep, "")
                note(f"reads {inside.partition('.')[0]}.py")
            elif os.path.isdir(path):
                note("opens a folder")
        elif event == "object.__getattr__" and own_file(given[0]) in SOLUTIONS:
            note(f"reads {given[1]} of {given[0].__qualname__}")
        elif event == "object.__setattr__" and own_file(given[0]).startswith(HOUSE):
            note(f"changes {given[1]} of {getattr(given[0], '__qualname__', '')}")
        elif event.startswith(TAMPERING):
            note(event)

    def called(frame: FrameType, event: str, given: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file in SOLUTIONS and frame.f_code.co_name != "<module>":
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            if own_calls or file in STEPS or not caller.startswith(HOUSE):
                note(f"calls {frame.f_code.co_name} of {file.removeprefix(HOUSE)}")

    sys.setprofile(called)
    threading.setprofile(called)
    sys.addaudithook(hook)


def own_file(function: Any) -> str:
    """The file of the module of a function; empty for anything else."""
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    return getattr(module, "__file__", None) or ""
