"""From words to ids: frequent words have an id of their own, the others share hash bins."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import re
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import parse_json
from qpr_jax.text.tokenizer import NO_BAGS, SubwordBags, TokenIds, WordPieces, join_codes, tokenize

NGRAMS = (3, 4, 5)  # lengths of the n-grams of a word, with the markers of its start and end
_MOST_CHARACTERS = 64  # of a word that are read: a million of them would take seconds
_MOST_IN_CODE = 256
_SEARCHES = 100  # 4-grams of .1 ms each, before the set of all of them is made in 25 ms
# The largest norms of unknown words, in units of `models.embedding_norm`. Without limits a word's
# length is its weight. Words lose with a lower limit (names, typos), codes do not. A word counts as
# a code in so far as its 4-grams occur in no known word ("xqzvbt"); most typos share half or more.
_LIMIT, _CODE_LIMIT = 1.5, 0.8
_CODE = re.compile(r"[\d_]")
LETTERS = re.compile(r"[^\W\d_]+")
# What is corrected: five letters or more, and no part of an address, a path or a code.
_CORRECTED = re.compile(r"(?<![\w@./\\])[^\W\d_]{5,}(?![\w@/\\]|\.\w)")
_FAMILIAR = 0.5  # a word with this share of known 4-grams, or more, is no code
_LEAST_LETTERS = 4  # of a misspelled word: shorter ones are near too many others
_WEIGHT = 2  # of the word that it misspells, in the sum of its n-grams
_LONG_RUN, _SHORT_RUN = re.compile(r"([^\W\d])\1{3,}"), r"\1\1\1"  # soooooo: sooo
_FIRST_ACCENT, _LAST_ACCENT = "\u0300", "\u036f"  # combining marks of Latin, Greek and Cyrillic


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer of words: id 0 is padding, `words[i]` has id i + 1, then come bins.

    A word without an id becomes the bin of its hash. With `subwords` it is one token, the sum of
    the bins of its 3- to 5-grams, which share most with those of a misspelling, and of the word
    that it may misspell; but if one of `words` has the same spelling without accents (see `fold`),
    it has the id of that word. A code with an unknown word is one token, too, the sum of its words
    (see `join_codes`). Signs are words then (see `tokenize`).

    Attributes:
      bins: the number of ids that all other words share.
    """

    words: tuple[str, ...] = field(repr=False)  # many
    bins: int
    subwords: bool = False

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

    def token_ids(self, questions: Sequence[str], max_tokens: int = 64) -> TokenIds:
        """Return the tokens of questions, of each at most `max_tokens`."""
        words: list[str] = []
        offsets, truncated = [0], 0
        for question in questions:
            if self.subwords:
                question = join_codes(question, self.knows)
            found = tokenize(question, signs=self.subwords)
            if len(found) > max_tokens:
                truncated += 1
                del found[max_tokens:]
            words += found
            offsets.append(len(words))
        ids = np.fromiter(map(self._ids.get, words, itertools.repeat(0)), np.int32, len(words))
        unknown: dict[str, int] = {}  # with their ids
        for place in np.flatnonzero(ids == 0).tolist():
            ids[place] = self._other_id(words[place], unknown)
        parts = self._as_parts(unknown, self._rows) if self.subwords else NO_BAGS
        return TokenIds(ids, np.array(offsets), truncated, parts)

    def _other_id(self, word: str, unknown: dict[str, int]) -> int:
        """Return the id of a word without one of its own; one of `unknown` is added there."""
        if not self.subwords:
            return self.first_bin + zlib.crc32(word.encode()) % self.bins
        id = unknown.get(word) or self._spelling.places.get(fold(word))
        return id or unknown.setdefault(word, self.size + len(unknown))

    def is_known(self, token_ids: np.ndarray) -> np.ndarray:
        """Return whether each id, int [...], is that of one word alone: bool [...]."""
        return (token_ids > 0) & (token_ids < self.first_bin)

    def spelled(self) -> SubwordBags:
        """Return the `words` as sums of n-grams."""
        return self._as_parts(self.words, self._ngram_rows)

    def _as_parts(self, words: Collection[str], rows_of: Callable[[str], list[int]]) -> SubwordBags:
        rows = [*map(rows_of, words)]
        offsets = np.cumsum([0, *map(len, rows)])
        limits = np.fromiter(map(self._limit, words), np.float32, len(words))
        return SubwordBags(
            np.fromiter(itertools.chain.from_iterable(rows), np.int32), offsets, limits
        )

    def _limit(self, word: str) -> float:
        """Return the largest norm of an unknown word."""
        if _CODE.search(word):
            return _CODE_LIMIT
        grams = _ngrams(fold(word), 4)
        share = sum(gram in self._known_grams for gram in grams) / max(1, len(grams))
        return _CODE_LIMIT + (_LIMIT - _CODE_LIMIT) * min(1.0, share / _FAMILIAR)

    @functools.cached_property
    def _known_grams(self) -> _FourGrams:
        return _FourGrams(self._spelling.places)

    def _rows(self, word: str) -> list[int]:
        """Return the rows of a word's n-grams, or of the words that "_" joins; "____" has none."""
        pieces = fold(word)[:_MOST_IN_CODE].split("_")
        if len(pieces) == 1:
            found = self._spelling.meant(pieces[0])
            return self._ngram_rows(word) + [found] * _WEIGHT * bool(found)
        rows = []
        for piece in filter(None, pieces):
            id = self._spelling.places.get(piece)
            rows += [id] if id else self._ngram_rows(piece)
        return rows

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.words)

    def _ngram_rows(self, word: str) -> list[int]:
        return [self.first_bin + bin for bin in _ngram_bins(fold(word), self.bins)]

    def knows(self, word: str) -> bool:
        """Return whether a word in lower case has an id of its own, accents aside."""
        return word in self._ids or fold(word) in self._spelling.places


