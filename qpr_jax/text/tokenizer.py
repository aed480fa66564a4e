"""Split texts into words, or into the ids of a transformer's word pieces."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.errors import UserError

# The lower case of bytes of words, and blanks for all others.
_WORD_BYTES = re.sub(rb"[^a-z0-9_]", b" ", bytes(range(256)).lower(), flags=re.DOTALL)
_WORD = re.compile(r"\w+")
_SIGNS = "\u3040-\u30ff\u3400-\u9fff"  # kana, Chinese characters
_SIGN_OR_REST = re.compile(f"[{_SIGNS}]|[^{_SIGNS}]+")
# Signs that change a meaning. A minus is before a number and after no word, a dot before a name and
# after a blank, and ?? between words: else they are punctuation.
_ASCII_SIGN = re.compile(
    r"[<>=+*/%$^]+|\#+|&&+|\|\|+|(?<!\w)-(?=\s?\d)|(?<!\S)\.(?=[^\W\d])|(?<!\S)\?\?(?=\s+\w)"
)
_ASCII_WORD_OR_SIGN = re.compile(rf"[a-z0-9_]+|{_ASCII_SIGN.pattern}")
_SIGN_CHARACTER = re.compile(r"[-<>=+*/%$^#&|]")
_FULL_WIDTH = {ord(sign): ord(sign) + 0xFEE0 for sign in "<>=+*/%$^#&|-.?"}
# Product codes, addresses, file names: words that "-", "." and the like join.
_JOINT = re.compile(r"[-./@:\\](?=\w)")
_CODE = re.compile(r"(?<!\w)(?:(?:\w++://|www\.)\S*\w|\w++(?:(?:[-./@:]|:?\\)\w++)+)")
_ADDRESS = re.compile(r"://|^www\.|@")
# Parts of a text between blanks, or of Chinese and Japanese, which have none. Codes, addresses and
# names of files tell no language.
_PART = re.compile(rf"[{_SIGNS}]+|[^\s{_SIGNS}]+")
_NOT_PLAIN = re.compile(r"[\d_@/\\]|[.:]\w")
_SHORT = 3  # letters; "de" and "la" are in the names of all languages
_NO_SIGNS = "©®°¦\ufffc\ufffd"  # symbols that change no meaning
# NFKC in Python is quadratic in a run of combining marks: 1 MB of them would take minutes.
_LONG_TEXT = 1000
_MAX_RUN = 30  # as in the stream-safe text format of Unicode (UAX #15, section 13)
_ONE_LANGUAGE = 60_000  # pieces; models of one language have about 30,000


def tokenize(text: str, *, signs: bool = False) -> list[str]:
    """Split a question into words: NFKC, lower case, then runs of letters, digits and marks.

    Accepts any string. Without combining marks the words are the matches of `\\w+`; a mark, such as
    a Hindi vowel sign, belongs to the word that it follows.

    With `signs`, what tells C from C++ and C#, 5 from -5, 5 % and $5, < from >, .NET from net, or
    one emoji from another, is a word, too; ASCII signs are in full width (U+FF01 to U+FF5E).
    """
    if signs and (not text.isascii() or has_sign(text)):
        pattern = _ASCII_WORD_OR_SIGN if text.isascii() else _sign_pattern()
        return [word.translate(_FULL_WIDTH) for word in pattern.findall(nfkc_lower(text))]
    if text.isascii():
        return text.encode().translate(_WORD_BYTES).decode().split()
    text = nfkc_lower(text)
    word, _, marks = _patterns()
    # `\w+` is three times as fast as a pattern with all marks.
    return _WORD.findall(text) if marks.isdisjoint(text) else word.findall(text)


def join_codes(text: str, is_known: Callable[[str], bool]) -> str:
    """Make a code one word, so that it weighs as one: "SM-G991B" becomes "sm_g991b".

    Codes are URLs, e-mail addresses, and words without blanks of which one is unknown.
    """

    def join(match: re.Match[str]) -> str:
        words = tokenize(match[0])
        plain = not _ADDRESS.search(match[0]) and all(map(is_known, words))
        return match[0] if plain else "_".join(words)

    return _CODE.sub(join, text) if _JOINT.search(text) else text


def normalized_text(text: str) -> str:
    """Join the words of a text by spaces; without a word: the stripped, lower-case NFKC text."""
    return " ".join(tokenize(text)) or nfkc_lower(text).strip()


def split_at_words(text: str) -> list[tuple[str, str]]:
    """Split a text into pieces that join to it: (piece, its normalized word, "" between words).

    Each sign of Chinese and Japanese is a word.
    """
    word, _, _ = _patterns()
    pieces: list[tuple[str, str]] = []
    for number, part in enumerate(re.split(f"({word.pattern})", text)):
        if number % 2:
            pieces += [(piece, nfkc_lower(piece)) for piece in _SIGN_OR_REST.findall(part)]
        elif part:
            pieces.append((part, ""))
    return pieces


def plain_words(text: str) -> list[str]:
    """List the words that tell the language of a text.

    These are in lower case, have no digit, and are no part of a code, an address or a file name.
    Words of ASCII have three letters or more. A run of Chinese or Japanese is one word.
    """
    parts = [part for part in _PART.findall(text) if part == part.lower()]
    words = [word for part in parts if not _NOT_PLAIN.search(part) for word in tokenize(part)]
    return [word for word in words if len(word) >= _SHORT or not word.isascii()]


def canonical(text: str) -> str:
    """Normalize a text, to compare texts: NFKC, lower case, single blanks, no final mark."""
    words = " ".join(nfkc_lower(text).split())
    return words.rstrip(" .?!") or words


def nfkc_lower(text: str) -> str:
    """Convert to NFKC and lower case, in linear time."""
    return nfkc(text).lower()


def nfkc(text: str) -> str:
    """Convert to NFKC, in linear time."""
    if len(text) > _LONG_TEXT and not text.isascii():
        _, long_run, _ = _patterns()
        text = long_run.sub(r"\1", text)
    return unicodedata.normalize("NFKC", text)


def combining_marks() -> str:
    """Return all combining marks."""
    return "".join(sorted(_patterns()[2]))


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], frozenset[str]]:
    """Patterns of a word and of a run of marks that is too long, and the marks; on first use."""
    # U+FE00-FE0F select text or emoji shapes and belong to no word. The marks from U+E0100 select
    # shapes, too, and there are no other marks above U+1F000.
    marks = "".join(
        chr(code)
        for code in range(0x300, 0x1F000)
        if unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F
    )
    # NFKC converts the two half-width kana marks (U+FF9E, U+FF9F) to combining marks.
    run = marks + "\uff9e\uff9f"
    long_run = re.compile(rf"([{run}]{{{_MAX_RUN}}})[{run}]+")
    return re.compile(rf"\w[\w{marks}]*"), long_run, frozenset(marks)


def has_sign(text: str) -> bool:
    """Return whether an ASCII text has a sign. A search for characters rules out most texts."""
    if not (_SIGN_CHARACTER.search(text) or "??" in text or " ." in text or text[:1] == "."):
        return False
    return _ASCII_SIGN.search(text) is not None


@functools.cache
def _sign_pattern() -> re.Pattern[str]:
    """Pattern of a word or a sign: currencies, mathematical signs, arrows and emoji, one each."""
    symbols = "".join(
        chr(code)
        for code in range(0x80, 0x1FB00)
        if unicodedata.category(chr(code)) in ("Sc", "Sm", "So") and chr(code) not in _NO_SIGNS
    )
    word, _, _ = _patterns()
    return re.compile(rf"{word.pattern}|{_ASCII_SIGN.pattern}|[{symbols}]")


class SubwordBags(NamedTuple):
    """Tokens without a row of their own: the embedding of each is the sum of several rows.

    Token i of M has the rows `rows[offsets[i] : offsets[i + 1]]`, int32 and int64. Its id is the
    size of the embedding table plus i. A sum whose norm is above its limit, of `limits` float32 [M]
    in units of `models.embedding_norm`, is scaled to it.
    """

    rows: np.ndarray
    offsets: np.ndarray
    limits: np.ndarray

    @property
    def tokens(self) -> int:
        """How many tokens these are, M."""
        return len(self.offsets) - 1

    def take(self, tokens: np.ndarray) -> SubwordBags:
        """Return the rows of some of the tokens, int [m], in this order."""
        lengths = np.diff(self.offsets)[tokens]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        at = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[tokens], lengths)
        return SubwordBags(self.rows[at], offsets, self.limits[tokens])

    def joined(self, others: SubwordBags) -> SubwordBags:
        """These tokens, then others."""
        offsets = np.concatenate([self.offsets, self.offsets[-1] + others.offsets[1:]])
        limits = np.concatenate([self.limits, others.limits])
        return SubwordBags(np.concatenate([self.rows, others.rows]), offsets, limits)


NO_BAGS = SubwordBags(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.float32))


class TokenIds(NamedTuple):
    """The tokens of n questions, int32 [tokens].

    Those of question i are at offsets[i] to offsets[i + 1], int64 [n + 1]. truncated: how many
    questions lost tokens. parts: of the ids that are not rows of the table.
    """

    ids: np.ndarray
    offsets: np.ndarray
    truncated: int
    parts: SubwordBags = NO_BAGS

    def padded(self) -> np.ndarray:
        """Return the ids of each question, padded with 0: int32 [n, L], of L >= 1."""
        lengths = np.diff(self.offsets)
        width = max(1, int(lengths.max(initial=0)))
        rows = np.zeros((len(lengths), width), np.int32)
        rows[np.arange(width) < lengths[:, None]] = self.ids
        return rows


class WordPieces:
    """A tokenizer of the `tokenizers` library, safe in threads; it hashes no token."""

    def __init__(self, tokenizer: bytes, size: int) -> None:
        """Load the contents of a `tokenizer.json`; UserError if they are no tokenizer."""
        self._tokenizer = _load_tokenizer(tokenizer)
        if (count := self._tokenizer.get_vocab_size()) > size:
            what = (
                f"tokenizer.json: expected at most {size:,} pieces, as the model has, got {count:,}"
            )
            raise UserError(what, remedy="fetch it again")
        self._tokenizer.no_truncation()
        self.size = self.first_bin = size

    def id_lists(self, questions: Sequence[str], max_tokens: int) -> tuple[list[list[int]], int]:
        """Ids of each question with its markers, at most `max_tokens`, and how many lost some."""
        texts = [*map(replace_surrogates, questions)]  # the library rejects surrogates
        # One by one: the library's threads would be missing after a fork, and gain a tenth.
        rows = [self._tokenizer.encode(text).ids for text in texts]
        cut = [row for row in rows if len(row) > max_tokens]
        for row in cut:
            del row[max_tokens - 1 : -1]  # the last one marks the end
        return rows, len(cut)

    def token_ids(self, questions: Sequence[str], max_tokens: int) -> TokenIds:
        """Return the tokens of questions, of each at most `max_tokens`."""
        rows, truncated = self.id_lists(questions, max_tokens)
        # A question that contains "[PAD]" has an id 0 for it, which is dropped.
        rows = [[*filter(None, row)] for row in rows]
        offsets = np.cumsum([0, *map(len, rows)])
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, offsets[-1])
        return TokenIds(ids, offsets, truncated)

    def is_known(self, token_ids: np.ndarray) -> np.ndarray:
        """Return whether each id, int [...], is that of one piece alone: all but padding."""
        is_piece: np.ndarray = token_ids > 0
        return is_piece

    def known_words(self, words: Iterable[str]) -> set[str] | None:
        """Return which words are no two pieces.

        None for a tokenizer of many languages, or of letters.

        Those of many languages cut most words. They have 100,000 pieces and more, or no WordPiece.
        """
        if type(self._tokenizer.model).__name__ != "WordPiece" or self.size > _ONE_LANGUAGE:
            return None
        unknown = self._tokenizer.token_to_id(self._tokenizer.model.unk_token)
        return {word for word in words if self._is_whole(word, unknown)}

    def _is_whole(self, word: str, unknown: int | None) -> bool:
        # The tokenizer makes each sign of Chinese a word.
        encoding = self._tokenizer.encode(replace_surrogates(word), add_special_tokens=False)
        return unknown not in encoding.ids and len(encoding.ids) == len({*encoding.word_ids})

    def whole_words(self) -> dict[str, int]:
        """Return the ids of the pieces that are a word of `text.tokenizer`, by the word."""
        vocabulary = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        pieces = ((piece, id) for piece, id in vocabulary if 0 < id < self.size)
        return {piece: id for piece, id in pieces if tokenize(piece) == [piece]}


class PairPieces:
    """From pairs of questions to the word pieces that a cross-encoder reads together."""

    def __init__(self, tokenizer: bytes, max_tokens: int) -> None:
        """Load a `tokenizer.json`; pairs are cut to `max_tokens`, the longer question first."""
        self._tokenizer = _load_tokenizer(tokenizer)
        self._tokenizer.enable_truncation(max_tokens, strategy="longest_first")

    def id_lists(self, pairs: Sequence[tuple[str, str]]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of each pair, and the segment of each id, 0 or 1."""
        texts = [(replace_surrogates(a), replace_surrogates(b)) for a, b in pairs]
        encodings = [self._tokenizer.encode(*pair) for pair in texts]
        return [encoding.ids for encoding in encodings], [e.type_ids for e in encodings]


def _load_tokenizer(tokenizer: bytes) -> Any:
    from tokenizers import Tokenizer  # which a convolutional encoder does not need

    try:
        loaded = Tokenizer.from_str(tokenizer.decode())
    except Exception as error:  # the library raises no narrower class
        what = f"tokenizer.json: expected a tokenizer ({error})"
        raise UserError(what, remedy="fetch it again") from None
    loaded.no_padding()
    return loaded


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can contain and UTF-8 cannot, by "?"."""
    return text.encode("utf-8", "replace").decode()
