"""What is near: texts without HTML and without sentences that many rows share."""

from __future__ import annotations

import collections
import html
import re
from collections.abc import Mapping, Sequence

from qpr_jax.text.folding import without_unseen

_INLINE = "a|abbr|b|code|em|font|i|small|span|strong|sub|sup|u"
_BLOCK = "blockquote|body|br|center|div|h[1-6]|head|hr|html|img|li|meta|ol|p|pre|table|tbody|td|th"
_SCRIPT = re.compile(r"<(script|style|title)\b.*?</\1\s*>", re.IGNORECASE | re.DOTALL)
_INLINE_TAG = re.compile(rf"</?(?:{_INLINE})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_BLOCK_TAG = re.compile(rf"</?(?:{_BLOCK}|thead|tr|ul)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-f]+|[a-z]{2,8});", re.IGNORECASE)
_SENTENCE = re.compile(r"\s*[\r\n]+\s*|(?<=[.!?:])\s+")
_LEAST, _SHARE = 5, 0.02  # rows that share a sentence: at least so many, and this share of all
_ALONE = 0.1  # the largest share of these rows that have nothing else; more is a question


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
    """Return what is encoded of a text: what is seen without HTML and shared sentences.

    shared: None: the text as it is.
    """
    if shared is None:
        return text
    return without_shared(without_html(without_unseen(text)), shared)


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
