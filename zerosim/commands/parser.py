"""A parser of command lines whose errors are one line."""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from zerosim.errors import did_you_mean

ELSEWHERE = {("zerosim run", "--ranks"): "; mpirun -n N starts N ranks, and --set world.ranks=N asks for them"}
"""Flags of other commands, and the replacement in this one."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line: what was found, what is allowed, and which command prints help."""

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print as argparse does, but raise if the help cannot be written."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line, without the usage."""
        self.exit(2, f"{self.prog}: {in_our_words(message, self.prog)} ({self.prog} --help says more)\n")

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Exit because `words` are unknown flags or surplus arguments."""
        flag = words[0].partition("=")[0]
        flags = re.findall(r"--[\w-]+", self.format_usage())
        mend = ELSEWHERE.get((self.prog, flag)) or did_you_mean(flag, flags, alike=0.8) or "; leave it out"
        self.error(f"found {' '.join(words)!r}, which is not an argument of this command{mend}")


def in_our_words(message: str, prog: str) -> str:
    """Argparse's message in the words of the other errors.

    >>> in_our_words("argument COMMAND: invalid choice: 'rum' (choose from 'run', 'show')", "zerosim")
    "COMMAND: found 'rum'; allowed are run, show; did you mean 'run'?"
    >>> in_our_words("argument --json: expected one argument", "zerosim run")
    '--json: give it a value; one that begins with - is written --json=-…'
    >>> in_our_words("the following arguments are required: scenario", "zerosim run")
    'scenario is missing: zerosim run … scenario'
    """
    message = message.removeprefix("argument ")
    if wrong := re.fullmatch(r"(.*?): invalid choice: '?(.*?)'? \(choose from (.*)\)", message):
        what, found, choices = wrong[1], wrong[2], wrong[3].replace("'", "").split(", ")
        return f"{what}: found {found!r}; allowed are {', '.join(choices)}{did_you_mean(found, choices)}"
    if flag := re.fullmatch(r"(\S+): expected .*", message):
        return f"{flag[1]}: give it a value; one that begins with - is written {flag[1]}=-…"
    if missing := re.fullmatch(r"the following arguments are required: (.*)", message):
        names = missing[1].replace(",", "")
        return f"{missing[1]} {'are' if ',' in missing[1] else 'is'} missing: {prog} … {names}"
    return message
