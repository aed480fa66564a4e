"""Payload: what a user keeps with a question and gets back with a hit, stored as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from qpr_jax.errors import UserError


def payload_json(payload: object, where: str) -> str | None:
    """Return the JSON of a payload; None for none, and for one without names.

    Numbers of NumPy become plain ones. UserError, which says `where`, for what is not JSON, NaN and
    infinity included.
    """
    if payload is None:
        return None
    if not isinstance(payload, Mapping):
        raise _refused(f"a mapping of names to values, got {type(payload).__name__}", where)
    for name in payload:
        if not isinstance(name, str):
            raise _refused(f"names that are strings, got {type(name).__name__}", where)
    try:
        text = json.dumps(
            {**payload},
            allow_nan=False,
            ensure_ascii=False,
            separators=(",", ":"),
            default=_plain,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(f"values of JSON ({error})", where) from None
    return text if payload else None


def _plain(value: object) -> object:
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return value.item()
    raise TypeError(f"got {type(value).__name__}")


def _refused(expected: str, where: str) -> UserError:
    return UserError(f"`payload`: expected {expected}, {where}")
