"""The training loop of encoders and cross-encoders, resumable at any step."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from qpr_jax.errors import Interrupted
from qpr_jax.running import progress
from qpr_jax.training import distributed
from qpr_jax.training.checkpoints import Checkpoints
from qpr_jax.training.metrics import Metrics
from qpr_jax.training.train_step import Step, TrainState

log = logging.getLogger(__name__)

LOG_EVERY = 20  # steps between two writes of the metrics


class Phase(NamedTuple):
    """Consecutive steps with the same objectives."""

    steps: range  # of the training, counted from 0
    step: Step
    load: Callable[[int], tuple[Any, dict[str, float]]]  # step -> its batch, and metrics of that
    pairs: int  # of a batch
    evaluate_every: int  # steps between two evaluations; the end of a phase is always evaluated


def fit(
    state: TrainState,
    phases: Sequence[Phase],
    folder: pathlib.Path,
    *,
    evaluate: Callable[[TrainState], dict[str, float]],
    watched: str,
    patience: int = 0,
    checkpoint_every: int,
    start_counts: bool = False,
) -> TrainState:
    """Take the steps of all phases, and return the state of the best evaluation.

    Starts after the latest checkpoint. On one CPU machine and one number of devices the same steps
    give the same bits, however often the training was killed. Several processes all call this with
    the same arguments; the first writes to `folder`. The score `watched` decides which step is
    best; with `start_counts` that may be 0, before the first. Training ends after `patience`
    evaluations without a gain in the last phase; 0: never.

    UserError if a number is not finite; Interrupted after SIGTERM or SIGINT, when all is saved.
    """
    last = phases[-1]
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(folder / "checkpoints"))
        state, best = checkpoints.restore_latest(state)
        done = int(state.step)
        records = stack.enter_context(contextlib.closing(Metrics(folder, resume_at=done)))
        bar = progress("step", last.steps.stop, start=done, shown=distributed.is_first())
        show = stack.enter_context(bar)
        received, stop = stack.enter_context(_signals()), False
        log.info("compiling the first steps, which takes up to a minute")
        if start_counts and not done:
            best = best.update(0, records.write_scores(0, evaluate(state))[watched])
            checkpoints.save(state, best)
        while not stop and done < last.steps.stop and not 0 < patience <= best.without_gain:
            phase = next(phase for phase in phases if done < phase.steps.stop)
            batch, shares = phase.load(done)
            state, metrics = phase.step(state, batch)
            records.add(done + 1, phase.pairs, metrics | shares)
            done += 1
            # Processes agree on a stop by a message, so several do it less often.
            if jax.process_count() == 1 or done % LOG_EVERY == 0:
                stop = distributed.any_process(bool(received))
            if done % LOG_EVERY == 0:
                show(done, records.flush())
            taken = done - phase.steps.start
            evaluates = taken == len(phase.steps) or taken % phase.evaluate_every == 0
            if evaluates or stop or done % checkpoint_every == 0:
                records.flush()
                if evaluates:
                    score = records.write_scores(done, evaluate(state))[watched]
                    best = best.update(done, score, counts=phase is last)
                checkpoints.save(state, best)
                records.restart_clock()
        checkpoints.wait()
        if stop:
            log.info("stopped at step %d, saved; the same command resumes", done)
            raise Interrupted(*(received or [signal.SIGTERM]))
        log.info("best %s at step %d", watched, best.best_step)
        return checkpoints.restore(state, best.best_step)[0]


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that SIGTERM or SIGINT appends its number to; a second signal acts at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        restore()
        log.info("%s: saving, then stopping", signal.Signals(number).name)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        restore()