class Spelling:
    """Words, the most frequent first, and which of them a misspelled word means.

    Attributes:
      places: of the words without case and accents (see `fold`), from 1.
    """

    def __init__(self, words: Iterable[str]) -> None:
        """Number the words, which are in lower case."""
        self._words, self.places = (*words,), dict[str, int]()
        for place, word in enumerate(self._words, start=1):
            self.places.setdefault(fold(word), place)

    def meant(self, word: str) -> int:
        """Return the place of the first word that a typing error turns into this one, or 0.

        The error replaces, adds or drops a letter, or swaps two, behind the first letter. `word`
        has no case and no accents.
        """
        if not (word.isalpha() and _LEAST_LETTERS <= len(word) <= _MOST_CHARACTERS):
            return 0
        found = set[int]()
        for at in range(1, len(word) + 1):
            start, rest = word[:at], word[at:]
            swapped, dropped = start + rest[1:2] + rest[:1] + rest[2:], start + rest[1:]
            found |= {self.places.get(swapped, 0), self.places.get(dropped, 0)}
            added, replaced = f"{start}_{rest}", f"{start}_{rest[1:]}"
            found |= {self._by_gap.get(added, 0), self._by_gap.get(replaced, 0)}
        return min(found - {0}, default=0)

    @functools.cached_property
    def _by_gap(self) -> dict[str, int]:
        """The first of the words that are alike but for one letter: mail and mall are "ma_l"."""
        places: dict[str, int] = {}
        for word, place in self.places.items():
            if word.isalpha() and _LEAST_LETTERS <= len(word) <= _MOST_CHARACTERS:
                for at in range(1, len(word)):
                    places.setdefault(f"{word[:at]}_{word[at + 1 :]}", place)
        return places

    def corrected(self, text: str) -> str:
        """Return a text with the words that its misspelled words mean, in lower case.

        A text in which most words are unknown, as of another language, stays as it is.
        """
        words = LETTERS.findall(text)
        unknown = [word for word in words if fold(word) not in self.places]
        if not unknown or 2 * len(unknown) > len(words):
            return text
        return _CORRECTED.sub(self._correct, text)

    def _correct(self, match: re.Match[str]) -> str:
        word = fold(match[0])
        place = 0 if word in self.places else self.meant(word)
        return self._words[place - 1] if place else match[0]


