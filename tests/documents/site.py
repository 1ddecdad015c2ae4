"""The pages of the documentation's site, gathered for mkdocs, and a check that the built site needs no network.

    python -m tests.documents.site build/docs            documents, and pages of commands, of the API and of operations
    python -m tests.documents.site --check build/site    exit code 1 if a page loads anything from elsewhere

Documents keep their places relative to each other, so links work as in the repository. A file that a document links to
is copied; a link to a folder of code becomes plain text, because a site has no page for it.

Pages are files, and search works in them too: Material's plugin `offline` puts the index into a script. It would load
a worker for such pages from a CDN, unless one of that name is there: `site_worker.js` is.
"""

import argparse
import contextlib
import io
import re
import shutil
import sys
from pathlib import Path

from zerosim.commands.cli import COMMANDS
from zerosim.commands.cli import main as command_line

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "*.md", "docs/**/*.md", "scenarios/**/*.md", "zerosim/scenario/data/README.md",
    "tests/accuracy/tables/README.md")
MODULES = (
    "zerosim", "zerosim.proofs", "zerosim.collectives", "zerosim.core.comm",
    "zerosim.extend", "zerosim.proofs.laws")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//[^\"]*\"|<link[^>]*rel=\"stylesheet\"[^>]*href=\"(?:https?:)?//[^>]*>")


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
    """The page of the API: names, types and docstrings of the public modules."""
    return "# API\n\n" + "\n".join(f"::: {module}\n" for module in MODULES)


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
        return found[0]
    return LINK.sub(link, page.read_text())


def gather(folder):
    shutil.rmtree(folder, ignore_errors=True)
    for page in sorted({page for pattern in DOCUMENTS for page in ROOT.glob(pattern)}):
        place = folder / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(gathered(page, folder))
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
