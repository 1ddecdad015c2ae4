"""Declarations of a section's keys: each function makes a dataclass field with a default and a rule."""

import math
from dataclasses import field
from typing import Any

from zerosim.scenario.rules import (
    LARGEST_INTEGER,
    ArrayRule,
    Choice,
    Either,
    Groups,
    Integer,
    NameOr,
    Number,
    SectionRule,
    Switch,
    SwitchOr,
    Tables,
    TextRule,
    Written,
)


def text(default: str) -> Any:
    return field(default=default, metadata={"rule": TextRule()})


def switch(default: bool) -> Any:
    return field(default=default, metadata={"rule": Switch()})


def maybe() -> Any:
    """True, false, or left out."""
    return field(default=None, metadata={"rule": Switch()})


def integer(default: int, *, at_least: int, at_most: int = LARGEST_INTEGER) -> Any:
    return field(default=default, metadata={"rule": Integer(at_least, at_most)})


def integers(
    default: tuple[int, ...], *, at_least: int, at_most: int = LARGEST_INTEGER, most: float = math.inf
) -> Any:
    """At most `most` integers."""
    return field(default=default, metadata={"rule": ArrayRule(Integer(at_least, at_most), at_most=most)})


def number(default: float | None, *, at_least: float, below: float = math.inf) -> Any:
    return field(default=default, metadata={"rule": Number(at_least, below)})


def pair(default: tuple[float, float], *, at_least: float, below: float) -> Any:
    return field(default=default, metadata={"rule": ArrayRule(Number(at_least, below), 2, 2)})


def choice(default: str, names: tuple[str, ...]) -> Any:
    return field(default=default, metadata={"rule": Choice(names)})


def maybe_choice(names: tuple[str, ...]) -> Any:
    """One of `names`, or left out."""
    return field(default=None, metadata={"rule": Choice(names)})


def numbers() -> Any:
    """Any finite numbers; none by default."""
    return field(default=(), metadata={"rule": ArrayRule(Number(-math.inf))})


def choices(default: tuple[str, ...], names: tuple[str, ...]) -> Any:
    """At least one of `names`, none of them twice."""
    return field(default=default, metadata={"rule": ArrayRule(Choice(names), 1, distinct=True)})


def section(of: type[Any]) -> Any:
    return field(default_factory=of, metadata={"rule": SectionRule(of)})


def name_or(of: type[Any], default: str) -> Any:
    return field(default=default, metadata={"rule": NameOr(of)})


def optional(of: Any) -> Any:
    """A key that may be left out of a table which replaces a name."""
    return field(
        default=of.default, default_factory=of.default_factory, metadata={**of.metadata, "optional": True})


def texts(default: tuple[str, ...], *, at_least: int = 0) -> Any:
    return field(default=default, metadata={"rule": ArrayRule(TextRule(), at_least)})


def rows() -> Any:
    """An array of numbers for each rank, or empty."""
    return field(default=(), metadata={"rule": ArrayRule(ArrayRule(Written()))})


def sections(of: type[Any]) -> Any:
    return field(default=(), metadata={"rule": Tables(of)})


def word_or_number(default: str, *, at_least: float, below: float) -> Any:
    return field(default=default, metadata={"rule": Either(default, Number(at_least, below))})


def switch_or_integers(default: bool) -> Any:
    return field(default=default, metadata={"rule": SwitchOr(ArrayRule(Integer(0), distinct=True))})


def number_or_word(default: float, word: str, *, at_least: float) -> Any:
    return field(default=default, metadata={"rule": Either(word, Number(at_least))})


def groups() -> Any:
    return field(default="layer", metadata={"rule": Groups()})


def subset(names: tuple[str, ...]) -> Any:
    """Any of `names`, none of them twice; none by default."""
    return field(default=(), metadata={"rule": ArrayRule(Choice(names), distinct=True)})
