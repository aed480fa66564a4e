"""When to stop, and which step is best: a pure function of the scores."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """The state of early stopping; higher scores are better.

    A gain is a score above `reference` by more than `min_delta`.

    Attributes:
      best_step: the step of the highest score, the first of equals.
      best_score: the highest score.
      reference: the score of the last gain.
      without_gain: evaluations since the last gain.
    """

    best_step: int = 0
    best_score: float = float("-inf")
    reference: float = float("-inf")
    without_gain: int = 0

    def update(self, step: int, score: float, *, min_delta: float) -> EarlyStopping:
        """Return the state after the evaluation of `step`."""
        best = (step, score) if score > self.best_score else (self.best_step, self.best_score)
        gain = score > self.reference + min_delta
        reference, without_gain = (score, 0) if gain else (self.reference, self.without_gain + 1)
        return EarlyStopping(*best, reference, without_gain)
