"""The files that come with the package: their paths, and the names by which commands accept them.

A file takes precedence over a name: `zerosim run zero3` runs a file `zero3` of the current folder if there is one,
otherwise the shipped scenario. `zero3.toml` is never looked up as a name, so a changed copy is run as it is.

`scenarios` and `docs` are symbolic links to the project's folders in a clone, and folders in an installed package:
setuptools copies the targets of links into wheel and sdist. There is one copy of each file, links in README work, and
no code distinguishes the two cases. A checkout without symbolic links (Windows, by default) cannot build a wheel;
zerosim needs POSIX anyway.
"""

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from zerosim.core.errors import UsageError
from zerosim.core.files import reason

HERE = Path(__file__).parent


@cache
def scenarios() -> dict[str, Path]:
    """The file of each shipped scenario, by its name: those to run, then plans and faults.

    >>> scenarios()["zero3"].name, scenarios()["mpt_7b"].parent.name
    ('zero3.toml', 'plans')
    """
    folder = HERE / "scenarios"
    files = [path for pattern in ("*.toml", "plans/*.toml", "faults/*.toml") for path in sorted(folder.glob(pattern))]
    return {path.stem: path for path in files}


def lessons() -> list[Path]:
    """The lessons in reading order."""
    return sorted((HERE / "docs" / "lessons").glob("[0-9]*.md"), key=lambda path: int(path.name.partition("_")[0]))


SMALL = ("zero1", "zero2", "zero3", "compare", "stage2_needs_no_all_reduce", "reduce_scatter_slides", "unsafe_sends")
"""The scenarios that come with the exercises: each takes seconds."""


def exercises() -> dict[Path, Path]:
    """The files that are copied for a learner, each with its place: skeletons, instructions, small scenarios."""
    folder = HERE / "docs" / "exercises"
    skeletons = {path: Path(path.name) for path in [*sorted(folder.glob("*.py")), folder / "README.md"]}
    helpers = {scenarios()[name].with_name("collectives.py") for name in SMALL}
    files = [*(scenarios()[name] for name in SMALL), *helpers]
    return skeletons | {path: Path("scenarios", path.name) for path in files}


def material() -> dict[Path, Path]:
    """The lessons, the files they link to, and their pictures, each with its relative place."""
    docs = HERE / "docs"
    paths = [*docs.glob("*.md"), *docs.glob("lessons/*.*"), *docs.glob("exercises/*.*"), *docs.glob("pictures/*.*")]
    return {path: path.relative_to(docs) for path in sorted(paths)}


def title(page: Path) -> str:
    """The heading of a page."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def scenario_file(given: str | os.PathLike[str]) -> str:
    """The path of a scenario: the file of that name if it exists, otherwise the shipped scenario.

    >>> scenario_file("zero3").endswith("scenarios/zero3.toml"), scenario_file("no/such.toml")
    (True, 'no/such.toml')
    """
    name = os.fspath(given)
    if os.path.exists(name) and not os.path.isdir(name):
        return name
    return os.fspath(scenarios().get(name, name))


LINK = re.compile(r"(?<!!)\[((?:`[^`]*`|[^\]`])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def relinked(page: str, source: Path, place: Path, places: Mapping[str, Path]) -> str:
    """A page whose links lead to the copied files, else to those of the package; a link to neither becomes text.

    `places` has the place of each copied file by its path in the project.
    """
    def link(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        within = os.path.normpath(source.relative_to(HERE).parent / target)
        file = HERE.parents[2] / within if within.startswith("zerosim" + os.sep) else HERE / within
        if within in places:
            return f"[{words}]({os.path.relpath(places[within], place.parent)}{anchor})"
        return f"[{words}]({file}{anchor})" if file.exists() else words

    return LINK.sub(link, page)


def copy_out(sources: Iterable[tuple[Path, Path]]) -> list[Path]:
    """Copy each file to its place, making folders; the places. Links of pages lead to copies or into the package, and
    an existing file is never overwritten.

    Raises `UsageError` before anything is written if a file exists, and if a file or a folder cannot be written.
    """
    pairs = list(sources)
    places = {str(source.relative_to(HERE)): place for source, place in pairs if source.is_relative_to(HERE)}
    for _, place in pairs:
        if os.path.exists(place):
            raise UsageError(f"{place} exists already, and nothing is overwritten; name another folder")
    try:
        for source, place in pairs:
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                place.write_text(relinked(source.read_text(encoding="utf-8"), source, place, places), encoding="utf-8")
            else:
                shutil.copyfile(source, place)
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename2 or error.filename}: {reason(error)}; "
            "name a folder that can be written to") from error
    return [place for _, place in pairs]
