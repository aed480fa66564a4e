"""When to stop, and which step was best: a pure function of the scores so far."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """What the scores so far amount to; higher scores are better.

    best_step and best_score are of the highest score, the first of equals. A gain is a score more
    than `min_delta` above the last gain's (`reference`); without_gain counts evaluations since.
    """

    best_step: int = 0
    best_score: float = float("-inf")
    reference: float = float("-inf")
    without_gain: int = 0

    def update(self, step: int, score: float, *, min_delta: float) -> EarlyStopping:
        """The state after the evaluation of `step`."""
        best = (step, score) if score > self.best_score else (self.best_step, self.best_score)
        gain = score > self.reference + min_delta
        return EarlyStopping(
            *best, score if gain else self.reference, 0 if gain else self.without_gain + 1
        )
