"""Cut plain English sentences, questions, titles and short messages from passages of text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MOST = 40  # words
# A sentence ends at a mark that a capital follows, but not after these abbreviations.
_END = re.compile(
    r"(?<=[.!?:])(?<!e\.g\.)(?<!i\.e\.)(?<!\bcf\.)(?<!\bvs\.)(?<!\b[A-Z]\.)(?<!Mr\.)(?<!Dr\.)"
    r"[\"')\]]*\s+(?=[\"'(\[]*[A-Z])"
)
_TAG = re.compile(r"<[^<>]*>")
# Fields that a program fills: %s, %(name)s, %1, %1$s, {name}, {{name}}, ${name}, $1.
_FIELD = re.compile(
    r"\$?\{+[^{}]*\}+|%\([^)]*\)[a-z]|%[-\d.$]*(?:l+[dux]|[a-zA-Z@])(?![a-z])|%L?\d|\$(?:\d(?![\d.])|[A-Za-z_]\w*)"
)
_ACCELERATOR = re.compile(r"(?<![\w&])[_&](?=\w)|(?<=\w)[_&](?=[a-z])")
_QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u00a0\u2013\u2014\u2026", "''\"\" --.")
_LOOSE = re.compile(r"\(\s*\)|\[\s*\]|\"\s*\"|'\s*'|`\s*'")
# Where a field is missing.
_OPEN = re.compile(
    r"\b(?:a|an|and|are|as|at|by|for|from|in|is|of|on|or|than|that|the|to|was|with)\W*$",
    re.IGNORECASE,
)
# What code, options, paths, addresses and tables have.
_CODE = re.compile(
    r"[{}<>\\|=~^@#*+`\[\]]|\$(?!\d)|::|://|\w_\w|\(\)|(?<!\S)-{1,2}\w|\w/\w+/|(?<!\w)/\w|"
    r"(?<!\b[A-Za-z])\.[A-Za-z]"
)
_PLAIN = re.compile(r"[A-Za-z .,:?!'-]")
_COMMON = re.compile(
    r"\b(the|an?|of|to|in|is|are|be|for|and|or|not|with|you|your|this|that|it|on|as|by|from|can|"
    r"if|when|will|was|have|has|no|all|at|do|does|use|which|we|i|how|what)\b",
    re.IGNORECASE,
)


def sentences(passages: Iterable[str], fewest: int = 3) -> Iterator[str]:
    """Yield the sentences of passages that have `fewest` to 40 words and are no code."""
    for passage in passages:
        text = " ".join(passage.translate(_QUOTES).split())
        for part in _END.split(text):
            sentence = re.sub(r"\s*\.{2,}$", "", part.strip(" -"))
            if is_sentence(sentence, fewest):
                yield sentence


def is_sentence(text: str, fewest: int = 3) -> bool:
    """Return whether a text is English of a fitting length, and no code."""
    words = text.split()
    return (
        fewest <= len(words) <= MOST
        and text.isascii()
        and (text[0].isalnum() or text[0] in "\"'(")
        and not _CODE.search(text)
        and text.count('"') % 2 == 0
        and text.count("(") == text.count(")")
        and len(_PLAIN.findall(text)) >= 0.8 * len(text)
        and sum(word.isupper() and len(word) > 1 for word in words) <= len(words) / 2
        and (len(words) < 8 or _COMMON.search(text) is not None)
    )


def plain_message(text: str) -> str:
    """Remove tags, accelerators and fields from a message; it is empty if it says little then."""
    text = _TAG.sub(" ", text)
    filled = _FIELD.sub(" ", text)
    plain = " ".join(_LOOSE.sub(" ", _ACCELERATOR.sub("", filled)).split())
    plain = re.sub(r"\s+(?=[.,;:?!)])", "", plain)
    return "" if filled != text and _OPEN.search(plain) else plain
