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
_COMMENT = re.compile(r"<!--.*?-->")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")  # [[word]], [[page|word]]
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
# A word that is cut at both ends of links keeps what stood between: `zwei]] [[Wochen`.
_CUT_LINK = re.compile(r"\[\[|\]\]|\}\}\s*$")
_ANCHOR = re.compile(r"#[A-Z]\w+")  # `[[zu#German`: a part of a page
_MARKUP = re.compile(r"[\[\]{}<>|;#]|''| / | \+ ")  # two apostrophes: italics, of remarks
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\ufeff"))  # places to hyphenate, ...
_PAGE = re.compile(r"(?:Appendix|Category|Template|Wiktionary|Wikipedia):")  # not a word
_GENDERS = ("m", "f", "n", "p", "c")


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
    word = _clean_word(match[1]) if match else ""
    if not match or word in ("", language) or (word in _GENDERS and word != match[1]):
        return "", []
    return word, [*dict.fromkeys(filter(None, map(_clean_translation, _split(match[2]))))]


def _clean_word(text: str) -> str:
    """A word without markup; empty if some is left, or nothing else."""
    text = _COMMENT.sub("", html.unescape(text).translate(_INVISIBLE)).strip(" ,;")
    text = _CUT_LINK.sub("", _TEMPLATE.sub("", _LINK.sub(r"\1", _ANCHOR.sub("", text))))
    text = " ".join(text.split()).rstrip(" ,;")
    broken = _MARKUP.search(text) or text.count("(") != text.count(")")
    return "" if broken or not any(map(str.isalnum, text)) else text


def _clean_translation(text: str) -> str:
    """A translation; empty if markup or a bracket shows that it is not whole."""
    text = " ".join(html.unescape(text).translate(_INVISIBLE).split()).strip(" )")
    broken = _MARKUP.search(text) or ")" in text or _PAGE.match(text)
    return "" if broken or not any(map(str.isalnum, text)) else text


def _split(text: str) -> list[str]:
    """The translations of an entry without what stands in brackets.

    A comma ends a translation only behind its gloss, since `like father, like son` is one; where
    no translation has a gloss every comma does.
    """
    texts, current, depth = [], "", 0
    has_gloss = False
    for character in text:
        if character == "(":
            depth += 1
            has_gloss |= bool(current.strip())
        elif character == ")" and depth:
            depth -= 1
            current += "\0" if not depth else ""  # where a bracket was
        elif not depth:
            if character == "," and current.rstrip(" )").endswith("\0"):
                texts.append(current)
                current = ""
            else:
                current += character
    texts += [current] if has_gloss else current.split(",")
    return [text.replace("\0", " ") for text in texts]


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
