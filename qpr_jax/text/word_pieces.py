"""From questions to the word pieces of a transformer's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import whole_characters


class WordPieces:
    """The ids that a tokenizer of the `tokenizers` library gives, as a `Vocabulary` gives those of
    words.

    size: rows of the embedding table. Id 0 is padding. Safe to use from several threads.
    """

    def __init__(self, tokenizer: bytes, size: int) -> None:
        """tokenizer: the bytes of a `tokenizer.json`; UserError where they are no tokenizer."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(
                f"a transformer needs more packages ({error.name}); pip install "
                "'qpr_jax[transformer]'"
            ) from None
        try:
            self._tokenizer: Any = Tokenizer.from_str(tokenizer.decode())
        except Exception as error:  # the library raises no narrower one
            raise UserError(
                f"tokenizer.json: expected a tokenizer ({error}); fetch it again"
            ) from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size = self.first_bin = size  # no word is hashed

    def ids(self, questions: Sequence[str], max_words: int) -> list[list[int]]:
        """The ids of each question, at most `max_words`, the marks at both ends among them."""
        texts = [*map(whole_characters, questions)]  # the library takes no others
        found = (encoding.ids for encoding in self._tokenizer.encode_batch(texts))
        return [row if len(row) <= max_words else [*row[: max_words - 1], row[-1]] for row in found]

    def word_ids(self, questions: Sequence[str], max_words: int) -> tuple[np.ndarray, int]:
        """Ids int32 [n, L], padded with 0, and how many questions fill `max_words`."""
        # A question that says [PAD] has that word's id, which is padding here.
        ids = [[id for id in row if id] for row in self.ids(questions, max_words)]
        lengths = np.array([len(row) for row in ids], np.int64)
        words = np.zeros((len(ids), max(1, int(lengths.max(initial=0)))), np.int32)
        words[np.arange(words.shape[1]) < lengths[:, None]] = [id for row in ids for id in row]
        return words, int((lengths >= max_words).sum())
