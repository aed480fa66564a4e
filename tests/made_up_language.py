"""A language of the tests: English with rotated letters, and determiners glued to their nouns."""

import collections
import pathlib
import re
from collections.abc import Iterable

from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.text.tokenizer import tokenize

LANGUAGE = "xx"  # a code that no language has

# So that a sixth of the English letters becomes an umlaut; each translation has just one original.
_LETTERS = "abcdefghijklmnopqrstuvwxyzäöü"
_ROTATED = _LETTERS[13:] + _LETTERS[:13]
_TABLE = str.maketrans(_LETTERS + _LETTERS.upper(), _ROTATED + _ROTATED.upper())
_GLUED = re.compile(r"\b(a|an|my|the|this) (?=\w)", re.IGNORECASE)


def translate(english: str) -> str:
    """Translate word by word; a determiner and the word behind it become one word."""
    return _GLUED.sub(r"\1", english).translate(_TABLE)


def made_up_pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Different English questions and their translations.

    None has a word, such as one with a typing error, that no other question has.
    """
    questions = synthetic_pairs(seed=seed, clusters=max(20, count)).questions
    words = collections.Counter(word for text in questions for word in {*tokenize(text)})
    common = [text for text in questions if all(words[word] > 1 for word in tokenize(text))]
    assert len(common) >= count
    return [(text, translate(text)) for text in common[:count]]


def write_tsv(path: pathlib.Path, pairs: Iterable[tuple[str, str]]) -> str:
    """Write pairs in two columns without a header; return the specification to read them."""
    path.write_text("".join(f"{first}\t{second}\n" for first, second in pairs), encoding="utf-8")
    return f"en-{LANGUAGE}:{path}"
