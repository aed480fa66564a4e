"""From a question's text to its words."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence

END = "\n"  # of a question, in a list of the words of many
_ASCII_WORD = re.compile(r"[a-z0-9_]+")
# Of many questions at once: what is not ASCII stands in words only (see `tokens_and_ends`).
_WORD_OR_END = re.compile(r"[^\x00-/:-@\[-^`{-\x7f]+|\n")
# Python's NFKC takes time quadratic in a run of combining marks: 1 MB of them would take minutes.
_LONG_TEXT = 1000
_LONGEST_RUN = 30  # that of Unicode's stream-safe text format (UAX #15, section 13)


def whole_characters(text: str) -> str:
    """The text with "?" for each half of a surrogate pair, which JSON can say, and no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def tokenize(text: str) -> list[str]:
    """The words of a question in order: NFKC, lower case, then runs of letters, digits and marks.

    Any string works. For text without combining marks the words are those of the pattern `\\w+`;
    marks (Hindi vowel signs, say) stay inside the word that they follow.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    word, _ = _patterns()
    return word.findall(nfkc_lower(text))


def tokens_and_ends(texts: Sequence[str]) -> list[str]:
    """The words of each text as `tokenize` gives them, END after those of each.

    One pass over all is several times faster than a call for each.
    """
    lines = [
        text.replace(END, " ") if text.isascii() else " ".join(tokenize(text)) for text in texts
    ]
    return _WORD_OR_END.findall("".join(line + END for line in lines).lower())


def normalized_text(text: str) -> str:
    """The words joined by blanks: what two spellings of one question have in common.

    A text without a word is the stripped, lower-cased NFKC text itself, so that "?" and "!" differ.
    """
    return " ".join(tokenize(text)) or nfkc_lower(text).strip()


def nfkc_lower(text: str) -> str:
    """The text in NFKC and lower case, in linear time."""
    return nfkc(text).lower()


def nfkc(text: str) -> str:
    """The text in NFKC, in linear time."""
    if len(text) > _LONG_TEXT and not text.isascii():
        _, long_run = _patterns()
        text = long_run.sub(r"\1", text)
    return unicodedata.normalize("NFKC", text)


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """(a word, a run of marks that is too long); built on the first text that needs them."""
    # U+FE00-FE0F choose between text and emoji shapes; they are no part of a word. The marks of
    # U+E0100 and above choose shapes too, and no others stand above U+1F000.
    marks = "".join(
        chr(code)
        for code in range(0x300, 0x1F000)
        if unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F
    )
    # The two half-width kana marks (U+FF9E, U+FF9F) become combining marks under NFKC.
    run = marks + "\uff9e\uff9f"
    return (
        re.compile(rf"\w[\w{marks}]*"),
        re.compile(rf"([{run}]{{{_LONGEST_RUN}}})[{run}]+"),
    )
