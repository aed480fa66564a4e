"""Text from files as a terminal and a spreadsheet can show it safely."""

from __future__ import annotations

import re

# Control characters (escape codes, line ends), marks that reorder text, line separators, lone
# surrogates. Joiners stay: scripts and emoji need them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    r"""Escape characters that a terminal would act on, such as `\x1b` and `\u202e`."""
    return _UNSAFE.sub(_escape, text) if not text.isascii() or not text.isprintable() else text


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _NAMED:
        return _NAMED[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, length: int = 100) -> str:
    """Return `text` on one printable line of at most `length` characters."""
    line = printable(" ".join(text[: 10 * length].split()))
    return line if len(line) <= length else f"{line[: length - 1]}…"


def spreadsheet_cell(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
