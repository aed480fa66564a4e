"""The ranks of the rows that are kept."""

from __future__ import annotations

import pathlib

import numpy as np

from qpr_jax.data.splits import HELD_OUT
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import read_ranks


def read_rows(folder: pathlib.Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """The ranks of all rows that are kept, by name and seed."""
    rows: dict[str, list[dict[str, np.ndarray]]] = {}
    queries: dict[bytes, list[str]] = {}
    # What begins with a dot is the half of a row that a kill left.
    for path in sorted(folder.glob("[!.]*/ranks.npz")):
        ranks = read_ranks(path)
        rows.setdefault(path.parent.name.partition("-seed")[0], []).append(ranks)
        asked = b"".join(ranks[f"{split}_ids"].tobytes() for split in HELD_OUT)
        queries.setdefault(asked, []).append(path.parent.name)
    if len(queries) > 1:
        odd = min(queries.values(), key=len)
        raise UserError(
            f"{folder / odd[0]}: the row was scored on other queries than most; remove the folder "
            "and make the row anew"
        )
    return rows
