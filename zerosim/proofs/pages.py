"""The shipped lessons as HTML pages that need no network.

Markdown is rendered by markdown-it-py, on which rich depends in any case. Pages keep their relative places. A link to
a Markdown page becomes one to its HTML page, a link to a file that is not shipped becomes plain text.
"""

import re
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

from zerosim.scenario.shipped import lessons, material, title, writing

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem }
body { overflow-wrap: break-word }
pre, table { display: block; overflow-x: auto } pre { padding: .7rem; background: #8882 } code { font-size: .9em }
td, th { padding: .25rem .6rem; border: 1px solid #8886; text-align: left } table { border-collapse: collapse }
img { max-width: 100%; height: auto; background: #fff } nav { display: flex; gap: .3rem 1.5rem; flex-wrap: wrap }
@media (max-width: 40rem) { td, th { padding: .2rem .3rem; font-size: .8rem } pre { font-size: .8rem } }
.projector { zoom: 2 } .projector img { max-width: none }
@media print { nav { display: none } .projector { zoom: 1 } pre { white-space: pre-wrap } }
"""

PROJECTOR = """<script>
const project = () => document.body.classList.toggle("projector");
if (location.hash === "#projector") project();
onkeydown = (event) => event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && project();
</script>"""


def write_pages(folder: Path) -> Path:
    """Write all pages, and their pictures, into a folder; returns the page of the first lesson.

    Raises `UsageError` if a file exists already or cannot be written.
    """
    shipped = material()
    places = {place.as_posix() for place in shipped.values()}
    with writing(folder / html_place(place) for place in shipped.values()):
        for source, place in shipped.items():
            target = folder / html_place(place)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                target.write_text(page(source, place.as_posix(), places), encoding="utf-8")
            else:
                target.write_bytes(source.read_bytes())
    return folder / "lessons" / html_place(Path(lessons()[0].name))


def html_place(place: Path) -> Path:
    """The place of a page's HTML; other files keep theirs.

    >>> html_place(Path("lessons/2_zero.md")).name, html_place(Path("pictures/sent.svg")).name
    ('2_zero.html', 'sent.svg')
    """
    return place.with_suffix(".html") if place.suffix == ".md" else place


def page(source: Path, place: str, places: set[str]) -> str:
    """A Markdown page as an HTML document; `place` is its own, `places` are those of all shipped files."""
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(source.read_text(encoding="utf-8"))
    name_headings(tokens)
    for token in tokens:
        token.children = list(relinked(token.children or [], place, places)) or token.children
    body = parser.renderer.render(tokens, parser.options, {})
    head = f"<title>{escape(title(source))}</title><style>{STYLE}</style>"
    links = neighbours(source, place)
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width">{head}</head>\n'
            f"<body>{links}\n{body}{links}{PROJECTOR}</body></html>\n")


def name_headings(tokens: list[Token]) -> None:
    """Give every heading the id that links use: its words in lower case, joined by hyphens."""
    for opening, words in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", re.sub(r"[^\w\- ]", "", words.content.lower()).replace(" ", "-"))


def relinked(tokens: list[Token], place: str, places: set[str]) -> Iterator[Token]:
    """The tokens with links to HTML pages; links to files that are not shipped lose their tags."""
    dropped = False
    for token in tokens:
        if token.type == "link_open":
            href = str(token.attrGet("href"))
            path, mark, part = href.partition("#")
            target = normpath(join(place, "..", unquote(path))) if path else place
            dropped = "://" not in href and target not in places
            if path.endswith(".md") and not dropped and "://" not in href:
                token.attrSet("href", path.removesuffix(".md") + ".html" + mark + part)
        if not (dropped and token.type in ("link_open", "link_close")):
            yield token


def neighbours(source: Path, place: str) -> str:
    """Links to the contents, and from a lesson to the ones before and after it."""
    up = "../" * place.count("/")
    links = [f'<a href="{up}README.html">Contents</a>']
    order = lessons()
    if source in order:
        number = order.index(source)
        for words, at in (("Previous", number - 1), ("Next", number + 1)):
            if 0 <= at < len(order):
                links.append(f'<a href="{order[at].stem}.html">{words}: {escape(title(order[at]))}</a>')
    return f"<nav>{''.join(links)}</nav>"
