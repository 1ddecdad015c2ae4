"""Words and constructions that `docs/style.md` rules out, in documents, `--help`, messages, docstrings and comments.

    python -m tests.style

prints each with its file and line. The words are those of the page's table.
"""

import argparse
import ast
import contextlib
import inspect
import io
import re
import sys
import tokenize
from pathlib import Path

from zerosim.commands.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
STYLE = ROOT / "docs" / "style.md"
FOLDERS = ("*.md", "docs/*.md", "docs/[!d]*/*.md", "scenarios/**/*.md", "zerosim/proofs/**/*.toml")
PAGES = sorted({page for folder in FOLDERS for page in ROOT.glob(folder)} - {STYLE})
SOME_WORDS = 4
BEFORE = r"(?:(?<=[.:!?] )|(?<=\n\n)|(?<=^- )|(?<=\*\*)|(?<=\| )|\A)"
FRONTED = re.compile(BEFORE + r"(?:Of (?:an?|the)|Who|What)\b[^.?!|:]*[.?!|:]", re.MULTILINE)


def out():
    """The words of the table, as one pattern."""
    _, _, rest = STYLE.read_text().partition("| out | write |\n|---|---|\n")
    table = rest.partition("\n\n")[0]
    words = [word.strip() for line in table.splitlines() for word in line.split("|")[1].split(",")]
    return re.compile(r"(?<![\w-])(?:" + "|".join(word.replace(" ", r"\s+") for word in words) + r")(?![\w-])", re.I)


def blank(block):
    """The line feeds of a match."""
    return "\n" * block[0].count("\n")


def prose(page):
    """A page without code, with the same lines."""
    page = re.sub(r"^ *```.*?^ *```$", blank, page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", lambda code: "`" + "\n" * code[0].count("\n") + "`", page)


def definitions(page):
    """The notation without its first and last columns, which name code and files."""
    return re.sub(r"^\|[^|]*\|([^|]*)\|[^|]*\|$", r"|\1|", page, flags=re.MULTILINE)


def faults(words):
    """Line and words of each thing that is out in a piece of prose."""
    found = [*out().finditer(words), *(each for each in FRONTED.finditer(words) if not each[0].endswith("?"))]
    found.sort(key=lambda each: each.start())
    return [(words.count("\n", 0, each.start()) + 1, " ".join(each[0].split())) for each in found]


def helps():
    """What `--help` prints, by command."""
    for command in COMMANDS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([command, "--help"])
        yield f"zerosim {command} --help", printed.getvalue()


def messages(code):
    """Line and words of each string of some words in code that is no docstring; X stands for what is put in."""
    tree = ast.parse(code)
    silent = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    silent |= {id(part) for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    for node in ast.walk(tree):
        words = ""
        if isinstance(node, ast.JoinedStr):
            words = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            words = node.value
        if len(words.split()) >= SOME_WORDS:
            yield node.lineno, words


def documented(code):
    """Line and words of each docstring and comment in code, without examples; docstrings of attributes included."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Expr(ast.Constant(str(words))):
                line = node.lineno + len(words) - len(words.lstrip("\n"))
                yield line, re.sub(r"^ *>>> .*(?:\n.+)*", blank, prose(inspect.cleandoc(words)), flags=re.MULTILINE)
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], prose(token.string.lstrip("# "))


def everything():
    """All that is out, each with its place."""
    for page in PAGES:
        words = prose(page.read_text())
        for line, each in faults(definitions(words) if page.name == "notation.md" else words):
            yield f"{page.relative_to(ROOT)}:{line}: {each}"
    for command, printed in helps():
        for line, each in faults(printed):
            yield f"{command}:{line}: {each}"
    for file in sorted((ROOT / "zerosim").rglob("*.py")):
        code = file.read_text()
        for line, words in messages(code):
            for _, each in faults(words):
                yield f"{file.relative_to(ROOT)}:{line}: {each}"
        for line, words in documented(code):
            for offset, each in faults(words):
                yield f"{file.relative_to(ROOT)}:{line + offset - 1}: {each}"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = list(everything())
    print(*found, sep="\n", file=sys.stderr)
    sys.exit(f"{len(found)} words or constructions that docs/style.md rules out" if found else 0)
