"""Split text into words, and normalize it."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable

# The lower case of bytes of words, and blanks for all others.
_WORD_BYTES = re.sub(rb"[^a-z0-9_]", b" ", bytes(range(256)).lower(), flags=re.DOTALL)
_WORD = re.compile(r"\w+")
_SIGNS = "\u3040-\u30ff\u3400-\u9fff"  # kana, Chinese characters
_SIGN_OR_REST = re.compile(f"[{_SIGNS}]|[^{_SIGNS}]+")
# Signs that change a meaning. A minus is before a number and after no word, a dot before a name and
# after a blank, and ?? between words: else they are punctuation.
_ASCII_SIGN = re.compile(
    r"[<>=+*/%$^]+|\#+|&&+|\|\|+|(?<!\w)-(?=\s?\d)|(?<!\S)\.(?=[^\W\d])|(?<!\S)\?\?(?=\s+\w)"
)
_ASCII_WORD_OR_SIGN = re.compile(rf"[a-z0-9_]+|{_ASCII_SIGN.pattern}")
_SIGN_CHARACTER = re.compile(r"[-<>=+*/%$^#&|]")
_FULL_WIDTH = {ord(sign): ord(sign) + 0xFEE0 for sign in "<>=+*/%$^#&|-.?"}
# Product codes, addresses, file names: words that "-", "." and the like join.
_JOINT = re.compile(r"[-./@:\\](?=\w)")
_CODE = re.compile(r"(?<!\w)(?:(?:\w++://|www\.)\S*\w|\w++(?:(?:[-./@:]|:?\\)\w++)+)")
_ADDRESS = re.compile(r"://|^www\.|@")
# Parts of a text between blanks, or of Chinese and Japanese, which have none. Codes, addresses and
# names of files tell no language.
_PART = re.compile(rf"[{_SIGNS}]+|[^\s{_SIGNS}]+")
_NOT_PLAIN = re.compile(r"[\d_@/\\]|[.:]\w")
_SHORT = 3  # letters; "de" and "la" are in the names of all languages
_NO_SIGNS = "©®°¦\ufffc\ufffd"  # symbols that change no meaning
# NFKC in Python is quadratic in a run of combining marks: 1 MB of them would take minutes.
_LONG_TEXT = 1000
_MAX_RUN = 30  # as in the stream-safe text format of Unicode (UAX #15, section 13)


def tokenize(text: str, *, signs: bool = False) -> list[str]:
    """Split a question into words: NFKC, lower case, then runs of letters, digits and marks.

    Accepts any string. Without combining marks the words are the matches of `\\w+`; a mark, such as
    a Hindi vowel sign, belongs to the word that it follows.

    With `signs`, what tells C from C++ and C#, 5 from -5, 5 % and $5, < from >, .NET from net, or
    one emoji from another, is a word, too; ASCII signs are in full width (U+FF01 to U+FF5E).
    """
    if signs and (not text.isascii() or has_sign(text)):
        pattern = _ASCII_WORD_OR_SIGN if text.isascii() else _sign_pattern()
        return [word.translate(_FULL_WIDTH) for word in pattern.findall(nfkc_lower(text))]
    if text.isascii():
        return text.encode().translate(_WORD_BYTES).decode().split()
    text = nfkc_lower(text)
    word, _, marks = _patterns()
    # `\w+` is three times as fast as a pattern with all marks.
    return _WORD.findall(text) if marks.isdisjoint(text) else word.findall(text)


def join_codes(text: str, is_known: Callable[[str], bool]) -> str:
    """Make a code one word, so that it weighs as one: "SM-G991B" becomes "sm_g991b".

    Codes are URLs, e-mail addresses, and words without blanks of which one is unknown.
    """

    def join(match: re.Match[str]) -> str:
        words = tokenize(match[0])
        plain = not _ADDRESS.search(match[0]) and all(map(is_known, words))
        return match[0] if plain else "_".join(words)

    return _CODE.sub(join, text) if _JOINT.search(text) else text


def normalized_text(text: str) -> str:
    """Join the words of a text by spaces; without a word: the stripped, lower-case NFKC text."""
    return " ".join(tokenize(text)) or nfkc_lower(text).strip()


def split_at_words(text: str) -> list[tuple[str, str]]:
    """Split a text into pieces that join to it: (piece, its normalized word, "" between words).

    Each sign of Chinese and Japanese is a word.
    """
    word, _, _ = _patterns()
    pieces: list[tuple[str, str]] = []
    for number, part in enumerate(re.split(f"({word.pattern})", text)):
        if number % 2:
            pieces += [(piece, nfkc_lower(piece)) for piece in _SIGN_OR_REST.findall(part)]
        elif part:
            pieces.append((part, ""))
    return pieces


def plain_words(text: str) -> list[str]:
    """List the words that tell the language of a text.

    These are in lower case, have no digit, and are no part of a code, an address or a file name.
    Words of ASCII have three letters or more. A run of Chinese or Japanese is one word.
    """
    parts = [part for part in _PART.findall(text) if part == part.lower()]
    words = [word for part in parts if not _NOT_PLAIN.search(part) for word in tokenize(part)]
    return [word for word in words if len(word) >= _SHORT or not word.isascii()]


def canonical(text: str) -> str:
    """Normalize a text, to compare texts: NFKC, lower case, single blanks, no final mark."""
    words = " ".join(nfkc_lower(text).split())
    return words.rstrip(" .?!") or words


def nfkc_lower(text: str) -> str:
    """Convert to NFKC and lower case, in linear time."""
    return nfkc(text).lower()


def nfkc(text: str) -> str:
    """Convert to NFKC, in linear time."""
    if len(text) > _LONG_TEXT and not text.isascii():
        _, long_run, _ = _patterns()
        text = long_run.sub(r"\1", text)
    return unicodedata.normalize("NFKC", text)


def apart_digits(text: str) -> str:
    """Keep digits that NFKC would join to others apart: 10⁶ is 10^6, 10₂ is 10_2, 3½ is 3 1/2."""
    if text.isascii() or (found := _odd_digits())[0].isdisjoint(text):
        return text
    _, raised, lowered, others = found
    text = raised.sub(r"^\g<0>", lowered.sub(_set_apart, text))
    return others.sub(lambda sign: f" {nfkc(sign[0])} ".replace("\u2044", "/"), text)


def _set_apart(lowered: re.Match[str]) -> str:
    return f"_{lowered[0]}" if lowered[1] is None else f"{lowered[0]}_"


def combining_marks() -> str:
    """Return all combining marks."""
    return "".join(sorted(_patterns()[2]))


@functools.cache
def _odd_digits() -> tuple[frozenset[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return all that follow.

    Patterns of superscripts, subscripts beside digits, others with digits.
    """
    kinds: dict[str, list[str]] = {"<super>": [], "<sub>": [], "": []}
    for sign in map(chr, range(0x80, 0x20000)):
        how, *_ = unicodedata.decomposition(sign).split() or [""]
        plain = unicodedata.normalize("NFKC", sign)
        if how in kinds and how and (plain.isdigit() or plain in "+-=()in\u2212"):
            kinds[how].append(sign)
        elif how and any(map(str.isdigit, plain)) and not sign.isdecimal():
            kinds[""].append(sign)
    raised, lowered, others = (re.escape("".join(signs)) for signs in kinds.values())
    beside = rf"(?<=\d)[{lowered}]+|()[{lowered}]+(?=\d)"
    digits = frozenset(itertools.chain(*kinds.values()))
    return digits, re.compile(f"[{raised}]+"), re.compile(beside), re.compile(f"[{others}]")


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], frozenset[str]]:
    """Patterns of a word and of a run of marks that is too long, and the marks; on first use."""
    # U+FE00-FE0F select text or emoji shapes and belong to no word. The marks from U+E0100 select
    # shapes, too, and there are no other marks above U+1F000.
    marks = "".join(
        chr(code)
        for code in range(0x300, 0x1F000)
        if unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F
    )
    # NFKC converts the two half-width kana marks (U+FF9E, U+FF9F) to combining marks.
    run = marks + "\uff9e\uff9f"
    long_run = re.compile(rf"([{run}]{{{_MAX_RUN}}})[{run}]+")
    return re.compile(rf"\w[\w{marks}]*"), long_run, frozenset(marks)


def has_sign(text: str) -> bool:
    """Return whether an ASCII text has a sign. A search for characters rules out most texts."""
    if not (_SIGN_CHARACTER.search(text) or "??" in text or " ." in text or text[:1] == "."):
        return False
    return _ASCII_SIGN.search(text) is not None


@functools.cache
def _sign_pattern() -> re.Pattern[str]:
    """Pattern of a word or a sign: currencies, mathematical signs, arrows and emoji, one each."""
    symbols = "".join(
        chr(code)
        for code in range(0x80, 0x1FB00)
        if unicodedata.category(chr(code)) in ("Sc", "Sm", "So") and chr(code) not in _NO_SIGNS
    )
    word, _, _ = _patterns()
    return re.compile(rf"{word.pattern}|{_ASCII_SIGN.pattern}|[{symbols}]")
