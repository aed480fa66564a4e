"""What a tokenizer offers, and the check of a list of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from qpr_jax.errors import UserError


class Tokenizer(Protocol):
    """From questions to token ids; 0 is padding."""

    @property
    def size(self) -> int:
        """Rows of the embedding table: all ids are smaller."""

    @property
    def first_bin(self) -> int:
        """The lowest id that several tokens share; `size` if there is none."""

    def token_ids(self, questions: Sequence[str], max_tokens: int) -> tuple[np.ndarray, int]:
        """Token ids int32 [n, L], padded with 0, and how many questions were truncated."""


def as_texts(texts: Sequence[str], name: str = "questions") -> list[str]:
    """Return `texts` as a list; UserError about the argument `name` unless all are strings."""
    kind = type(texts).__name__
    if isinstance(texts, str | bytes | Mapping):
        raise UserError(f"`{name}`: expected a list of strings, got a {kind}; pass [{name}]")
    try:
        result = list(texts)
    except TypeError:
        raise UserError(f"`{name}`: expected a list of strings, got {kind}") from None
    for i, text in enumerate(result):
        if not isinstance(text, str):
            raise UserError(
                f"`{name}`: expected strings, got {type(text).__name__} at position {i}",
                remedy="leave it out",
            )
    return result
