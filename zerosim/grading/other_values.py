"""Edits that replace a number, an operator or a name."""

import ast
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from zerosim.grading.scope import Edit, Scope, parsed, rebuilt, written


def other_numbers(scope: Scope) -> Iterator[Edit]:
    """Change numbers, bounds of loops, and numbers of chunks and ranks by one."""
    for node in scope.expressions(ast.Constant):
        if type(node.value) is int and not isinstance(scope.parents.get(id(node)), ast.Expr):
            parent = scope.parents.get(id(node))
            for other in (node.value + 1, node.value - 1):
                if other > 0 or (other == 0 and not isinstance(parent, ast.BinOp)):
                    yield scope.instead(node, ast.Constant(other))
        elif type(node.value) is bool:
            yield scope.instead(node, ast.Constant(not node.value))
    for call in scope.calls("range"):
        bound = call.args[-1] if len(call.args) < 3 else call.args[1]
        for by in (-1, 1):
            yield scope.instead(bound, shifted(bound, by))
        if len(call.args) == 1:
            yield scope.instead(call, ast.Call(call.func, [ast.Constant(1), *call.args], []))
        else:
            yield scope.instead(call, ast.Call(call.func, call.args[1:], []))
    for index in indices(scope):
        for by in (-1, 1):
            yield scope.instead(index, shifted(index, by))


