"""The pages of the site: all documents are gathered, links lead to what is there, and what a page loads is seen."""

from tests.documents import site
from zerosim.commands.cli import COMMANDS


def test_every_command_and_module_has_its_place():
    assert [name for name in COMMANDS if f"## zerosim {name}\n" not in site.commands()] == []
    assert "::: zerosim.extend\n" in site.api()


def test_links_to_folders_become_text_and_files_are_copied(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "code").mkdir(parents=True)
    (root / "code" / "a.py").write_text("1\n")
    (root / "page.md").write_text("[a](code/a.py) [all](code) [other](other.md) [far](https://x.org) ![p](none.svg)")
    monkeypatch.setattr(site, "ROOT", root.resolve())
    words = site.gathered(root / "page.md", tmp_path / "out")
    assert words == "[a](code/a.py) all [other](other.md) [far](https://x.org) p"
    assert (tmp_path / "out" / "code" / "a.py").read_text() == "1\n"


def test_what_is_loaded_from_elsewhere_is_seen(tmp_path):
    page = '<a href="https://x.org">x</a><script src="{0}a.js"></script><link rel="stylesheet" href="{0}a.css">'
    (tmp_path / "a.html").write_text(page.format(""))
    assert site.loaded(tmp_path) == []
    (tmp_path / "b.html").write_text(page.format("https://x.org/"))
    assert len(site.loaded(tmp_path)) == 2
