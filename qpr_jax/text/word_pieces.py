"""From questions to the word pieces of a transformer's tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.text.cleaning import replace_surrogates
from qpr_jax.text.token_ids import TokenIds
from qpr_jax.text.tokenizer import tokenize
from qpr_jax.text.vocabulary import Vocabulary

_ONE_LANGUAGE = 60_000  # pieces; models of one language have about 30,000


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
        known: np.ndarray = token_ids > 0
        return known

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
        known = ((piece, id) for piece, id in vocabulary if 0 < id < self.size)
        return {piece: id for piece, id in known if tokenize(piece) == [piece]}


Tokenizer = Vocabulary | WordPieces  # what an encoder reads


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
