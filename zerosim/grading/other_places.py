"""Edits that move or insert a statement."""

import ast
from collections.abc import Iterator

from zerosim.grading.scope import Edit, Scope, name_of, parsed, rebuilt, statement, written


def moved(scope: Scope) -> Iterator[Edit]:
    """Move a statement among its neighbours, out of its loop, or into a loop beside it."""
    for body in scope.bodies:
        for number, each in enumerate(body):
            rest = [*body[:number], *body[number + 1 :]]
            if isinstance(each, ast.For | ast.While):
                yield from into_and_out_of(scope, body, number, each)
            if isinstance(each, ast.Return | ast.FunctionDef):
                continue
            for place in range(len(rest) + 1):
                if place != number:
                    words = f"after {written(rest[place - 1])}" if place else f"before {written(rest[0])}"
                    yield Edit(each.lineno, f"{written(each)} {words}",
                               {id(body): [*rest[:place], each, *rest[place:]]})


def into_and_out_of(scope: Scope, body: list[ast.stmt], number: int, loop: ast.For | ast.While) -> Iterator[Edit]:
    before, after = body[:number], body[number + 1 :]
    for inner, each in enumerate(loop.body):
        rest = [*loop.body[:inner], *loop.body[inner + 1 :]] or [ast.Pass()]
        stands = f"the loop {written(loop)} around it"
        yield Edit(each.lineno, f"{written(each)} after {stands}",
                   {id(body): [*before, rebuilt(loop, {id(loop.body): rest}), each, *after]})
        yield Edit(each.lineno, f"{written(each)} before {stands}",
                   {id(body): [*before, each, rebuilt(loop, {id(loop.body): rest}), *after]})
    for offset, beside in ((-1, before[-1:]), (1, after[:1])):
        for stray in beside:
            if isinstance(stray, ast.Return | ast.FunctionDef | ast.For | ast.While):
                continue
            inside = [stray, *loop.body] if offset < 0 else [*loop.body, stray]
            others = [*(before[:-1] if offset < 0 else before), rebuilt(loop, {id(loop.body): inside}),
                      *(after[1:] if offset > 0 else after)]
            yield Edit(stray.lineno, f"{written(stray)} within the loop {written(loop)}", {id(body): others})


def something_more(scope: Scope) -> Iterator[Edit]:
    """Insert reduce=, a copy, replica.own or reversed, or use pop for a subscript."""
    for loop in scope.expressions(ast.For):
        yield from guarded(scope, loop)
    for call in scope.calls("exchange", "recv"):
        if not any(keyword.arg == "reduce" for keyword in call.keywords):
            value = parsed("reduce" if "reduce" in scope.names else "np.add")
            new = ast.Call(call.func, call.args, [*call.keywords, ast.keyword("reduce", value)])
            yield Edit(call.lineno, f"with `reduce={ast.unparse(value)}` in comm.{name_of(call)}", {id(call): new})
    for node in scope.expressions(ast.Name | ast.Subscript):
        parent = scope.parents.get(id(node))
        if isinstance(parent, ast.Assign | ast.keyword | ast.Call | ast.List | ast.Subscript) and (
                getattr(parent, "slice", None) is not node):
            yield scope.instead(node, parsed(f"{ast.unparse(node)}.copy()"))
    for call in scope.calls("update", "keep", "keep_shard", "publish"):
        for node in call.args[1:2]:
            yield scope.instead(node, parsed(f"replica.own({ast.unparse(node)})"))
    for node in scope.nodes:
        if isinstance(node, ast.For):
            yield scope.instead(node.iter, parsed(f"reversed({ast.unparse(node.iter)})"))
    for node in scope.expressions(ast.Subscript):
        if not isinstance(node.slice, ast.Slice | ast.Constant | ast.Tuple):
            yield scope.instead(node, ast.Call(ast.Attribute(node.value, "pop", ast.Load()), [node.slice], []))


def guarded(scope: Scope, loop: ast.For) -> Iterator[Edit]:
    """Exclude the rank itself, or the root, in a loop over ranks."""
    if isinstance(loop.target, ast.Name):
        for other in ("comm.rank", "root"):
            if other.partition(".")[0] in scope.names:
                test = parsed(f"{loop.target.id} != {other}")
                yield Edit(loop.lineno, f"`if {ast.unparse(test)}:` around the body of the loop {written(loop)}",
                           {id(loop.body): [ast.If(test, loop.body, [])]})


def inserted(scope: Scope) -> Iterator[Edit]:
    """Insert a statement that a step or a loop may lack."""
    for body in scope.bodies:
        for place in range(len(body) + 1):
            last = body[place - 1] if place else None
            if isinstance(last, ast.Return):
                continue
            where = f"after {written(last)}" if last is not None else f"before {written(body[0])}"
            for text in lacking(scope, body, place):
                yield Edit(getattr(last or body[0], "lineno", 1), f"`{text}` {where}",
                           {id(body): [*body[:place], statement(text), *body[place:]]})


def lacking(scope: Scope, body: list[ast.stmt], place: int) -> Iterator[str]:
    """Statements that may be missing at this place."""
    parents = [scope.function, *(node for node in scope.nodes if getattr(node, "body", None) is body)]
    around, last = parents[-1], body[place - 1] if place else None
    if isinstance(around, ast.While) and place == len(body):
        for name in dict.fromkeys(node.id for node in ast.walk(around.test) if isinstance(node, ast.Name)):
            yield from (f"{name} += 1", f"{name} *= 2", f"{name} -= 1", f"{name} //= 2")
    if isinstance(around, ast.For) and place == len(body):
        yield from (f"del {name}" for name in scope.names if name not in ("replica", "batch", "comm", "tape"))
    if "replica" not in scope.names:
        return
    if around is scope.function:
        yield from ("replica.zero_grad(batch)", "replica.unscale_and_clip()")
        yield from (f"return {name}" for name in scope.names if place == len(body) and "loss" in name)
    said = "" if last is None else ast.unparse(last).partition("\n")[0]
    units = [node.id for node in ast.walk(last or ast.Pass()) if isinstance(node, ast.Name) and "unit" in node.id]
    for unit in dict.fromkeys(units):
        if ".update(" in said:
            yield f"replica.publish({unit}, replica.state.weights[{unit}])"
        if ".publish(" in said or not said:
            yield f"replica.update({unit}, replica.own(replica.state.weights[{unit}]))"
        if ".backward(" in said or ".reduce_scatter(" in said:
            for name in scope.names:
                if "grad" in name or name == "g":
                    yield f"{name} = replica.reduce_scatter({unit}, {name})"
                    yield f"replica.keep({unit}, {name})"
                    yield f"replica.keep_shard({unit}, {name})"
