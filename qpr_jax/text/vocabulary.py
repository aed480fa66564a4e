"""From words to ids: frequent words have an id of their own, the others share hash bins."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import parse_json
from qpr_jax.text.tokenizer import END, tokenize, tokenize_all

_CHUNK = 10_000  # questions whose words are in memory at a time
_REMEDY = "make the file again"


@dataclass(frozen=True)
class Vocabulary:
    """A `text.base.Tokenizer` of words: id 0 is padding, `words[i]` has id i + 1, then come bins.

    With `char_ngrams` n > 0, a word without an id becomes the bins of its character n-grams,
    including markers of its start and end, so that a misspelling shares most ids with the correct
    word; each counts as a token of the question. Otherwise it becomes the single bin of its hash.

    Attributes:
      words: the words with an id of their own.
      bins: the number of ids that all other words share.
      char_ngrams: n, or 0.
    """

    words: tuple[str, ...] = field(repr=False)  # many
    bins: int
    char_ngrams: int = 0

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise UserError(f"`bins`: expected 1 or more, got {self.bins}")
        if self.char_ngrams < 0:
            raise UserError(f"`char_ngrams`: expected 0 or more characters, got {self.char_ngrams}")
        if len(self._ids) != len(self.words):
            raise UserError(
                "`words`: expected distinct words, got a repeated one", remedy="build it again"
            )

    @property
    def size(self) -> int:
        """Rows of the embedding table: padding, words and bins."""
        return self.first_bin + self.bins

    @property
    def first_bin(self) -> int:
        """The lowest id that several words share."""
        return 1 + len(self.words)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, start=1)}

    def token_ids(self, questions: Sequence[str], max_tokens: int = 64) -> tuple[np.ndarray, int]:
        """Token ids int32 [n, L], padded with 0, and how many questions were truncated.

        L is the length of the longest question after truncation to `max_tokens`, and at least 1.
        """
        ids, offsets, truncated = self.flat_ids(questions, max_tokens)
        lengths = np.diff(offsets)
        width = max(1, int(lengths.max(initial=0)))
        result = np.zeros((len(questions), width), np.int32)
        result[np.arange(width) < lengths[:, None]] = ids
        return result, truncated

    def flat_ids(
        self, questions: Sequence[str], max_tokens: int = 64
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Token ids without padding, one question after the other.

        Returns:
          The ids, int32 [tokens]; offsets, int64 [n + 1]: question i is at offsets[i] to
          offsets[i + 1]; how many questions were truncated to `max_tokens`.
        """
        if max_tokens < 1:
            raise UserError(f"`max_tokens`: expected 1 or more, got {max_tokens}")
        parts = [np.zeros(0, np.int32)]
        for start in range(0, len(questions), _CHUNK):
            tokens = tokenize_all(questions[start : start + _CHUNK])
            if self.char_ngrams:
                ids = [id for token in tokens for id in self._ids_of(token)]
            else:
                ids = [*map(self._id_or_bin.__getitem__, tokens)]
            parts.append(np.array(ids, np.int32))
        flat = np.concatenate(parts)
        inside = flat != 0
        ends = np.flatnonzero(~inside)
        offsets = np.zeros(len(ends) + 1, np.int64)
        offsets[1:] = ends - np.arange(len(ends))
        flat, lengths = flat[inside], np.diff(offsets)
        truncated = int(np.count_nonzero(lengths > max_tokens))
        if truncated:
            positions = np.arange(len(flat)) - np.repeat(offsets[:-1], lengths)
            flat = flat[positions < max_tokens]
            np.cumsum(np.minimum(lengths, max_tokens), out=offsets[1:])
        return flat, offsets, truncated

    @functools.cached_property
    def _id_or_bin(self) -> _IdOrBin:
        return _IdOrBin(self)

    def _ids_of(self, word: str) -> Iterable[int]:
        """The word's own id, 0 for END, or the bins of the word's character n-grams."""
        if word == END:
            return (0,)
        if own := self._ids.get(word):
            return (own,)
        marked, n = f"<{word}>", self.char_ngrams
        starts = range(max(1, len(marked) - n + 1))
        return [self.first_bin + _hash(marked[i : i + n]) % self.bins for i in starts]


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
    min_count: int = 1,
    char_ngrams: int = 0,
) -> Vocabulary:
    """Build a vocabulary of the most frequent words; the order of the questions has no effect.

    Args:
      questions: texts to count words in.
      size: give at most this number of words an id; of equal counts the first by alphabet.
      bins: the number of ids that all other words share.
      min_count: give no id to words that occur less often.
      char_ngrams: see `Vocabulary`.
    """
    if size < 0:
        raise UserError(f"`size`: expected 0 or more words, got {size}")
    counts: collections.Counter[str] = collections.Counter()
    for question in questions:
        counts.update(tokenize(question))
    frequent = (word for word, count in counts.items() if count >= min_count)
    words = sorted(frequent, key=lambda word: (-counts[word], word))
    return Vocabulary(tuple(words[:size]), bins, char_ngrams)


def vocabulary_to_bytes(vocabulary: Vocabulary) -> bytes:
    """Serialize as ASCII JSON: the list `words`, `bins` and `char_ngrams`."""
    return json.dumps(dataclasses.asdict(vocabulary), indent=0).encode()


def vocabulary_from_bytes(data: bytes) -> Vocabulary:
    """Parse what `vocabulary_to_bytes` returned; UserError for anything else."""
    value = parse_json(data, "vocabulary")
    words = value.get("words") if isinstance(value, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError("vocabulary: expected `words`, a list of strings", remedy=_REMEDY)
    sizes = {"bins": value.get("bins"), "char_ngrams": value.get("char_ngrams", 0)}
    for name, size in sizes.items():  # version 0.1 wrote no `char_ngrams`
        if not isinstance(size, int):
            raise UserError(
                f"vocabulary: expected `{name}`, a number, got {size!r}", remedy=_REMEDY
            )
    return Vocabulary(tuple(words), **sizes)


def _hash(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass"))
