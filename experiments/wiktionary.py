"""Convert dictionaries of Wiktionary to two columns, which `data.parallel` reads.

    python -m experiments.wiktionary

reads each `wiktionary.XX-en.txt.gz` in $QPR_DATA_DIR/parallel and writes the file that presets and
studies name, `runs/wiktionary.en-XX.tsv.gz`: a translation, a tab and the word. A line is
`:word:(gender) translation (gloss), translation (gloss)`. The scripts that made the dictionaries
cut some words and left wiki markup in others; what cannot be read is left out.
"""

from __future__ import annotations

import gzip
import html
import logging
import os
import pathlib
import re
import sys

from qpr_jax.cli.program import run_program
from qpr_jax.errors import UserError
from qpr_jax.files import write_atomically

log = logging.getLogger("qpr_jax")

FOLDER = pathlib.Path("runs")
_ENTRY = re.compile(r":([^:]*):(.*)", re.DOTALL)
# Markup around a word, and what takes its place: comments, parts of pages (`[[zu#German`), links
# ([[word]], [[page|word]]), templates, and what is left of links that are cut (`zwei]] [[Wochen`).
_AROUND = (
    (re.compile(r"<!--.*?-->|#[A-Z]\w+"), ""),
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]"), r"\1"),
    (re.compile(r"\{\{[^{}]*\}\}"), ""),
    (re.compile(r"\[\[|\]\]|\}\}[\s,;]*$"), ""),
)
_MARKUP = re.compile(r"[\[\]{}<>|;#]|''| / | \+ ")  # two apostrophes: italics, of remarks
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\ufeff"))  # places to hyphenate, ...
_PAGE = re.compile(r"(?:Appendix|Category|Template|Wiktionary|Wikipedia):")  # not a word
_GENDERS = ("m", "f", "n", "p", "c")
_BRACKETS = re.compile(r"\([^()]*\)")


def convert(source: pathlib.Path, target: pathlib.Path, language: str) -> None:
    """Write the two columns of a dictionary, which explains words of `language` in English."""
    rows = []
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            word, translations = parse_entry(line.rstrip("\r\n"), language)
            rows += [f"{english}\t{word}\n" for english in translations]
    with write_atomically(target) as out:
        out.write(gzip.compress("".join(rows).encode(), mtime=0))
    log.info("%s: %s translations of words", target, f"{len(rows):,}")


def parse_entry(line: str, language: str = "") -> tuple[str, list[str]]:
    """Return the word of a line, "" if it cannot be used, and its translations without glosses.

    language: code of that of the words; as a word it is a remnant of markup.
    """
    match = _ENTRY.fullmatch(line)
    if not match:
        return "", []
    word = match[1]
    for pattern, plain in _AROUND:
        word = pattern.sub(plain, word)
    word = _plain(html.unescape(word).strip(" ,;"))
    if word in ("", language) or (word in _GENDERS and word != match[1]):
        return "", []
    found = [_plain(text) for text in _split(match[2])]
    return word, [*dict.fromkeys(text for text in found if text and not _PAGE.match(text))]


def _plain(text: str) -> str:
    """Return a text with single blanks; "" if markup or a bracket shows that it is not whole."""
    text = " ".join(html.unescape(text).translate(_INVISIBLE).split())
    broken = _MARKUP.search(text) or text.count("(") != text.count(")")
    return text if not broken and any(map(str.isalnum, text)) else ""


def _split(text: str) -> list[str]:
    """Return the translations of an entry without what stands in brackets.

    A comma ends a translation only behind its gloss, since `like father, like son` is one; where
    no translation has a gloss every comma does.
    """
    while text != (text := _BRACKETS.sub("\0", text)):
        pass
    ends = r"(?<=\0)[ )]*," if re.search(r"[^\s\0].*\0", text) else ","
    # A bracket that is not closed reaches to the end.
    parts = (part.replace("\0", " ").partition("(")[0] for part in re.split(ends, text))
    return [part.strip(" )") for part in parts]


def main() -> int:
    """Convert the dictionaries of the data folder; the exit status."""
    folder = pathlib.Path(os.environ.get("QPR_DATA_DIR", ""), "parallel")
    found = sorted(folder.glob("wiktionary.??-en.txt.gz"))
    if not found:
        what = f"{folder}: expected wiktionary.XX-en.txt.gz, found none"
        raise UserError(what, remedy="set $QPR_DATA_DIR")
    for source in found:
        language = source.name.split(".")[1].removesuffix("-en")
        convert(source, FOLDER / f"wiktionary.en-{language}.tsv.gz", language)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
