"""Words and figures as tables, sentences, messages and files of TOML have them: plurals, lists, units, digits."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

KEPT = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer"}
"""The names that tables give to the kinds of state that a rank keeps between steps."""

ON_HOST = "on host"
"""The name that tables give to the host's memory."""


class ByteUnit(NamedTuple):
    """A decimal unit and its binary counterpart, for tables whose largest figure is `least` bytes or more."""

    least: int
    name: str
    size: int
    binary_name: str
    binary_size: int
    legend: str


UNITS = (
    ByteUnit(10**14, "TB", 10**12, "TiB", 2**40, "TB = 10^12 bytes, TiB = 2^40 bytes."),
    ByteUnit(10**9, "GB", 10**9, "GiB", 2**30, "GB = 10^9 bytes, GiB = 2^30 bytes."),
    ByteUnit(10**6, "MB", 10**6, "MiB", 2**20, "MB = 10^6 bytes, MiB = 2^20 bytes."),
    ByteUnit(0, "kB", 10**3, "KiB", 2**10, "kB = 10^3 bytes, KiB = 2^10 bytes."),
)

TESTS = {
    "accuracy": "test accuracy",
    "exact sequences": "test sequences without a mistake",
    "loss": "test loss",
    "mean squared error": "mean squared test error",
}
"""The names of test measures in the terminal and on the page."""


def common_unit(most_bytes: int) -> ByteUnit:
    """The unit in which `most_bytes` still has two digits before the point, for all figures of a table.

    >>> common_unit(309_696).name, common_unit(1_200_000).name, common_unit(10_000_000).name
    ('kB', 'kB', 'MB')
    """
    return next((unit for unit in UNITS if most_bytes >= 10 * unit.size), UNITS[-1])


def in_unit(count: int, unit: ByteUnit) -> str:
    """
    >>> in_unit(68_912, common_unit(309_696))
    '68.9'
    """
    return short(count / unit.size)


def in_one_unit(counts: Sequence[int], unit: ByteUnit) -> list[str]:
    """Counts in one unit, all with as many decimals as give the smallest two digits, and three at most.

    >>> in_one_unit([275_600, 3_400], common_unit(275_600)), in_one_unit([24_000_000, 68_000], common_unit(24_000_000))
    (['275.6', '3.4'], ['24.000', '0.068'])
    """
    least = min((count for count in counts if count), default=unit.size)
    places = 1 + (least < unit.size) + (10 * least < unit.size)
    return [f"{count / unit.size:.{places}f}" for count in counts]


def short(value: float) -> str:
    """A number with one decimal, and none from 1000 on.

    >>> [short(value) for value in (0.04, 1.98, 999.9, 1000.0, 1614.96)]
    ['0.0', '2.0', '999.9', '1000', '1615']
    """
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def joined_names(names: Sequence[str]) -> str:
    """The names as a list; those with a comma are quoted.

    >>> joined_names(["DDP", "DDP, 4 kB", "Stage III"])
    'DDP, "DDP, 4 kB" and Stage III'
    """
    return joined([f'"{name}"' if "," in name else name for name in names])


def joined(words: Sequence[str]) -> str:
    """
    >>> joined(["2", "2", "3"])
    '2, 2 and 3'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "step"), plural(1_000, "step")
    ('1 step', '1,000 steps')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def spread(figures: Iterable[str]) -> str:
    """The first and the last of ascending figures, or one if they are equal.

    >>> spread(["15", "18", "21"]), spread(["18", "18"])
    ('15–21', '18')
    """
    first, *_, last = [*figures] * 2
    return first if first == last else f"{first}–{last}"


def by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in order.

    >>> by_key([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    values: dict[Key, list[Value]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def grouped(names: Sequence[str], figures: Sequence[str]) -> str:
    """Each figure once, with the names of the rows that have it.

    >>> grouped(["DDP", "Stage I", "Stage III"], ["18", "18", "27"])
    '18 in DDP and Stage I; 27 in Stage III'
    """
    return "; ".join(f"{figure} in {joined_names(whose)}"
                     for figure, whose in by_key(zip(figures, names, strict=True)).items())


def ignored_in_words(rows: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """One sentence for each key of [parallel] that has no effect on some rows, with those rows and the reason.

    >>> ignored_in_words([("DDP", {"prefetch": "it has all"}), ("Stage I", {"prefetch": "it has all"}), ("III", {})])
    ['parallel.prefetch does nothing in DDP and Stage I: it has all']
    """
    ignored = by_key((key_and_reason, name) for name, keys in rows for key_and_reason in keys.items())
    return [f"parallel.{key} does nothing in {joined_names(names)}: {why}" for (key, why), names in ignored.items()]


def measured(measure: str, figure: float) -> str:
    """The result on the test split, in words.

    >>> measured("accuracy", 0.969359), measured("loss", 2.302585)
    ('96.94%', '2.303')
    """
    return f"{figure:.2%}" if measure in ("accuracy", "exact sequences") else f"{figure:.4g}"


def short_digest(digest: str) -> str:
    """
    >>> short_digest("0123456789abcdef" * 4)
    '0123456789ab...'
    """
    return digest if len(digest) <= 12 else f"{digest[:12]}..."


def duration(seconds: float) -> str:
    """A duration with three digits, in a suitable unit.

    >>> duration(12.345), duration(0.0123), duration(0.0000012)
    ('12.3 s', '12.3 ms', '1.2 µs')
    """
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def toml(table: Mapping[str, Any], within: str = "") -> str:
    """A table as TOML, a line for each key with its full name; keys without a value are left out.

    >>> print(toml({"title": "x", "world": {"ranks": 2, "more": {}}, "variant": [{"stage": "ddp", "units": None}]}))
    title = "x"
    world.ranks = 2
    world.more = {  }
    variant = [{ stage = "ddp" }]
    <BLANKLINE>
    """
    given = [(f"{within}{key}", value) for key, value in table.items() if value is not None and (within or value != [])]
    return "".join(toml(value, f"{key}.") if value and isinstance(value, dict) else f"{key} = {toml_value(value)}\n"
                   for key, value in given)


def toml_value(value: Any) -> str:
    """A value in TOML: JSON's form of numbers, bools, lists and strings, NumPy's too; unprintable characters escaped.

    >>> toml_value({"flops": 1e12, "functions": {}}), toml_value(chr(7))
    ('{ flops = 1000000000000.0, functions = {  } }', '"\\\\u0007"')
    """
    if isinstance(value, dict):
        given = (f"{key} = {toml_value(inner)}" for key, inner in value.items() if inner is not None)
        return f"{{ {', '.join(given)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    words = json.dumps(value, ensure_ascii=False, default=lambda value: getattr(value, "tolist", value.__str__)())
    return "".join(sign if sign.isprintable() else f"\\U{ord(sign):08x}" for sign in words)


VISIBLE = {code: 0x2400 + code for code in range(0x20) if code not in b"\n\t"} | {0x7F: 0x2421} | dict.fromkeys(chain(
    range(0x80, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), range(0xD800, 0xE000), range(0xFFFE, 0x10000)),
    0xFFFD)
"""Control characters -> visible symbols; characters that are not allowed in a page, or that would change the order in
which its words are read -> U+FFFD."""


def printable(words: str) -> str:
    r"""Control characters as visible symbols; U+FFFD for invalid characters and those that change direction.

    >>> printable("a\x1b[1m\nb\ud800\x7f")
    'a␛[1m\nb\ufffd␡'
    """
    return words.translate(VISIBLE)