def shifted(node: ast.expr, by: int) -> ast.expr:
    """A number changed by `by`; in a remainder, the dividend.

    >>> ast.unparse(shifted(parsed("(rank - 1) % size"), 1)), ast.unparse(shifted(parsed("n"), -1))
    ('rank % size', 'n - 1')
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return ast.BinOp(shifted(node.left, by), ast.Mod(), node.right)
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as operator, ast.Constant(int() as number)):
            now = (number if isinstance(operator, ast.Add) else -number) + by
            return ast.BinOp(left, ast.Add() if now > 0 else ast.Sub(), ast.Constant(abs(now))) if now else left
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def indices(scope: Scope) -> list[ast.expr]:
    """Expressions that number a chunk or a rank: indices, bounds of slices, to=, source=, and assigned remainders."""
    found: list[ast.expr] = []
    for node in scope.nodes:
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant | ast.Slice | ast.Tuple):
            found.append(node.slice)
        elif isinstance(node, ast.keyword) and node.arg in ("to", "source", "root"):
            found.append(node.value)
        elif isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            found += [each for each in values if isinstance(each, ast.BinOp)]
        elif isinstance(node, ast.Slice):
            found += [each for each in (node.lower, node.upper) if each is not None]
    return found


def remainders(scope: Scope, body: list[ast.stmt]) -> list[ast.BinOp]:
    """The numbers of chunks and ranks in `body` that are remainders."""
    within = {id(node) for each in body for node in ast.walk(each)}
    return [index for index in indices(scope) if id(index) in within and isinstance(index, ast.BinOp)
            and isinstance(index.op, ast.Mod)]


def all_shifted(scope: Scope) -> Iterator[Edit]:
    """Change all numbers of chunks in one loop by the same amount."""
    for body in scope.loops:
        found = remainders(scope, body)
        if len(found) < 2:
            continue
        for by in (1, -1, 2, -2):
            replaced = {id(index): shifted(index, by) for index in found}
            words = ", ".join(f"{written(new)} in place of {written(old)}"
                              for old, new in zip(found, replaced.values(), strict=True))
            yield Edit(found[0].lineno, words, replaced)


OPERATORS: dict[type[ast.operator], tuple[ast.operator, ...]] = {
    ast.Add: (ast.Sub(), ast.Mult()), ast.Sub: (ast.Add(),), ast.Mult: (ast.Add(), ast.FloorDiv(), ast.Pow()),
    ast.Div: (ast.FloorDiv(), ast.Mod(), ast.Mult()), ast.FloorDiv: (ast.Mod(), ast.Mult()), ast.Mod: (ast.FloorDiv(),),
    ast.BitXor: (ast.Add(), ast.Sub()), ast.Pow: (ast.BitXor(), ast.Mult()), ast.BitAnd: (ast.Mod(),),
    ast.RShift: (ast.LShift(),), ast.LShift: (ast.RShift(),),
}
COMPARISONS: dict[type[ast.cmpop], tuple[ast.cmpop, ...]] = {
    ast.Lt: (ast.LtE(), ast.GtE(), ast.Gt()), ast.LtE: (ast.Lt(), ast.Gt(), ast.GtE()),
    ast.Gt: (ast.GtE(), ast.LtE(), ast.Lt()), ast.GtE: (ast.Gt(), ast.Lt(), ast.LtE()),
    ast.Eq: (ast.NotEq(), ast.GtE(), ast.LtE()), ast.NotEq: (ast.Eq(), ast.Lt()),
    ast.In: (ast.NotIn(),), ast.NotIn: (ast.In(),), ast.Is: (ast.IsNot(),), ast.IsNot: (ast.Is(),),
}


STEPS: dict[tuple[type[ast.operator], Any], tuple[ast.operator, int]] = {
    (ast.Add, 1): (ast.Mult(), 2), (ast.Mult, 2): (ast.Add(), 1), (ast.Add, 2): (ast.Mult(), 2),
    (ast.Sub, 1): (ast.FloorDiv(), 2), (ast.FloorDiv, 2): (ast.Sub(), 1),
}
"""Replacements between counting and doubling."""


def other_operators(scope: Scope) -> Iterator[Edit]:
    for node in scope.nodes:
        if isinstance(node, ast.BinOp):
            for operator in OPERATORS.get(type(node.op), ()):
                yield scope.instead(node, ast.BinOp(node.left, operator, node.right))
        elif isinstance(node, ast.AugAssign):
            for operator in OPERATORS.get(type(node.op), ()):
                yield scope.instead(node, ast.copy_location(ast.AugAssign(node.target, operator, node.value), node))
            if isinstance(node.value, ast.Constant) and (type(node.op), node.value.value) in STEPS:
                operator, value = STEPS[type(node.op), node.value.value]
                yield scope.instead(
                    node, ast.copy_location(ast.AugAssign(node.target, operator, ast.Constant(value)), node))
            target = deepcopy(node.target)
            yield scope.instead(node, ast.copy_location(ast.Assign([target], node.value), node))
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            for comparison in COMPARISONS.get(type(node.ops[0]), ()):
                yield scope.instead(node, ast.Compare(node.left, [comparison], node.comparators))
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield scope.instead(node, ast.BoolOp(other, node.values))
        elif isinstance(node, ast.If):
            yield scope.instead(node.test, ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from written_otherwise(scope, node)


def written_otherwise(scope: Scope, node: ast.Assign) -> Iterator[Edit]:
    """Assign into an array instead of a name; add instead of assign."""
    target = node.targets[0]
    if isinstance(target, ast.Name):
        inside = ast.Subscript(ast.Name(target.id, ast.Load()), ast.Slice(), ast.Store())
        yield scope.instead(node, ast.copy_location(ast.Assign([inside], node.value), node))
    elif isinstance(target, ast.Subscript):
        if not isinstance(target.slice, ast.Slice):
            inside = ast.Subscript(ast.Subscript(target.value, target.slice, ast.Load()), ast.Slice(), ast.Store())
            yield scope.instead(node, ast.copy_location(ast.Assign([inside], node.value), node))
        yield scope.instead(node, ast.copy_location(ast.AugAssign(deepcopy(target), ast.Add(), node.value), node))


def other_names(scope: Scope) -> Iterator[Edit]:
    """Use another variable; use the root, the rank or the number of ranks for a number."""
    loads = [node for node in scope.expressions(ast.Name) if node.id in scope.names]
    for node in loads:
        for other in scope.names:
            if other != node.id:
                yield scope.instead(node, ast.Name(other, ast.Load()))
    for node in scope.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            for other in scope.names:
                if other != node.id:
                    yield scope.instead(node, ast.Name(other, ast.Store()))
    for node in scope.expressions(ast.Constant | ast.Attribute):
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            continue
        for other in ("root", "comm.rank", "comm.size", "len(chunks)"):
            if other.split(".")[0].removeprefix("len(").rstrip(")") in scope.names and ast.unparse(node) != other:
                yield scope.instead(node, parsed(other))
    yield from renamed(scope)
    yield from root_everywhere(scope)


def renamed(scope: Scope) -> Iterator[Edit]:
    """Replace all uses of one variable in one expression."""
    for node in scope.expressions(ast.Subscript | ast.BinOp | ast.Call | ast.Tuple | ast.ListComp):
        loads = [each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
        for name in dict.fromkeys(each.id for each in loads if each.id in scope.names):
            of_it = [each for each in loads if each.id == name]
            for other in scope.names:
                if len(of_it) > 1 and other != name:
                    replaced = {id(each): ast.Name(other, ast.Load()) for each in of_it}
                    yield Edit(node.lineno, f"{written(rebuilt(node, replaced))} in place of {written(node)}", replaced)


def root_everywhere(scope: Scope) -> Iterator[Edit]:
    """Use the root wherever 0 stands for a rank."""
    if "root" not in scope.names:
        return
    zeros = [node for node in scope.expressions(ast.Constant) if node.value == 0 and type(node.value) is int
             and isinstance(scope.parents.get(id(node)), ast.Compare | ast.keyword)]
    if len(zeros) > 1:
        yield Edit(zeros[0].lineno, "`root` wherever `0` stands for a rank", {
            id(node): ast.Name("root", ast.Load()) for node in zeros})


METHODS = (
    ("keep", "keep_shard"), ("reduce_scatter", "all_gather", "reduce"), ("gather", "all_gather"),
    ("units", "backward_units", "forward_units"), ("append", "extend"), ("update", "publish"), ("rank", "size"),
    ("inputs", "targets"), ("forward", "backward"), ("sum", "add"), ("send", "recv"), ("zeros", "empty"),
)


def other_methods(scope: Scope) -> Iterator[Edit]:
    for node in scope.expressions(ast.Attribute):
        for family in METHODS:
            if node.attr in family:
                for other in family:
                    if other != node.attr:
                        yield scope.instead(node, ast.Attribute(node.value, other, node.ctx))
        if node.attr in DTYPES or ast.unparse(node) == "float":
            for name in scope.names:
                yield scope.instead(node, parsed(f"{name}.dtype"))
    for call in scope.calls("empty", "zeros", "full"):
        for name in scope.names:
            for of in (f"{name}.dtype", f"{name}[0].dtype"):
                yield scope.instead(call, ast.Call(call.func, [call.args[0], parsed(of)], []))


DTYPES = ("float32", "float64", "float16", "int64", "float_", "double", "single")
