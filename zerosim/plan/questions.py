"""The duration and cost of a training, the fewest or cheapest devices that meet a date, and the largest model."""

from dataclasses import dataclass
from math import inf
from typing import Any

from zerosim.core.errors import UsageError
from zerosim.plan.planned_row import PlannedRow

DAY = 24 * 3600
HOUR = 3600


@dataclass(frozen=True)
class Question:
    """Train on `tokens` tokens (in an mlp, samples), within `days` days if given.

    >>> Question.read("2T", 30.0), Question.read("15e9", None)
    (Question(tokens=2000000000000.0, days=30.0), Question(tokens=15000000000.0, days=inf))
    """

    tokens: float
    days: float = inf

    @classmethod
    def read(cls, tokens: str | float, days: float | None = None) -> "Question":
        """The question for `tokens`, a number or words such as 2T, 300B or 1.5e12.

        Raises `UsageError` for anything else than a number above 0.
        """
        text = str(tokens)
        number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1.0)
        try:
            found = float(number) * unit
        except ValueError:
            found = 0.0
        if not 0 < found < inf:
            raise UsageError(f"tokens: found {text!r}; give a number above 0, such as 300B, 2T or 1.5e12")
        if days is not None and not 0 < days < inf:
            raise UsageError(f"days: found {days!r}; give a number above 0")
        return cls(found, inf if days is None else days)

    @property
    def title(self) -> str:
        """
        >>> Question(15e12).title, Question(3e11, 30.0).title, Question(500).title
        ('15T tokens', '300B tokens within 30 days', '500 tokens')
        """
        unit = next((unit for unit in "TBMK" if self.tokens >= UNITS[unit]), "")
        within = f" within {self.days:g} days" if self.days < inf else ""
        return f"{self.tokens / UNITS.get(unit, 1):g}{unit} tokens{within}"


UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Answer:
    """The days and dollars of one row for all tokens."""

    row: PlannedRow
    question: Question

    @property
    def devices(self) -> int:
        return self.row.config.all_ranks

    @property
    def days(self) -> float:
        speed = self.row.tokens_per_second * self.devices
        return self.question.tokens / speed / DAY if speed else inf

    @property
    def dollars(self) -> float | None:
        """None if the scenario gives no price of a device."""
        price = self.row.cluster.dollars_per_hour
        return self.days * DAY / HOUR * self.devices * price if price else None

    @property
    def in_time(self) -> bool:
        return self.row.fits and self.days <= self.question.days

    def document(self) -> dict[str, Any]:
        """The answer as JSON types; infinite numbers are null."""
        return {
            "name": self.row.name, "ranks": self.devices, "fits": self.row.fits, "in_time": self.in_time,
            "days": self.days if self.days < inf else None, "dollars": self.dollars,
        }


@dataclass(frozen=True)
class Answers:
    """The answer of each row of a plan, and the best ones."""

    question: Question
    each: tuple[Answer, ...]

    @property
    def fewest(self) -> Answer | None:
        """The fastest of the rows in time on the fewest devices."""
        return min(self._in_time, key=lambda answer: (answer.devices, answer.days), default=None)

    @property
    def cheapest(self) -> Answer | None:
        """The cheapest row in time; None without a price."""
        priced = [answer for answer in self._in_time if answer.dollars is not None]
        return min(priced, key=lambda answer: (answer.dollars or 0.0, answer.devices), default=None)

    @property
    def _in_time(self) -> list[Answer]:
        return [answer for answer in self.each if answer.in_time]

    def document(self) -> dict[str, Any]:
        """The answers as JSON types."""
        days = self.question.days
        return {
            "tokens": self.question.tokens, "days": days if days < inf else None,
            "rows": [answer.document() for answer in self.each],
            "fewest": self.fewest.row.name if self.fewest else None,
            "fewest_ranks": self.fewest.devices if self.fewest else None,
            "cheapest": self.cheapest.row.name if self.cheapest else None,
            "cheapest_ranks": self.cheapest.devices if self.cheapest else None,
        }
