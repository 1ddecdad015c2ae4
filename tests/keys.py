"""The tables of `docs/scenario.md`: names, defaults and allowed values from the schema, sentences from the page.

    python -m tests.keys

writes the tables again. A new key needs a sentence first: a row `| `section.key` | | | The sentence. |` in any table
of the page.
"""

import dataclasses
import json
import re
from pathlib import Path

from zerosim.scenario.fault import CollectiveOf
from zerosim.scenario.rules import ArrayRule, Choice, Either, NameOr, PartOf, Rule, SectionRule, SourceOf, Tables, rules
from zerosim.scenario.schema import Scenario
from zerosim.scenario.sections import Parallel

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scenario.md"
HEAD = "| key | default | allowed | meaning |\n|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEAD) + r"((?:\|.*\n)*)")
ROW = re.compile(r"^\| `([\w.]+)` \|.*\| (.+?) \|$", re.MULTILINE)


def schema():
    """The keys of each table of a scenario, "" for those at the top: field and rule by name."""
    found = {"": {}}
    for each in dataclasses.fields(Scenario):
        rule = each.metadata.get("rule")
        if isinstance(rule, SectionRule | Tables):
            fields = {field.name: field for field in dataclasses.fields(rule.section)}
            found[each.name] = {name: (fields[name], of) for name, of in rules(rule.section).items()}
        elif rule is not None:
            found[""][each.name] = (each, rule)
    return found


def code(words):
    return ", ".join(f"`{word}`" for word in words)


def allowed(rule: Rule) -> str:
    """
    >>> allowed(Choice(("a", "b"))), allowed(ArrayRule(Choice(("a",))))
    ('`a`, `b`', 'an array of: `a`')
    """
    match rule:
        case SourceOf() | CollectiveOf():
            return str(rule)
        case PartOf():
            return f"{code(filter(None, rule.names))}, `FILE.py:NAME`"
        case Choice():
            return code(name or json.dumps(name) for name in rule.names)
        case ArrayRule(element=Choice()):
            return f"an array of: {allowed(rule.element)}"
        case Either():
            return f"`{rule.word}` or {allowed(rule.other)}"
        case NameOr():
            return f"a name in quotes, or a table with {code(rules(rule.section))}"
        case SectionRule():
            return f"a table with {code(rules(rule.section))}"
    return str(rule)


SHORTER = (
    (r"an integer of at least (\S+) and at most (\S+)", r"\1 … \2"), (r"an integer of at least (\S+)", r"integer ≥ \1"),
    (r"a finite number of at least (\S+) and below (\S+)", r"\1 ≤ number < \2"),
    (r"a finite number of at least (\S+)", r"number ≥ \1"), ("a finite number", "number"), ("an array", "array"),
    (", each", " of"), ("a string in quotes", "string"), ("a name in quotes, or a table with", "name, or table of"),
    ("a table with", "table of"), ("true or false", "`true`, `false`"))
"""What errors say in words, as columns have it."""


def in_columns(words):
    """
    >>> in_columns("an array, each an integer of at least 0"), in_columns("an integer of at least 1 and at most 64")
    ('array of integer ≥ 0', '1 … 64')
    """
    for long, short in SHORTER:
        words = re.sub(long, short, words)
    return words


def default(field, rule):
    if isinstance(rule, SectionRule) or field.default is None:
        return "not set"
    value = field.default
    return f"`{value:g}`" if isinstance(value, float) else f"`{json.dumps(value)}`"


def sentences(page):
    """The meaning of each key, as the page says it."""
    return dict(ROW.findall(page))


def table(section, keys, meanings):
    """The rows of one table; those of a variant that repeat keys of [parallel] are one."""
    same = [name for name in keys if section == "variant" and name in rules(Parallel)]
    rows = [
        f"| `{key}` | {default(field, rule)} | {in_columns(allowed(rule))} | {meanings.get(key, '')} |\n"
        for name, (field, rule) in keys.items() if name not in same
        for key in [f"{section}.{name}".lstrip(".")]
    ]
    if same:
        other = ", ".join(f"`{name}`" for name in rules(Parallel) if name not in same)
        rows.append(f"| all keys of `[parallel]` but {other} | not set | the same | The same, for this row. |\n")
    return HEAD + "".join(rows)


def written(page):
    """The page with its tables as the schema has them; raises `KeyError` if a section of the schema has no table."""
    meanings = sentences(page)
    for section, keys in schema().items():
        heading = f"## `[{section}]`\n" if section and section not in ("variant", "fault") else (
            f"## `[[{section}]]`\n" if section else "## At the top\n")
        before, found, after = page.partition(heading)
        if not found:
            raise KeyError(f"no heading {heading!r}")
        page = before + found + TABLE.sub(lambda _, s=section, k=keys: table(s, k, meanings), after, count=1)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
