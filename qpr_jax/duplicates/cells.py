"""Values of the fields that are kept with questions: the blocks and the types that they mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection

from qpr_jax.data.columns import is_missing, listed
from qpr_jax.errors import UserError
from qpr_jax.index.base import StoredQuestion


def require_column(name: str, kept: Collection[str], setting: str) -> None:
    """UserError unless a column is among those that are kept with questions."""
    if name not in kept:
        raise UserError(
            f"expected a column `{name}` that is kept with the questions, got {listed([*kept])}",
            setting=setting,
            remedy="name another column",
        )


def block_of(value: object) -> str | None:
    """The block of rows with this value: its text, that of 1 for 1.0, too; None without a value."""
    if is_missing(value):
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def hash_block(value: str | None, row: StoredQuestion, alone: str | None) -> bytes:
    """Hash the block of a row, 8 bytes.

    alone: where there is no value, rows of one id and the same `alone` are a block; None: rows of
    one text are.
    """
    shared = row.question if alone is None else f"{alone} {row.id}"
    text, kind = (shared, b"alone") if value is None else (value, b"")
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8, person=kind).digest()


def kind_of(value: object) -> str:
    """The type of a value; whole numbers of more than 53 and 63 bits are "long" and "longer"."""
    if type(value) is int and abs(value) > 1 << 53:
        return "long" if -(1 << 63) <= value < 1 << 63 else "longer"
    return type(value).__name__
