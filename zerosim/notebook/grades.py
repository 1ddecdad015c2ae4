"""Grades for the Python prompt: what holds of a function that an exercise asks for."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zerosim.errors import UsageError
from zerosim.grading.claims import CLAIMS
from zerosim.grading.examination import grade
from zerosim.grading.exercises import Grade
from zerosim.notebook.display import Bundle
from zerosim.notebook.shown import Shown
from zerosim.parts import Loader, is_python


@dataclass(frozen=True, repr=False)
class ShownGrade(Shown):
    """What was found out about one function: its claims, its points, and a complaint about the first that fails."""

    grade: Grade

    @property
    def passed(self) -> bool:
        """Whether everything that was asked holds."""
        return self.grade.complaint is None and self.grade.state != "not yet written"

    @property
    def document(self) -> dict[str, Any]:
        """All of it in JSON's own types."""
        return {"schema": "zerosim.grade/1", "function": self.grade.function, "state": self.grade.state,
                "complaint": self.grade.complaint, "items": self.rows()}

    def rows(self) -> list[dict[str, Any]]:
        """A plain dict for each claim: `says`, `state`, `points`, `earned`, `complaint`."""
        return [{"says": item.says, "state": item.state, "points": item.points, "earned": item.earned,
                 "complaint": item.complaint} for item in self.grade.items]

    def __str__(self) -> str:
        lines = [f"{item.state:>15}  {item.says} ({item.earned} of {item.points})" for item in self.grade.items]
        return "\n".join([f"{self.grade.function}: {self.grade.state}", *lines, *filter(None, [self.grade.complaint])])

    def __repr__(self) -> str:
        return f"<grade of {self.grade.function}: {self.grade.state}>"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return {"text/plain": str(self)}


def graded(function: str | Callable[..., Any]) -> ShownGrade:
    """The grade of a function with the name of an exercise, or of the one that `FILE.py:NAME` stands for."""
    if isinstance(function, str) and not is_python(function):
        raise UsageError(f"found {function!r}; give FILE.py:NAME, or a function")
    found = Loader().load(function).value if isinstance(function, str) else function
    name = getattr(found, "__name__", "")
    if name not in CLAIMS:
        raise UsageError(f"{name or function!r} is no exercise; they are {', '.join(CLAIMS)}")
    return ShownGrade(grade(found, name, CLAIMS[name], inspect.getsourcefile(found) or ""))
