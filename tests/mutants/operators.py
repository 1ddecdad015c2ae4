"""What may be changed in a line: each operator takes a node of the syntax tree and yields edits of one line.

Columns are counted in bytes, as `ast` counts them.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """Put `text` instead of the bytes from `start` to `stop` of line `line`, which is counted from 1."""

    line: int
    start: int
    stop: int
    text: str


@dataclass(frozen=True)
class Source:
    """The lines of a file, in bytes."""

    lines: list[bytes]

    def text(self, node: ast.expr) -> str:
        """What stands in the source for a node of one line."""
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int, int, str] | None:
        """Line, start, stop and text of what stands between two neighbours, if they share a line."""
        if left.end_lineno != right.lineno:
            return None
        start, stop = left.end_col_offset, right.col_offset
        return right.lineno, start, stop, self.lines[right.lineno - 1][start:stop].decode()


Operator = Callable[[ast.AST, Source], Iterator[Edit]]

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.MatMult: ("@", "*"),
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any",
    "add": "subtract", "subtract": "add", "multiply": "divide", "divide": "multiply", "zeros": "ones",
    "rint": "floor", "abs": "float", "sorted": "list", "reversed": "list", "float32": "float64", "float64": "float32",
    "int64": "int32", "isfinite": "isnan", "forward": "backward", "backward": "forward", "first": "last",
}  # fmt: skip
STRINGS = {
    "float32": "float64", "float64": "float32", "fp32": "fp16", "fp16": "fp32", "bf16": "fp16", "u1": "u2",
    "parameters": "gradients", "gradients": "buffers", "optimizer": "gradients", "activations": "buffers",
    "buffers": "activations", "momentum": "variance", "variance": "momentum", "weights": "gradients",
}  # fmt: skip
SYMMETRIC = {"min", "max", "minimum", "maximum", "add", "multiply"}
IMMATERIAL = {"encoding", "strict", "copy", "ensure_ascii"}
"""Arguments by keyword that no result depends on, or only that of text."""


def comparison(node: ast.AST, source: Source) -> Iterator[Edit]:
    """< as <=, == as !=, `is` as `is not`, `in` as `not in`, and back."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            yield from swapped(source, left, right, *COMPARISONS[type(operator)])


def arithmetic(node: ast.AST, source: Source) -> Iterator[Edit]:
    """+ as −, * as /, // as /, and so on, in place too; and `+=` as `=`."""
    if isinstance(node, ast.BinOp):
        yield from swapped(source, node.left, node.right, *ARITHMETIC[type(node.op)])
    if isinstance(node, ast.AugAssign):
        old, new = ARITHMETIC[type(node.op)]
        yield from swapped(source, node.target, node.value, f"{old}=", f"{new}=")
        yield from swapped(source, node.target, node.value, f"{old}=", "=")


def connective(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`and` as `or`, and back."""
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from swapped(source, left, right, old, new)


def swapped(source: Source, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Edit]:
    """`new` for the `old` that stands between two operands."""
    if found := source.between(left, right):
        line, start, stop, gap = found
        if gap.count(old) == 1:
            yield Edit(line, start, stop, gap.replace(old, new))


def sign(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`not` and the unary minus removed."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert) and one_line(node):
        yield replace(node, f"({source.text(node.operand)})") if one_line(node.operand) else replace(node, "True")


def condition(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A condition that always holds, and one that never does."""
    tests = [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else []
    tests += node.ifs if isinstance(node, ast.comprehension) else []
    for test in tests:
        if one_line(test):
            yield replace(test, "True")
            if not isinstance(node, ast.While):
                yield replace(test, "False")


def constant(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A number one more or less, or half of it; the other truth value; a different dtype or kind of memory."""
    if not isinstance(node, ast.Constant) or not one_line(node):
        return
    match node.value:
        case bool():
            yield replace(node, str(not node.value))
        case int():
            yield replace(node, str(node.value + 1))
            yield replace(node, str(node.value - 1))
        case float():
            yield replace(node, repr(node.value / 2 if node.value else 1.0))
        case str() if node.value in STRINGS:
            yield replace(node, f'"{STRINGS[node.value]}"')


def name(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`min` as `max`, `any` as `all`, `float32` as `float64`, and the like."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
        yield replace(node, NAMES[node.id])
    if isinstance(node, ast.Attribute) and node.attr in NAMES and node.lineno == node.end_lineno:
        yield Edit(node.lineno, node.end_col_offset - len(node.attr), node.end_col_offset, NAMES[node.attr])


def call(node: ast.AST, source: Source) -> Iterator[Edit]:
    """The first two arguments exchanged; an argument by keyword left out; `x.copy()` as `x`."""
    if not isinstance(node, ast.Call):
        return
    callee = getattr(node.func, "attr", getattr(node.func, "id", ""))
    match node.args:
        case [first, second, *_] if callee not in SYMMETRIC and first.lineno == second.end_lineno:
            one, two = source.text(first), source.text(second)
            if one != two and not any(isinstance(each, ast.Starred) for each in (first, second)):
                between = source.between(first, second)
                assert between is not None
                yield Edit(first.lineno, first.col_offset, second.end_col_offset, two + between[3] + one)
    for keyword in node.keywords:
        if keyword.arg and keyword.arg not in IMMATERIAL and keyword.lineno == keyword.end_lineno:
            yield without_argument(source, keyword)
    if callee == "copy" and not node.args and not node.keywords and one_line(node):
        yield replace(node, source.text(node.func.value))


def without_argument(source: Source, keyword: ast.keyword) -> Edit:
    """The line without `name=value` and a comma next to it."""
    line, start, stop = source.lines[keyword.lineno - 1], keyword.col_offset, keyword.end_col_offset
    if before := re.search(rb",\s*$", line[:start]):
        start = before.start()
    elif after := re.match(rb",\s*", line[stop:]):
        stop += after.end()
    return Edit(keyword.lineno, start, stop, "")


def bound(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A slice that begins one later, ends one later, or has no end."""
    if isinstance(node, ast.Slice):
        for side in (node.lower, node.upper):
            if side is not None and one_line(side) and not isinstance(side, ast.Constant):
                yield replace(side, f"{source.text(side)} + 1")


def returned(node: ast.AST, source: Source) -> Iterator[Edit]:
    """None instead of what a function returns."""
    if isinstance(node, ast.Return) and node.value is not None and one_line(node.value):
        yield replace(node.value, "None")


def statement(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A call, an assignment to a part of something, or a raise that does not happen; `break` as `continue`."""
    if not isinstance(node, ast.stmt) or node.lineno != node.end_lineno:
        return
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign():
            yield whole(node, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield whole(node, "pass")
        case ast.Break():
            yield whole(node, "continue")
        case ast.Continue():
            yield whole(node, "break")


def whole(node: ast.stmt, text: str) -> Edit:
    return Edit(node.lineno, node.col_offset, node.end_col_offset, text)


def replace(node: ast.expr, text: str) -> Edit:
    return Edit(node.lineno, node.col_offset, node.end_col_offset, text)


def one_line(node: ast.expr) -> bool:
    return node.lineno == node.end_lineno


OPERATORS: tuple[Operator, ...] = (
    comparison, arithmetic, connective, sign, condition, constant, name, call, bound, returned, statement,
)  # fmt: skip
