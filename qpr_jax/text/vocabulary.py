"""From words to ids: the most frequent words by themselves, all others by a hash."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import Path, write_atomically
from qpr_jax.text.tokenizer import tokenize


@dataclass(frozen=True)
class Vocabulary:
    """The words with an id of their own, and the number of hash bins that the others share.

    Id 0 is padding, `words[i]` has id i + 1, and the bins follow. A word without an id is one bin,
    or, where `char_ngrams` is n and not 0, a bin for each run of n characters of it, its ends
    marked: a misspelt or inflected word then still has most of its ids in common with the right
    one. Each counts as a word of the question.
    """

    words: tuple[str, ...]
    bins: int
    char_ngrams: int = 0

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise UserError(f"`bins`: expected 1 or more, got {self.bins}; unknown words need one")
        if self.char_ngrams < 0:
            raise UserError(f"`char_ngrams`: expected 0 or more characters, got {self.char_ngrams}")
        if len(self._ids) != len(self.words):
            raise UserError("`words`: expected distinct words, got one twice; build it anew")

    @property
    def size(self) -> int:
        """Rows of the embedding table: padding, words and bins."""
        return 1 + len(self.words) + self.bins

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, start=1)}

    def word_ids(self, questions: Sequence[str], max_words: int = 64) -> tuple[np.ndarray, int]:
        """Word ids int32 [n, L], padded with 0, and how many questions were cut to `max_words`.

        L is the length of the longest question that is left, and at least 1.
        """
        if max_words < 1:
            raise UserError(f"`max_words`: expected 1 or more, got {max_words}")
        flat: list[int] = []
        lengths = np.zeros(len(questions), np.int32)
        cut = 0
        for i, question in enumerate(questions):
            ids = [id for word in tokenize(question) for id in self._ids_of(word)]
            if len(ids) > max_words:
                cut += 1
                ids = ids[:max_words]
            lengths[i] = len(ids)
            flat += ids
        width = max(1, int(lengths.max(initial=0)))
        result = np.zeros((len(questions), width), np.int32)
        result[np.arange(width) < lengths[:, None]] = flat
        return result, cut

    def _ids_of(self, word: str) -> Iterable[int]:
        known = self._ids.get(word)
        if known:
            return (known,)
        first_bin = 1 + len(self.words)
        if not self.char_ngrams:
            return (first_bin + _hash(word) % self.bins,)
        marked = f"<{word}>"
        starts = range(max(1, len(marked) - self.char_ngrams + 1))
        return [first_bin + _hash(marked[i : i + self.char_ngrams]) % self.bins for i in starts]


def build_vocabulary(
    questions: Iterable[str],
    *,
    size: int = 50_000,
    bins: int = 5_000,
    fewest: int = 1,
    char_ngrams: int = 0,
) -> Vocabulary:
    """A vocabulary of the `size` most frequent words; equal counts go by the word's order.

    Words that occur less than `fewest` times get no id of their own. The order of the questions
    does not matter.
    """
    if size < 0:
        raise UserError(f"`size`: expected 0 or more words, got {size}")
    counts: collections.Counter[str] = collections.Counter()
    for question in questions:
        counts.update(tokenize(question))
    frequent = (word for word, count in counts.items() if count >= fewest)
    words = sorted(frequent, key=lambda word: (-counts[word], word))
    return Vocabulary(tuple(words[:size]), bins, char_ngrams)


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write `vocabulary` as ASCII JSON: `bins`, `char_ngrams` and the list `words`; atomically."""
    value = dataclasses.asdict(vocabulary)
    with write_atomically(path) as file:
        file.write(json.dumps(value, indent=0).encode())


def vocabulary_from_bytes(data: bytes) -> Vocabulary:
    """The vocabulary of the bytes that `write_vocabulary` wrote; UserError for anything else."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise UserError(f"vocabulary: expected JSON, got {error}; remake the file") from error
    words = value.get("words") if isinstance(value, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError("vocabulary: expected `words`, a list of strings; remake the file")
    bins = value.get("bins")
    if not isinstance(bins, int):
        raise UserError(f"vocabulary: expected `bins`, a number, got {bins!r}; remake the file")
    char_ngrams = value.get("char_ngrams", 0)  # absent in exports of version 0.1
    if not isinstance(char_ngrams, int):
        raise UserError(
            f"vocabulary: expected `char_ngrams`, a number, got {char_ngrams!r}; remake the file"
        )
    return Vocabulary(tuple(words), bins, char_ngrams)


def _hash(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass"))
