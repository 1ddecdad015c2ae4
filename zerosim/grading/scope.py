"""One function of a learner's program, and one edit of it."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LONGEST = 100
"""The greatest number of characters shown of an expression."""

Replaced = Mapping[int, Any]
"""The replacements of nodes, or of lists of statements, by `id`."""


@dataclass(frozen=True)
class Edit:
    """One edit of a program: its line, its description, and the nodes that it replaces."""

    line: int
    says: str
    replaced: Replaced
    within: ast.AST | None = None
    """The top-level statement of the program that contains the edit."""

    def applied(self, tree: ast.Module) -> ast.Module:
        """The edited program; `tree` is not changed.

            >>> tree = ast.parse("def f(a, b):\\n    return a - b")
            >>> old = tree.body[0].body[0].value
        >>> edit = Scope(tree.body[0]).instead(old, ast.BinOp(old.right, old.op, old.left))
            >>> edit.says, ast.unparse(edit.applied(tree))
            ('`b - a` in place of `a - b`', 'def f(a, b):\\n    return b - a')
        """
        body = [rebuilt(each, self.replaced) if self.within in (None, each) else each for each in tree.body]
        return ast.fix_missing_locations(ast.Module(body, tree.type_ignores))


def rebuilt(part: Any, replaced: Replaced) -> Any:
    """A node, or list of nodes, after the replacements; parts without replacements are reused."""
    if id(part) in replaced:
        return replaced[id(part)]
    if isinstance(part, list):
        items = [rebuilt(each, replaced) for each in part]
        return part if all(new is old for new, old in zip(items, part, strict=True)) else items
    if not isinstance(part, ast.AST):
        return part
    fields = {name: rebuilt(value, replaced) for name, value in ast.iter_fields(part)}
    if all(new is getattr(part, name) for name, new in fields.items()):
        return part
    return ast.copy_location(type(part)(**fields), part)


@dataclass(frozen=True, eq=False)
class Scope:
    """One function."""

    function: ast.FunctionDef

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [node for statement in self.function.body for node in ast.walk(statement)]

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """The parent of each node."""
        return {id(child): node for node in ast.walk(self.function) for child in ast.iter_child_nodes(node)}

    @cached_property
    def names(self) -> list[str]:
        """The parameters and variables of the function."""
        given = [each.arg for each in self.function.args.args]
        stored = [node.id for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        return list(dict.fromkeys([*given, *stored]))

    @cached_property
    def bodies(self) -> list[list[ast.stmt]]:
        """All lists of statements, the outermost first."""
        inner = [getattr(node, field) for node in self.nodes for field in ("body", "orelse")
                 if isinstance(getattr(node, field, None), list)]
        return [self.function.body, *(body for body in inner if body)]

    @property
    def loops(self) -> list[list[ast.stmt]]:
        """The body of each loop."""
        return [node.body for node in self.nodes if isinstance(node, ast.For | ast.While)]

    def expressions(self, kind: Any) -> Iterator[Any]:
        """The expressions of one kind that are read."""
        for node in self.nodes:
            if isinstance(node, kind) and not isinstance(getattr(node, "ctx", ast.Load()), ast.Store | ast.Del):
                yield node

    def instead(self, old: ast.AST, new: ast.AST) -> Edit:
        """The edit that replaces `old` by `new`."""
        shown = self.shown(old)
        replaced = {id(old): new}
        return Edit(getattr(old, "lineno", 1), f"{written(rebuilt(shown, replaced))} in place of {written(shown)}",
                    replaced)

    def shown(self, node: ast.AST) -> ast.AST:
        """The enclosing expression that shows the purpose of a node."""
        while isinstance(parent := self.parents.get(id(node)), EXPLAINED_BY_PARENT):
            node = parent
        return node

    def calls(self, *methods: str) -> Iterator[ast.Call]:
        """The calls of methods or functions with one of these names."""
        for node in self.expressions(ast.Call):
            if name_of(node) in methods:
                yield node


EXPLAINED_BY_PARENT = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Subscript, ast.Slice, ast.keyword,
                       ast.Attribute, ast.Starred)


def name_of(call: ast.Call) -> str:
    """
    >>> [name_of(ast.parse(each, mode="eval").body) for each in ("comm.send(x)", "left(comm)", "f()()")]
    ['send', 'left', '']
    """
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def written(node: ast.AST) -> str:
    """An expression or a statement in one line.

    >>> written(ast.parse("for unit in units:\\n    pass").body[0])
    '`for unit in units:`'
    """
    if isinstance(node, ast.keyword):
        return f"`{node.arg}={ast.unparse(node.value)}`"
    first, *more = ast.unparse(node).splitlines()
    return f"`{first if len(first) <= LONGEST else f'{first[:LONGEST]} …'}`{' and its body' * bool(more)}" \
        if not more or not first.endswith(":") else f"`{first}`"


def parsed(text: str) -> Any:
    """The expression in a string."""
    return ast.parse(text, mode="eval").body


def statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
