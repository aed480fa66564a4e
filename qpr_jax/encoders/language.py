"""Say where an encoder lacks the words of a table, as an English one does of a German table.

What both packaged encoders lack of the plain words of a table (see `text.tokenizer.plain_words`):
questions and help tickets in English 2 to 12 %, help tickets with typing errors and abbreviations
in each row 32 to 39 %, tables in French, Spanish, German, Czech and other languages 58 to 100 %.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qpr_jax.encoders.encoder import Encoder
from qpr_jax.text.tokenizer import plain_words

log = logging.getLogger("qpr_jax")

MULTILINGUAL = "hf://sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
SAMPLE = 1_000  # texts that are looked at
_MOST_UNKNOWN = 0.4  # of the plain words
_MOST_CHARACTERS = 2_000  # of a text


def count_unknown(encoder: Encoder, texts: Sequence[str]) -> tuple[int, int]:
    """Count the plain words that the encoder lacks, and all plain words, in up to 1,000 texts.

    Both are 0 for an encoder that cannot tell. A text with one plain word of ASCII does not count:
    it may be a name or a term of any language.
    """
    words: list[str] = []
    for text in texts[:: max(1, -(-len(texts) // SAMPLE))]:
        found = plain_words(text[:_MOST_CHARACTERS])
        if len(found) > 1 or not "".join(found).isascii():
            words += found
    vocabulary = encoder.known_words(set(words))
    if vocabulary is None:
        return 0, 0
    return sum(word not in vocabulary for word in words), len(words)


def say_unknown_words(encoder: Encoder, texts: Sequence[str]) -> None:
    """Warn if the encoder lacks more than 40 % of the words of a table.

    The count must exceed that by two standard deviations, so that a few words do not decide.
    """
    unknown, words = count_unknown(encoder, texts)
    deviations = math.sqrt(words)  # two: 2 sqrt(.4 * .6) is about 1
    if words and unknown >= _MOST_UNKNOWN * words + deviations:
        log.warning(
            "the encoder knows %.0f %% of the words of these texts, so it compares them by letters "
            'and common words, not by meaning; name one of their language, as `encoder="%s"`, or '
            "train one",
            100 - 100 * unknown / words,
            MULTILINGUAL,
        )


def check_language(encoder: Encoder, rows: Iterable[Any]) -> Iterator[Any]:
    """Yield rows, each with a `text`; warn as `say_unknown_words` of the first 1,000."""
    rows = iter(rows)
    first = [*itertools.islice(rows, SAMPLE)]
    say_unknown_words(encoder, [row.text for row in first])
    yield from itertools.chain(first, rows)
