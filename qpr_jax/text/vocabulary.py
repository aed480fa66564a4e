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
from qpr_jax.text.tokenizer import END, tokenize, tokens_and_ends

_CHUNK = 10_000  # questions whose words are in memory at a time


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
        return self.first_bin + self.bins

    @property
    def first_bin(self) -> int:
        """The lowest id that words share."""
        return 1 + len(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, start=1)}

    def word_ids(self, questions: Sequence[str], max_words: int = 64) -> tuple[np.ndarray, int]:
        """Word ids int32 [n, L], padded with 0, and how many questions were cut to `max_words`.

        L is the length of the longest question that is left, and at least 1.
        """
        words, offsets, cut = self.flat_ids(questions, max_words)
        lengths = np.diff(offsets)
        width = max(1, int(lengths.max(initial=0)))
        result = np.zeros((len(questions), width), np.int32)
        result[np.arange(width) < lengths[:, None]] = words
        return result, cut

    def flat_ids(
        self, questions: Sequence[str], max_words: int = 64
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Word ids int32, one question after the other, those of question i at offsets[i:i + 2].

        Also those offsets, int64 [n + 1], and how many questions were cut to `max_words`.
        """
        if max_words < 1:
            raise UserError(f"`max_words`: expected 1 or more, got {max_words}")
        parts = [np.zeros(0, np.int32)]
        for start in range(0, len(questions), _CHUNK):
            tokens = tokens_and_ends(questions[start : start + _CHUNK])
            if self.char_ngrams:
                ids = [
                    id for token in tokens for id in ((0,) if token == END else self._ids_of(token))
                ]
            else:
                ids = list(map(self._id_or_bin.__getitem__, tokens))
            parts.append(np.array(ids, np.int32))
        flat = np.concatenate(parts)
        inside = flat != 0
        ends = np.flatnonzero(~inside)
        offsets = np.zeros(len(ends) + 1, np.int64)
        offsets[1:] = ends - np.arange(len(ends))
        words, lengths = flat[inside], np.diff(offsets)
        cut = int(np.count_nonzero(lengths > max_words))
        if cut:
            places = np.arange(len(words)) - np.repeat(offsets[:-1], lengths)
            words = words[places < max_words]
            np.cumsum(np.minimum(lengths, max_words), out=offsets[1:])
        return words, offsets, cut

    @functools.cached_property
    def _id_or_bin(self) -> _IdOrBin:
        return _IdOrBin(self)

    def _ids_of(self, word: str) -> Iterable[int]:
        known = self._ids.get(word)
        if known:
            return (known,)
        marked = f"<{word}>"
        starts = range(max(1, len(marked) - self.char_ngrams + 1))
        return [
            self.first_bin + _hash(marked[i : i + self.char_ngrams]) % self.bins for i in starts
        ]


class _IdOrBin(dict[str, int]):
    """The id of each word, the bin of any other, and 0 for the end of a question."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary._ids)
        self[END] = 0
        self._first, self._bins = vocabulary.first_bin, vocabulary.bins

    def __missing__(self, word: str) -> int:
        return self._first + _hash(word) % self._bins


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
    except (ValueError, RecursionError) as error:
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
