"""Dictionaries made of Wiktionary: lines `:word:(gender) translation (gloss), translation (gloss)`.

The files are used as they come. Their scripts cut some words and left wiki markup in others; what
cannot be read is left out, since a dictionary of tens of thousands of words needs no single one.
"""

from __future__ import annotations

import html
import re

_ENTRY = re.compile(r":([^:]*):(.*)", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")  # [[word]], [[page|word]]
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
# A word that is cut at both ends of links keeps what stood between: `zwei]] [[Wochen`.
_CUT_LINK = re.compile(r"\[\[|\]\]|\}\}\s*$")
_QUOTES = re.compile(r"'{2,}")
_ANCHOR = re.compile(r"#[A-Z]\w+")  # `[[zu#German`: a part of a page
_MARKUP = re.compile(r"[\[\]{}<>|;#]|''| / | \+ ")  # two apostrophes: italics, of remarks
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\ufeff"))  # places to hyphenate, ...
_PAGE = re.compile(r"(?:Appendix|Category|Template|Wiktionary|Wikipedia):")  # not a word
_GENDERS = ("m", "f", "n", "p", "c")


def is_entry(line: str) -> bool:
    """Whether a line has the form `:word:translations`, as opposed to the lines of a preface."""
    return _ENTRY.fullmatch(line) is not None


def parse_entry(line: str, language: str = "") -> tuple[str, list[str]]:
    """The word of a line, empty if it cannot be used, and its translations without glosses.

    Args:
      line: of which `is_entry` is true.
      language: of the words; its code as a word is a remnant of markup.
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
    if not has_gloss:
        texts += current.split(",")
    else:
        texts.append(current)
    return [text.replace("\0", " ") for text in texts]
