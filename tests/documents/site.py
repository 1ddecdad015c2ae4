"""The pages of the documentation's site, gathered for mkdocs, and a check that the built site needs no network.

    python -m tests.documents.site build/docs            documents, and pages of commands, of the API and of operations
    python -m tests.documents.site --check build/site    exit code 1 if a page loads anything from elsewhere

Documents keep their places relative to each other, so links work as in the repository. A file that a document links to
is copied; a link to a folder of code becomes plain text, because a site has no page for it.

Pages are files, and search works in them too: Material's plugin `offline` puts the index into a script. It would load
a worker for such pages from a CDN, unless one of that name is there: `site_worker.js` is.
"""

import argparse
import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import shutil
import sys
import textwrap
from pathlib import Path

from zerosim.commands.cli import COMMANDS
from zerosim.commands.cli import main as command_line

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "*.md", "docs/**/*.md", "scenarios/**/*.md", "zerosim/scenario/data/README.md",
    "tests/accuracy/tables/README.md")
MODULES = ("zerosim", "zerosim.comm", "zerosim.extend", "zerosim.testing")
"""The modules that users import; the page of the API has their `__all__` and nothing else."""
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
MOST_COLUMNS = 100
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//[^\"]*\"|<link[^>]*rel=\"stylesheet\"[^>]*href=\"(?:https?:)?//[^>]*>")
STEPPED = re.compile(r"`zerosim (show [^`]* --html (\S+))`")

DARK = {"white": "#1e2129", "#000": "#e3e5e8", "#1c1c1c": "#f5f5f5"}
"""The ground and the inks of pictures in the dark scheme; all other colours have a meaning and stay."""


def printed(*words):
    """The output of a command."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        command_line(words)
    return output.getvalue()


def commands():
    """The page of commands: what `--help` prints for each."""
    helps = (f"## zerosim {name}\n\n```\n{printed(name, '--help')}```\n" for name in COMMANDS)
    return "# Commands\n\n" + "\n".join(helps)


def api():
    """The page of the API: signatures and docstrings of the public names, each where it is first public."""
    seen, parts = set(), []
    for module in map(importlib.import_module, MODULES):
        parts.append(f"## {module.__name__}\n\n{fenced(inspect.getdoc(module))}\n")
        for name in sorted(module.__all__, key=str.lower):
            value = getattr(module, name)
            if id(value) not in seen and (inspect.isclass(value) or inspect.isroutine(value)):
                seen.add(id(value))
                parts.append(entry(f"{module.__name__}.{name}", value))
    return "# API\n\n" + "\n".join(parts)


def entry(name, value):
    """A class with its public methods, or a function."""
    own = [method for key, method in vars(value).items() if key[0] != "_" and inspect.isfunction(method)
           and method.__doc__] if inspect.isclass(value) else []
    methods = "".join(f"\n{signature(method.__name__, method)}\n{fenced(inspect.getdoc(method))}\n" for method in own)
    return f"### {name}\n\n{signature(name, value)}\n{fenced(inspect.getdoc(value))}\n{methods}"


def signature(name, value):
    """A call with its parameters as its source has them, one on a line if the line would be long."""
    if dataclasses.is_dataclass(value):
        fields = "".join(f"    {field.name}{'' if field.default is dataclasses.MISSING else f'={field.default!r}'},\n"
                         for field in dataclasses.fields(value) if field.init)
        return f"```python\n{name}(\n{fields})\n```\n"
    made = inspect.getattr_static(value, "__init__", None) if inspect.isclass(value) else value
    try:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(made))).body
    except (TypeError, OSError, SyntaxError, ValueError):
        return ""
    words = f"{name}({ast.unparse(function.args).removeprefix('self, ')})"
    if len(words) > MOST_COLUMNS:
        words = re.sub(r"(?<=[\w\]'\"]), (?=\*?\*?\w+(:|=|,|\)|$)|\*,)", ",\n    ", words).replace("(", "(\n    ", 1)
    return f"```python\n{words}\n```\n"


def fenced(docstring):
    """A docstring whose examples are blocks of code, which Markdown would otherwise read as quotations."""
    return EXAMPLE.sub(lambda found: f"\n```pycon\n{found[0]}\n```\n", docstring or "")


def operations():
    """The page of the operations of models: what `zerosim check` prints."""
    return f"# The operations of models\n\n```\n{printed('check')}```\n"


def gathered(page, folder):
    """A page whose links lead to pages, or to files that are copied; links to folders and to no file are text."""
    def link(found):
        target = (page.parent / found[3]).resolve()
        if "://" in found[3] or target.suffix == ".md":
            return found[0]
        if not target.is_file():
            return found[2]
        place = folder / target.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(target, place)
        if found[1] and target.suffix == ".svg":
            place.with_suffix(".dark.svg").write_text(dark(target.read_text()))
            other = found[3].removesuffix(".svg") + ".dark.svg"
            return f"![{found[2]}]({found[3]}#only-light)![{found[2]}]({other}#only-dark)"
        return found[0]
    return LINK.sub(link, page.read_text()).replace("<details>", '<details markdown="1">')


def stepped(found):
    """A command of the gallery that writes a page, as a link to that page, once written below the current folder."""
    Path(found[2]).parent.mkdir(exist_ok=True)
    printed(*found[1].split())
    return f"[{found[0]}]({found[2]})"


def dark(picture):
    """An SVG for the dark scheme."""
    return re.sub(r'(?<=fill=")(white|#000|#1c1c1c)(?=")', lambda found: DARK[found[0]], picture)


def gather(folder):
    shutil.rmtree(folder, ignore_errors=True)
    for page in sorted({page for pattern in DOCUMENTS for page in ROOT.glob(pattern)}):
        place = folder / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(gathered(page, folder))
    for page in folder.glob("docs/gallery.md"):
        with contextlib.chdir(page.parent):
            page.write_text(STEPPED.sub(stepped, page.read_text()))
    (folder / "cli.md").write_text(commands())
    (folder / "api.md").write_text(api())
    (folder / "operations.md").write_text(operations())
    shutil.copyfile(ROOT / "tests/site_worker.js", folder / "iframe-worker.js")


def loaded(folder):
    """What pages of a built site load from elsewhere."""
    return [f"{page.relative_to(folder)}: {found[0]}" for page in sorted(folder.rglob("*.html"))
            for found in LOADED.finditer(page.read_text())]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.check:
        sys.exit("\n".join(loaded(given.folder)) or 0)
    gather(given.folder.resolve())
