"""When to stop, and which step is best: a pure function of the scores."""

from __future__ import annotations

from typing import NamedTuple


class EarlyStopping(NamedTuple):
    """The state of early stopping; higher scores are better.

    Attributes:
      best_step: the step of the highest score, the first of equals; 0 before an evaluation.
      best_score: the highest score.
      without_gain: evaluations since then.
    """

    best_step: int = 0
    best_score: float = float("-inf")
    without_gain: int = 0

    def update(self, step: int, score: float) -> EarlyStopping:
        """Return the state after the evaluation of `step`."""
        if score > self.best_score:
            return EarlyStopping(step, score)
        return self._replace(without_gain=self.without_gain + 1)
