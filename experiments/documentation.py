"""Titles and first sentences of documentation in Debian packages, for `experiments.transfer`."""

from __future__ import annotations

import pathlib
import re

from qpr_jax.text.cleaning import without_html

Pages = list[tuple[str, str]]  # a title, and the first sentence below it


_OFFICE = "libreoffice-help-en-us/usr/share/libreoffice/help/en-US"


def office_help(sources: pathlib.Path) -> Pages:
    """Read the help of LibreOffice, of titles of two words and more."""
    return [*office_pages(sources).values()]


def office_index(sources: pathlib.Path) -> list[tuple[str, str]]:
    """Read the entries of the index of the help, each with the path of its page."""
    text = _need(sources / _OFFICE).joinpath("bookmarks.js").read_text(encoding="utf-8")
    found = re.findall(r'url:"en-US/text/([^?"]+)\?[^"]*", app:"[^"]*", text:"([^"]+)"', text)
    return [(entry.replace(" -- ", ", "), path) for path, entry in found]


def office_pages(sources: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Read the help as `office_help`, by the paths of its pages."""
    folder, pages = sources / _OFFICE / "text", {}
    for path in sorted(_need(folder).rglob("*.html")):
        html = path.read_text(encoding="utf-8")
        title = re.search(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)
        first = re.search(r'<p [^>]*class="paragraph"[^>]*>(.*?)</p>', html, re.DOTALL)
        if title and first:
            page = _plain(title[1]), first_sentence(_plain(first[1]))
            if len(page[0].split()) > 1 and 5 <= len(page[1].split()) <= 60:
                pages[path.relative_to(folder).as_posix()] = page
    return pages


def perlfaq(sources: pathlib.Path) -> Pages:
    """Read the questions of perlfaq."""
    folder, pages = sources / "perl-doc/usr/share/perl", []
    for path in sorted(_need(folder).glob("*/pod/perlfaq[1-9].pod")):
        _, *parts = re.split(r"^=head2 ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for part in parts:
            title, *paragraphs = re.split(r"\n\s*\n", part)
            plain = [p for p in paragraphs if re.match(r"[A-Z]", p)]
            if plain:
                pages.append((_pod(title), first_sentence(_pod(plain[0]))))
    return [page for page in pages if len(page[1].split()) >= 4]


def first_sentence(text: str) -> str:
    """Return the text up to the first full stop that a capital follows."""
    return re.split(r"(?<=[.!?:])\s+(?=[A-Z])", text, maxsplit=1)[0]


def _plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", "", without_html(html)).split())


def _pod(text: str) -> str:
    """Remove the codes of POD, and what they add to an index."""
    text = re.sub(r"X<+[^<>]*>+", "", text)
    while text != (text := re.sub(r"[A-Z]<+\s?(?:[^<>|]*\|)?([^<>]*?)\s?>+", r"\1", text)):
        pass
    return " ".join(text.split())


def _need(folder: pathlib.Path) -> pathlib.Path:
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    return folder
