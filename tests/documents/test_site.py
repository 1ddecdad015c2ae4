"""The pages of the site: all documents are gathered, links lead to what is there, and what a page loads is seen."""

import re

import pytest

import zerosim as zs
from tests.documents import site
from zerosim.commands.cli import COMMANDS
from zerosim.scenario import shipped


def test_every_command_and_module_has_its_place(built):
    commands, api = ((built[0] / "docs" / page).read_text() for page in ("cli.md", "api.md"))
    assert [name for name in COMMANDS if f"## zerosim {name}\n" not in commands] == []
    assert [name for name in zs.__all__ if not re.search(rf"^### zerosim(\.comm)?\.{name}$", api, re.M)] == []
    assert "zerosim.show(\n" in api
    assert "### zerosim.extend.stage\n" in api
    assert "zerosim.proofs" not in re.findall("^##+ (.*)$", api, re.M)


def test_every_page_is_in_the_navigation_and_a_lesson_has_its_number():
    nav = (site.ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(page.relative_to(site.ROOT)) for pattern in site.DOCUMENTS for page in site.ROOT.glob(pattern)}
    assert {page for page in pages if page not in nav} == set()
    for lesson in shipped.lessons():
        number = lesson.name.partition("_")[0]
        assert f'"{number}. {shipped.title(lesson)}": docs/lessons/{lesson.name}' in nav


def contents():
    """The bytes of all documents that git tracks."""
    return {path: path.read_bytes() for pattern in ("*.md", "mkdocs.yml", "docs/**/*.*", "scenarios/**/*.*")
            for path in site.ROOT.glob(pattern)}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The gathered site, and what git tracked before and after."""
    folder, before = tmp_path_factory.mktemp("site"), contents()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "STEPPED", re.compile(site.STEPPED.pattern.replace("[^`]*", "ring.all_reduce")))
        site.gather(folder / "docs")
    return folder, before, contents()


def test_building_the_site_changes_no_document(built):
    """The recipe of `make docs` without mkdocs, whose folders are those of `mkdocs.yml`."""
    recipe = (site.ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    ours = re.findall(r"\$\(BIN\)/python -m (\S+) ?(.*)", recipe)
    assert {module for module, _ in ours} == {"tests.documents.site"}
    folder, before, after = built
    assert before == after
    assert (folder / "docs/README.md").is_file()
    assert (folder / "docs/docs/gallery/ring.html").is_file()
    assert "ring.html`](gallery/ring.html)" in (folder / "docs/docs/gallery.md").read_text()
    config = (site.ROOT / "mkdocs.yml").read_text()
    assert "docs_dir: build/docs\nsite_dir: build/site\n" in config


def test_links_to_folders_become_text_and_files_are_copied(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "code").mkdir(parents=True)
    (root / "code" / "a.py").write_text("1\n")
    (root / "page.md").write_text("[a](code/a.py) [all](code) [other](other.md) [far](https://x.org) ![p](none.svg)")
    monkeypatch.setattr(site, "ROOT", root.resolve())
    words = site.gathered(root / "page.md", tmp_path / "out")
    assert words == "[a](code/a.py) all [other](other.md) [far](https://x.org) p"
    assert (tmp_path / "out" / "code" / "a.py").read_text() == "1\n"


def test_a_picture_has_a_dark_twin_with_the_same_colours(built):
    folder = built[0] / "docs"
    page = (folder / "docs/lessons/2_zero.md").read_text()
    assert re.search(r"\(../pictures/kept.svg#only-light\)!\[.*\]\(../pictures/kept.dark.svg#only-dark\)", page)
    light, dark = ((folder / f"docs/pictures/kept{kind}.svg").read_text() for kind in ("", ".dark"))
    assert 'fill="white"' in light
    assert not re.search('fill="(white|#000)"', dark)
    assert {*re.findall("#[0-9a-f]{6}", light)} <= {*re.findall("#[0-9a-f]{6}", dark)}


def test_what_is_loaded_from_elsewhere_is_seen(tmp_path):
    page = '<a href="https://x.org">x</a><script src="{0}a.js"></script><link rel="stylesheet" href="{0}a.css">'
    (tmp_path / "a.html").write_text(page.format(""))
    assert site.loaded(tmp_path) == []
    (tmp_path / "b.html").write_text(page.format("https://x.org/"))
    assert len(site.loaded(tmp_path)) == 2
