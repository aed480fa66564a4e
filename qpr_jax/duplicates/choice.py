"""How the pairs that count as duplicates are chosen: one of four ways, checked."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

from qpr_jax.errors import UserError

THRESHOLD = 0.5  # where no way is given


@dataclass(frozen=True)
class Choice:
    """One of these; the others are None.

    Attributes:
      threshold: the least probability.
      max_distance: the largest squared distance.
      precision: the lowest threshold at which the mean probability is at least this.
      pairs: the number of closest pairs.
    """

    threshold: float | None = None
    max_distance: float | None = None
    precision: float | None = None
    pairs: int | None = None

    @property
    def by_probability(self) -> bool:
        """Whether it needs a run with calibrated probabilities."""
        return self.threshold is not None or self.precision is not None


def choose(
    threshold: float | None = None,
    max_distance: float | None = None,
    precision: float | None = None,
    pairs: int | None = None,
) -> Choice:
    """The one way that is given; THRESHOLD where none is.

    Raises:
      UserError: two are given, or a number is out of its range.
    """
    given: dict[str, Any] = {
        "threshold": threshold,
        "max_distance": max_distance,
        "precision": precision,
        "pairs": pairs,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise UserError(
            f"expected one way to choose pairs, got {' and '.join(given)}",
            remedy="give one of {threshold}, {max_distance}, {precision} and {pairs}",
        )
    for name, value in given.items():
        expected = _expected(name, value)
        if expected:
            raise UserError(f"expected {expected}, got {value!r:.80}", setting=name)
        given[name] = int(value) if name == "pairs" else float(value)
    return Choice(**given) if given else Choice(threshold=THRESHOLD)


def _expected(name: str, value: Any) -> str:
    """What is expected where a value is not that; empty where it is."""
    is_finite = _is_finite(value)
    if name == "pairs":
        return "" if is_finite and value == int(value) >= 1 else "a whole number from 1 on"
    if not is_finite:
        return "a number"
    if name == "max_distance":
        return "" if value >= 0 else "a squared distance of 0 or more"
    low = "0 to 1" if name == "threshold" else "more than 0 and at most 1"
    inside = 0 <= value <= 1 if name == "threshold" else 0 < value <= 1
    return "" if inside else f"a probability, {low}"


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float holds."""
    try:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    except OverflowError:
        return False
