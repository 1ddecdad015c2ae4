"""Sequences of tokens for language models: texts and generated tasks."""

from pathlib import Path

from zerosim.data.dataset import Dataset, Fault
from zerosim.data.tasks import TASKS, task
from zerosim.data.text import read_text, shakespeare, windows_of

ALLOWED = ", ".join(f'"{name}"' for name in ("text", *TASKS)) + " or the path of a text file"


def sequences(source: str, sequence: int, vocabulary: int | None, fault: Fault, folder: Path) -> Dataset:
    """Samples of `sequence` tokens: "text" (Shakespeare), "sort", "reverse", or a user's UTF-8 file.

    A relative path starts in `folder`. `sequence` is at least 1. `vocabulary`, at least 2, is the number of classes;
    None takes as many as the data has. `windows_of` says how a text is cut, `task` what "sort" and "reverse" are.
    Raises `fault`'s error.

    >>> here = Path()
    >>> text = sequences("text", 64, None, ValueError, here)
    >>> text.kind, text.classes, text.x.shape, text.x_test.shape
    ('tokens', 65, (15685, 64), (256, 64))
    >>> sequences("reverse", 15, 12, ValueError, here).x.shape
    (20000, 15)
    """
    if source in TASKS:
        return task(source, sequence, vocabulary, fault)
    if source == "digits" or source.endswith(".npz"):
        raise fault(f"these are rows of features, where tokens are wanted; it must be {ALLOWED}")
    text = shakespeare() if source == "text" else read_text(folder, source, ALLOWED, fault)
    return windows_of(text, sequence, vocabulary, fault)
