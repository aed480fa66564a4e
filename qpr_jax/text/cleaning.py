"""Texts as they are compared: spellings, numbers, HTML, and sentences that many rows share."""

from __future__ import annotations

import collections
import html
import re
from collections.abc import Mapping, Sequence

from qpr_jax.text.differences import numbers
from qpr_jax.text.tokenizer import canonical

_QUOTES = str.maketrans(
    dict.fromkeys("\u2018\u2019\u02bc`\xb4", "'") | dict.fromkeys("\u201c\u201d\u201e\xab\xbb", '"')
)
_QUOTED = re.compile(r'(?<!\S)"(?=\w)|(?<=[^\W\d_])([.,;:?!]*)"')
# Marks after a word; "!" after a number is a factorial.
_MARKS = re.compile(r"(?<=\w)(?:[.,;:?]|(?<!\d)!)[.,;:?!]*(?=\s|$)")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATIVE = re.compile(r"(?<!\w)-\d+")
_INLINE = "a|abbr|b|code|em|font|i|small|span|strong|sub|sup|u"
_BLOCK = "blockquote|body|br|center|div|h[1-6]|head|hr|html|img|li|meta|ol|p|pre|table|tbody|td|th"
_SCRIPT = re.compile(r"<(script|style|title)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_INLINE_TAG = re.compile(rf"</?(?:{_INLINE})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_BLOCK_TAG = re.compile(rf"</?(?:{_BLOCK}|thead|tr|ul)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z]{2,8});", re.IGNORECASE)
_SENTENCE = re.compile(r"\s*[\r\n]+\s*|(?<=[.!?:])\s+")
_LEAST, _SHARE = 5, 0.02  # rows that share a sentence: at least so many, and this share of all
_ALONE = 0.1  # the largest share of these rows that have nothing else; more is a question


def spelling(text: str) -> str:
    """Normalize a text: texts with equal spellings are copies.

    Case, blanks, quotation marks, and punctuation after a word do not count. Other signs do:
    C, C++ and C# are three texts.
    """
    plain = canonical(text).translate(_QUOTES)
    if '"' in plain:
        plain = _QUOTED.sub(r"\1", plain)
    return _MARKS.sub("", plain) or plain


def without_numbers(spelled: str) -> str:
    """Replace all numbers by 0."""
    return _NUMBER.sub("0", spelled)


def number_key(spelled: str) -> str:
    """Return the set of numbers as a text; rows are compared if theirs are equal."""
    return " ".join(sorted({*numbers(spelled), *_NEGATIVE.findall(spelled)}))


def without_html(text: str) -> str:
    """Remove the tags of HTML, and replace entities by their characters."""
    if "<" not in text and "&" not in text:
        return text
    plain = _BLOCK_TAG.sub("\n", _INLINE_TAG.sub("", _SCRIPT.sub("\n", text)))
    plain = _ENTITY.sub(lambda entity: html.unescape(entity[0]), plain)
    return text if plain == text else plain.strip() or text


def shared_sentences(texts: Sequence[str]) -> dict[str, int]:
    """Find the sentences and lines that many texts have beside others, and their counts.

    A sentence that is often the whole text is a question, not a shared part. Most frequent first,
    of equally frequent ones the one that comes first.
    """
    counts: collections.Counter[str] = collections.Counter()
    whole: collections.Counter[str] = collections.Counter()
    for text in texts:
        parts = _split(text)
        if len(parts) > 1:
            counts.update([*dict.fromkeys(filter(None, map(_plain, parts)))])
        else:
            whole[text] += 1
    least = max(_LEAST, _SHARE * len(texts))
    shared = {part: count for part, count in counts.most_common() if count >= least}
    alone: collections.Counter[str] = collections.Counter()
    for text, count in whole.items() if shared else ():
        alone[_plain(text)] += count
    return {part: count for part, count in shared.items() if alone[part] <= _ALONE * count}


def clean(text: str, shared: Mapping[str, int] | None) -> str:
    """Return what is encoded of a text: without HTML and shared sentences; None: as it is."""
    return text if shared is None else without_shared(without_html(text), shared)


def without_shared(text: str, shared: Mapping[str, int]) -> str:
    """Leave shared sentences out; of a text that has no others, the rarest one stays."""
    parts = [part for part in _split(text) if _plain(part)] if shared else []
    if len(parts) < 2:
        return text
    own = [part for part in parts if _plain(part) not in shared]
    return " ".join(own or [min(parts, key=lambda part: shared[_plain(part)])])


def _split(text: str) -> list[str]:
    return [part for part in _SENTENCE.split(text) if part]


def _plain(part: str) -> str:
    """A sentence without case, blanks and the signs around its words."""
    return re.sub(r"^\W+|\W+$", "", " ".join(part.lower().split()))
