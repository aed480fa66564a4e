"""What is equal: two texts are copies if and only if their folded texts are equal."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata

from qpr_jax.text.differences import number_list
from qpr_jax.text.tokenizer import apart_digits, combining_marks, nfkc

_OPEN, _CLOSE = (
    "\xab\u2039\u201c\u201e\u201f\u300a\u300c\u300e",
    "\xbb\u203a\u201d\u300b\u300d\u300f",
)
_APOSTROPHES = dict.fromkeys("\u2018\u2019\u201b\u02bc\xb4", "'")
_QUOTES = str.maketrans(_APOSTROPHES | dict.fromkeys(_OPEN + _CLOSE, '"'))
_FRENCH = re.compile(r"\xab\s+(\w[^\xab\xbb]*?)\s+\xbb")  # quotation marks with blanks
_PAIRED = re.compile(r"""(?<![\w"'])["']*(?:"(\w[^"]*)"|'(\w[^']*)')["']*(?!\w)""")
_LONE = re.compile(r'(?<!\S)"+(?=\w)|(?<=[^\W\d_])([.,;:?!]*)"+(?=[\s.,;:?!)]|$)')
_CORNERS = "\xab\xbb\u2039\u203a\u300a-\u300f"
_DIRECTED = frozenset(f"\xbf\xa1{_OPEN}{_CLOSE}")
_MARKS = ".,;:?!"
# After a word. "!" right after a number is a factorial.
_INNER = re.compile(rf"[{_MARKS}](?<=\w.)(?<!\d!)[{_MARKS}]*(?=\s)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATIVE = re.compile(r"(?<!\w)-\d+")
# How Unicode names the marks that end or divide sentences.
_MARK = re.compile("STOP|COMMA|QUESTION|EXCLAMATION|COLON|DANDA|KHAN|SHAD$|SIGN .*SECTION")
# Tags belong to a flag; joiners, to scripts from Hebrew on and to emoji.
_TAGS = "(?<![\U0001f3f4\U000e0020-\U000e007e])[\U000e0020-\U000e007f]+"
_JOINERS = "[\u200c\u200d]+(?![\u0590-\U0001fbff])|(?<![\u0590-\U0001fbff])[\u200c\u200d]+"
_DEEPEST = 9  # quotations in quotations


def folded(text: str) -> str:
    """Fold case, blanks, dashes, characters that nobody sees, quotation marks, and final marks.

    Final marks are those of all scripts after a word. Other signs count: C, C++ and C# are three
    texts, and so are 5, -5 and 5!. A superscript is no digit. A folded text stays as it is.
    """
    for _ in range(_DEEPEST):
        before, text = text, _fold(text)
        if text == before:
            break
    return text


def without_unseen(text: str) -> str:
    """Remove characters that nobody sees, such as soft hyphens and zero-width spaces."""
    return text if text.isascii() else _patterns().unseen.sub("", text)


def _fold(text: str) -> str:
    marks, inner = _MARKS, _INNER
    if not text.isascii():
        patterns = _patterns()
        marks, inner = patterns.marks, patterns.inner
        text = _FRENCH.sub('"\\1"', without_unseen(text))
        if not _DIRECTED.isdisjoint(text):
            text = patterns.directed.sub("", text)
        text = text.translate(_QUOTES)
        text = patterns.dashes.sub("-", apart_digits(text))
        text = patterns.dashes.sub("-", nfkc(nfkc(text).casefold()))
    text = " ".join(text.casefold().replace("`", "'").split())
    if '"' in text or "'" in text:
        text = _PAIRED.sub(lambda quoted: quoted[1] or quoted[2], text)
        text = _LONE.sub(r"\1", text)
    text = inner.sub("", text)
    plain = text.rstrip(f" {marks}")
    if plain[-1:].isdigit() and text[len(plain) :].startswith("!"):
        plain += "!"
    return plain or text


def without_numbers(text: str) -> str:
    """Replace all numbers of a folded text by 0."""
    return _NUMBER.sub("0", text)


def number_key(text: str) -> str:
    """Return the numbers of a folded text, in order, as a text; rows with one key are compared."""
    found = (number for number, _ in itertools.groupby(number_list(text)))
    return " ".join([*found, *_NEGATIVE.findall(text)])


class _Patterns:
    """Made from the categories and names of Unicode, at the first use."""

    def __init__(self) -> None:
        unseen, dashes, marks = [], ["\u2212"], [*_MARKS]
        for code in range(0x80, 0x20000):
            sign = chr(code)
            match unicodedata.category(sign):
                case "Cf" if sign not in "\u200c\u200d":
                    unseen.append(sign)
                case "Pd":
                    dashes.append(sign)
                case "Po" if _MARK.search(unicodedata.name(sign)) and sign not in "\xbf\xa1":
                    marks.append(sign)
        self.marks, letter = "".join(marks), r"[^\W\d_]"
        # Variation selectors and the grapheme joiner are marks that nobody sees.
        self.unseen = re.compile(rf"[{''.join(unseen)}\u034f\ufe00-\ufe0f]+|{_TAGS}|{_JOINERS}")
        self.dashes = re.compile(f"[{''.join(dashes)}]")
        # Where a script has no blanks, the direction of a quotation mark says what it belongs to.
        self.directed = re.compile(
            rf"[\xbf\xa1{_CORNERS}]+(?=\w)|(?<=[\w{self.marks}{combining_marks()}])[{_CORNERS}]+"
            rf"|(?<=\w)[{_OPEN}]+(?={letter})|(?<={letter})[{_CLOSE}]+(?=\w)"
        )
        after = rf"[\w{combining_marks()}]"
        self.inner = re.compile(_INNER.pattern.replace(r"\w", after).replace(_MARKS, self.marks))


_patterns = functools.cache(_Patterns)
