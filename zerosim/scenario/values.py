"""Kinds of values that keys may have, as annotations that msgspec checks, and these annotations in words.

A key is a field with an annotation, `steps: Natural = 20`. A new key is a new field, a new section a new dataclass.
"""

import json
import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta
from msgspec.inspect import (
    BoolType,
    DataclassType,
    FloatType,
    IntType,
    Metadata,
    NoneType,
    StrType,
    TupleType,
    Type,
    UnionType,
    VarTupleType,
)

from zerosim.core.parts import Named

LARGEST_INTEGER = 2**63 - 1
"""The largest integer of TOML."""
LARGEST_NUMBER = 1.7976931348623157e308
MOST_TABLES = 1000
"""The number of tables with one name, each a row or a program."""


def bounded(least: float, most: float = LARGEST_INTEGER) -> Meta:
    """Numbers from `least` to `most`."""
    return Meta(ge=least, le=most)


def below(least: float, limit: float) -> Meta:
    """Numbers from `least` up to, but not including, `limit`."""
    return Meta(ge=least, lt=limit)


def one_of(names: Iterable[str]) -> Meta:
    """One of these names."""
    listed = tuple(names)
    return Meta(pattern=f"^({'|'.join(map(re.escape, listed))})$", extra={"names": listed})


def in_words(words: str) -> Meta:
    """A value that errors describe by these words."""
    return Meta(extra={"words": words})


Natural = Annotated[int, bounded(0)]
Counted = Annotated[int, bounded(1)]
Number = Annotated[float, bounded(0, LARGEST_NUMBER)]
Finite = Annotated[float, bounded(-LARGEST_NUMBER, LARGEST_NUMBER)]
FromOne = Annotated[float, bounded(1, LARGEST_NUMBER)]
Portion = Annotated[float, below(0, 1)]
AnyInteger = Annotated[int, bounded(-LARGEST_INTEGER - 1)]
Written = AnyInteger | Finite
"""A finite number as it is written: an integer stays one, so that no digit of 64 bits is lost."""
SOME = Meta(min_length=1, max_length=MOST_TABLES)
"""The number of tables of one name, if there are any."""


def words(kind: Type) -> str:  # noqa: PLR0912 - one case for each kind
    """The values that an annotation allows, as the words after "must be".

    >>> from msgspec.inspect import type_info
    >>> words(type_info(Natural)), words(type_info(bool | tuple[Portion, ...]))
    ('an integer of at least 0', 'true, false or an array, each a finite number of at least 0 and below 1')
    """
    match kind:
        case Metadata(extra={"words": str(phrase)}):
            return phrase
        case Metadata(extra={"names": tuple(names)}):
            return either(name or '""' for name in names)
        case Metadata(type=inner):
            return words(inner)
        case BoolType():
            return "true or false"
        case IntType(ge=least, le=most):
            bound = f" and at most {most}" if most not in (None, LARGEST_INTEGER) else ""
            return "an integer" if (least or 0) < -LARGEST_INTEGER else f"an integer of at least {least}{bound}"
        case FloatType(ge=least, lt=limit, le=most):
            start = "" if least in (None, -LARGEST_NUMBER) else f" of at least {least:g}"
            upper = f" and at most {most:g}" if most not in (None, LARGEST_NUMBER) else ""
            return f"a finite number{start}{upper if limit is None else f' and below {limit:g}'}"
        case StrType():
            return "a string in quotes"
        case TupleType(item_types=items):
            return f"an array of length {len(items)}, each {words(items[0])}"
        case VarTupleType(item_type=DataclassType()):
            return f"an array of tables, at most {MOST_TABLES}"
        case VarTupleType(item_type=item, min_length=least, max_length=most):
            some = f" of length at least {least}" if least else f" of length at most {most}" if most else ""
            return f"an array{some}, each {words(item)}"
        case UnionType(types=(Metadata(extra={"names": tuple(names)}), DataclassType(cls=cls))) if cls is Named:
            return either([*filter(None, names), "FILE.py:NAME"])
        case UnionType(types=kinds):
            phrase = " or ".join(words(kind) for kind in kinds if not isinstance(kind, NoneType))
            return phrase.replace("true or false or", "true, false or")
        case DataclassType(cls=cls) if cls is Named:
            return "FILE.py:NAME"
        case DataclassType(fields=fields):
            return f"a table with {', '.join(field.name for field in fields)}"
    return "another value"


def either(names: Iterable[str]) -> str:
    """
    >>> either(["a", "b", "c"])
    'a, b or c'
    """
    *others, last = names
    return " or ".join(filter(None, [", ".join(others), last]))


def names_in(kind: Type) -> tuple[str, ...]:
    """The names that an annotation allows."""
    match kind:
        case Metadata(extra={"names": tuple(names)}):
            return names
        case Metadata(type=inner) | VarTupleType(item_type=inner):
            return names_in(inner)
        case UnionType(types=kinds):
            return tuple(name for kind in kinds for name in names_in(kind))
    return ()


def within(kind: Type, step: str | int) -> Type | None:
    """The annotation of a key of a section, or of an element of an array; None if there is none."""
    match kind:
        case Metadata(type=inner):
            return within(inner, step)
        case UnionType(types=kinds):
            return next(filter(None, (within(kind, step) for kind in kinds)), None)
        case DataclassType(fields=fields):
            return next((field.type for field in fields if field.name == step), None)
        case VarTupleType(item_type=item) if isinstance(step, int):
            return item
        case TupleType(item_types=items) if isinstance(step, int):
            return items[step]
    return None


def shortened(text: str, most: int = 60) -> str:
    """
    >>> shortened("a" * 99, most=3)
    'aaa...'
    """
    return text if len(text) <= most else f"{text[:most]}..."


def shown(value: object) -> str:
    """`value` in TOML, on one short line.

    >>> shown("a\\nb"), shown(True), shown([1, 2])
    ('"a\\\\nb"', 'true', 'an array of length 2')
    """
    match value:
        case bool():
            return str(value).lower()
        case str() | Named():
            short = shortened(str(value))
            return json.dumps(short, ensure_ascii=not short.isprintable())
        case list() | tuple():
            return f"an array of length {len(value)}"
        case dict():
            return "a table"
    return str(value)
