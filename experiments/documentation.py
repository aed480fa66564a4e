"""Titles and first sentences of documentation in Debian packages, for `experiments.transfer`."""

from __future__ import annotations

import pathlib
import re

from qpr_jax.text.cleaning import without_html

Pages = list[tuple[str, str]]  # a title, and the first sentence below it


def office_help(sources: pathlib.Path) -> Pages:
    """Read the help of LibreOffice, of titles of two words and more."""
    folder = sources / "libreoffice-help-en-us/usr/share/libreoffice/help/en-US/text"
    pages = []
    for path in sorted(_need(folder).rglob("*.html")):
        html = path.read_text(encoding="utf-8")
        title = re.search(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)
        first = re.search(r'<p [^>]*class="paragraph"[^>]*>(.*?)</p>', html, re.DOTALL)
        if title and first:
            pages.append((_plain(title[1]), first_sentence(_plain(first[1]))))
    return [page for page in pages if len(page[0].split()) > 1 and 5 <= len(page[1].split()) <= 60]


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