Tokenizer = Vocabulary | WordPieces  # what an encoder reads


@functools.lru_cache(1 << 16)
def _ngram_bins(word: str, bins: int) -> list[int]:
    """Return the bins of all n-grams of a word."""
    grams = itertools.chain.from_iterable(_ngrams(word, n) for n in NGRAMS)
    return [zlib.crc32(gram.encode("utf-8", "surrogatepass")) % bins for gram in grams]


class _FourGrams:
    """The 4-grams of words; `in` is for those of a word, which have no line end.

    A set of those of 26,000 words takes longer to make than a question to encode. So the first ones
    that are asked for are looked for in all words as one text. Thread-safe.
    """

    def __init__(self, words: Iterable[str]) -> None:
        """Join the words."""
        ends = (word if len(word) <= _MOST_CHARACTERS else _shortened(word) for word in words)
        self._text = _LONG_RUN.sub(_SHORT_RUN, "<" + ">\n<".join(ends) + ">")
        self._asked = 0
        self._grams: frozenset[str] | None = None

    def __contains__(self, gram: str) -> bool:
        if self._grams is None:
            self._asked += 1
            if self._asked <= _SEARCHES:
                return gram in self._text
            shifted = (self._text[start:] for start in range(4))
            self._grams = frozenset(map("".join, zip(*shifted, strict=False)))
        return gram in self._grams


def _shortened(word: str) -> str:
    """Return what is read of a word."""
    return _LONG_RUN.sub(_SHORT_RUN, word)[:_MOST_CHARACTERS]


def _ngrams(word: str, n: int) -> list[str]:
    """Return the n-grams of a word, with "<" before it and ">" after it."""
    marked = f"<{_shortened(word)}>"
    return [marked[i : i + n] for i in range(len(marked) - n + 1)]


def frequent_words(
    *corpora: Iterable[str], min_count: int = 1, fill: Iterable[str] = ()
) -> list[str]:
    """Return all words of texts, the most frequent first, of equal ones the first by alphabet.

    No signs: they are too rare for embeddings of their own, and are sums of n-grams.

    corpora: texts of each language. A word is as frequent as in the language where its share of all
      words is largest, so that a small corpus gets its words, too.
    min_count: words that occur less often are left out.
    fill: texts, such as those of dictionaries, whose other words come last.
    """
    shares: dict[str, float] = {}
    for texts in corpora:
        counts = collections.Counter(itertools.chain.from_iterable(map(tokenize, texts)))
        total = counts.total()
        for word, count in counts.items():
            if count >= min_count:
                shares[word] = max(shares.get(word, 0.0), count / total)
    words = sorted(shares, key=lambda word: (-shares[word], word))
    more = (token for text in fill for token in tokenize(text) if token not in shares)
    return [*words, *dict.fromkeys(more)]


def vocabulary_to_bytes(vocabulary: Vocabulary) -> bytes:
    """Serialize as ASCII JSON: the words, and the other attributes that are set."""
    value = {name: value for name, value in dataclasses.asdict(vocabulary).items() if value}
    return json.dumps({"words": ()} | value, indent=0).encode()


def vocabulary_from_bytes(data: bytes) -> Vocabulary:
    """Parse what `vocabulary_to_bytes` returned; UserError for anything else."""
    value = parse_json(data, "vocabulary")
    facts = value if isinstance(value, dict) else {}
    words, bins = facts.get("words"), facts.get("bins")
    if type(bins) is int and isinstance(words, list) and all(isinstance(w, str) for w in words):
        return Vocabulary(tuple(words), bins, facts.get("subwords") is True)
    what = "vocabulary: expected a list of `words` and a number of `bins`"
    raise UserError(what, remedy="make the file again")


def fold(word: str) -> str:
    """Remove case and accents (Straße, strasse), no marks of other scripts, such as Hindi's."""
    if word.isascii():
        return word.lower()
    split = unicodedata.normalize("NFKD", word.casefold())
    kept = "".join(c for c in split if not _FIRST_ACCENT <= c <= _LAST_ACCENT)
    return unicodedata.normalize("NFC", kept)
