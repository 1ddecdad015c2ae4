"""Edits: all programs that differ from a learner's in one place, likely ones first.

    tree     a program as an `ast`
    edit     one change, in words, and the nodes or lists of statements that replace others
    scope    one function of the program, its names, and the nesting of its nodes

An edit is an attempt; running the edited program shows whether it repairs anything.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from zerosim.grading.other_places import inserted, moved, something_more
from zerosim.grading.other_values import (
    all_shifted,
    other_methods,
    other_names,
    other_numbers,
    other_operators,
    remainders,
)
from zerosim.grading.scope import Edit, Scope, name_of, written


def edits(tree: ast.Module, name: str, others: Sequence[str] = ()) -> Iterator[Edit]:
    """All edits of the function `name` and of other functions in its file, except those named in `others`."""
    scopes = [
        (within, Scope(node)) for within in tree.body for node in ast.walk(within) if isinstance(node, ast.FunctionDef)
        if getattr(within, "name", "") == name or getattr(within, "name", "") not in others
    ]
    seen: set[tuple[int, str]] = set()
    for kind in KINDS:
        for within, scope in scopes:
            for edit in kind(scope):
                if (edit.line, edit.says) not in seen:
                    seen.add((edit.line, edit.says))
                    yield replace(edit, within=within)


# Swaps.


def swapped(scope: Scope) -> Iterator[Edit]:
    """Swap operands, targets, arguments, or neighbours on the ring."""
    for node in scope.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            targets = node.targets[0]
            for first in range(len(targets.elts)):
                for second in range(first):
                    new = ast.Assign([ast.Tuple(exchanged(targets.elts, first, second), ast.Store())], node.value)
                    yield scope.instead(node, ast.copy_location(new, node))
    for node in scope.expressions(ast.BinOp):
        if isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
            yield scope.instead(node, ast.BinOp(node.right, node.op, node.left))
    for call in scope.expressions(ast.Call):
        yield from swapped_arguments(scope, call)
    yield from around_the_other_way(scope)
    for body in scope.bodies:
        for one, two in pairwise(body):
            if isinstance(one, ast.Assign) and isinstance(two, ast.Assign):
                new_one = ast.copy_location(ast.Assign(one.targets, two.value), one)
                new_two = ast.copy_location(ast.Assign(two.targets, one.value), two)
                yield Edit(one.lineno, f"{written(new_one)} and {written(new_two)}",
                           {id(one): new_one, id(two): new_two})


def exchanged(items: Sequence[Any], one: int, other: int) -> list[Any]:
    found = [*items]
    found[one], found[other] = found[other], found[one]
    return found


def swapped_arguments(scope: Scope, call: ast.Call) -> Iterator[Edit]:
    """Swap two positional arguments, to= and source=, or the sent and the received array."""
    for second in range(len(call.args)):
        for first in range(second):
            yield scope.instead(call, ast.Call(call.func, exchanged(call.args, first, second), call.keywords))
    named = {keyword.arg: keyword for keyword in call.keywords}
    if {"to", "source"} <= set(named):
        to, source = named["to"].value, named["source"].value
        new = [ast.keyword(keyword.arg, {"to": source, "source": to}.get(str(keyword.arg), keyword.value))
               for keyword in call.keywords]
        words = f"`to={ast.unparse(source)}` and `source={ast.unparse(to)}`, not the reverse"
        yield Edit(call.lineno, words, {id(call): ast.Call(call.func, call.args, new)})
    if "into" in named and call.args:
        out, into = call.args[0], named["into"].value
        new = [ast.keyword("into", out) if keyword.arg == "into" else keyword for keyword in call.keywords]
        words = f"send `{ast.unparse(into)}` and receive into `{ast.unparse(out)}`, not the reverse"
        yield Edit(call.lineno, words, {id(call): ast.Call(call.func, [into, *call.args[1:]], new)})


AROUND = {"left": "right", "right": "left"}


def around_the_other_way(scope: Scope) -> Iterator[Edit]:
    """Swap left(comm) and right(comm), in one call or in all; count chunks in the other direction."""
    found = [node.func for node in scope.calls("left", "right") if isinstance(node.func, ast.Name)]
    replaced = {id(node): ast.Name(AROUND[node.id], ast.Load()) for node in found}
    if len(found) > 1:
        yield Edit(found[0].lineno, "left(comm) and right(comm) swapped, in to= and in source=", replaced)
    for call in scope.calls("left", "right"):
        if isinstance(call.func, ast.Name):
            yield scope.instead(call, ast.Call(ast.Name(AROUND[call.func.id], ast.Load()), call.args, []))
    for within in scope.loops:
        numbers = remainders(scope, within)
        others = {id(node): mirrored(node) for node in numbers}
        words = ", ".join(f"{written(others[id(node)])} in place of {written(node)}" for node in numbers)
        if numbers:
            yield Edit(within[0].lineno, f"number chunks in the other direction, {words}", others)


def mirrored(node: ast.expr) -> ast.expr:
    """An expression with + and − swapped after the first term.

    >>> ast.unparse(mirrored(ast.parse("(rank - step + 1) % size", mode="eval").body))
    '(rank + step - 1) % size'
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return ast.BinOp(mirrored(node.left), node.op, node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return ast.BinOp(mirrored(node.left), other, node.right)
    return node


# Omissions.


def left_out(scope: Scope) -> Iterator[Edit]:
    """Omit statements, conditions, operands, subscripts, or calls around a value."""
    for body in scope.bodies:
        for number, each in enumerate(body):
            yield from without(body, number, each)
    for node in scope.expressions(ast.BinOp):
        yield from (scope.instead(node, part) for part in (node.left, node.right))
    for node in scope.expressions(ast.BoolOp):
        yield from (scope.instead(node, part) for part in node.values)
    for node in scope.expressions(ast.IfExp):
        yield from (scope.instead(node, part) for part in (node.body, node.orelse))
    yield from (scope.instead(node, node.operand) for node in scope.expressions(ast.UnaryOp))
    for node in scope.expressions(ast.Subscript):
        yield scope.instead(node, node.value)
        if isinstance(node.slice, ast.Slice) and node.slice.step is not None:
            yield scope.instead(node.slice, ast.Slice(node.slice.lower, node.slice.upper))
    for call in scope.expressions(ast.Call):
        yield from less_of_a_call(scope, call)


def without(body: list[ast.stmt], number: int, each: ast.stmt) -> Iterator[Edit]:
    """Omit a statement, or its condition."""
    before, after = body[:number], body[number + 1 :]
    if not isinstance(each, ast.Return | ast.FunctionDef | ast.Pass):
        yield Edit(each.lineno, f"without {written(each)}", {id(body): [*before, *after] or [ast.Pass()]})
    if isinstance(each, ast.If):
        yield Edit(each.lineno, f"without the condition {written(each.test)}",
                   {id(body): [*before, *each.body, *after]})
        if each.orelse:
            yield Edit(each.lineno, f"only the code under else, without {written(each.test)}",
                       {id(body): [*before, *each.orelse, *after]})


def less_of_a_call(scope: Scope, call: ast.Call) -> Iterator[Edit]:
    if len(call.args) == 1 and name_of(call) not in ("range", "left", "right"):
        yield scope.instead(call, call.args[0])
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("copy", "item", "tolist", "astype", "reshape"):
        yield scope.instead(call, call.func.value)
    for number, keyword in enumerate(call.keywords):
        if keyword.arg not in ("to", "into", "source"):
            rest = [*call.keywords[:number], *call.keywords[number + 1 :]]
            yield Edit(call.lineno, f"without {written(keyword)}", {id(call): ast.Call(call.func, call.args, rest)})


KINDS: tuple[Callable[[Scope], Iterator[Edit]], ...] = (
    swapped, left_out, other_numbers, all_shifted, other_operators, other_methods, something_more, other_names, moved,
    inserted,
)
"""All kinds of edits, likely ones first."""
