"""The row of a group that is kept for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax.data.questions import Payload
from qpr_jax.errors import UserError

RULES = ("first", "longest", "central")
_COLUMN = "max:"


def column_of(keep: str) -> str | None:
    """The column of a rule `max:COLUMN`; None for one of RULES; UserError for any other."""
    if keep in RULES:
        return None
    column = keep.removeprefix(_COLUMN) if isinstance(keep, str) else ""
    if not column or column == keep:
        rules = f"{', '.join(RULES)} or {_COLUMN}COLUMN"
        raise UserError(f"expected {rules}, got {keep!r}", setting="keep")
    return column


def choose_kept(
    keep: str,
    rows: np.ndarray,
    texts: Sequence[str],
    payloads: Sequence[Payload | None],
    vectors: np.ndarray,
) -> int:
    """The position of the row of a group that is kept; of equal ones the first.

    Args:
      keep: "first": the first row of the table. "longest": by the characters of its text.
        "central": the nearest to the mean of all. "max:COLUMN": the greatest in this column of the
        payload; numbers, also as text, are greater than other texts, these than none.
      rows: int64 [n], in the table.
      texts, payloads: n of each.
      vectors: float32 [n, d]; read for "central" only.
    """
    if keep == "first":
        return int(rows.argmin())
    if keep == "longest":
        return int(np.argmax([*map(len, texts)]))
    if keep == "central":
        exact = vectors.astype(np.float64)
        distances = ((exact - exact.mean(axis=0)) ** 2).sum(axis=1)
        return int(distances.argmin())
    column = column_of(keep)
    values = [_value((payload or {}).get(str(column))) for payload in payloads]
    return max(range(len(values)), key=values.__getitem__)


def _value(value: object) -> tuple[int, Any]:
    """A cell as what cells are compared by."""
    if value is None or value == "":
        return 0, 0
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 1, str(value)
    return (2, number) if number == number else (0, 0)
