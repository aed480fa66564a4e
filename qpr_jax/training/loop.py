"""The training loop of encoders and cross-encoders, resumable at any step."""

from __future__ import annotations

import contextlib
import logging
import math
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from qpr_jax import progress
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.training import distributed
from qpr_jax.training.checkpoints import Checkpoints
from qpr_jax.training.metrics import MetricWriter
from qpr_jax.training.train_step import Step, TrainState

log = logging.getLogger(__name__)

# The host starts at most this number of steps before they are done. So the device has work while
# metrics are written, and a signal does not wait for many steps.
IN_FLIGHT = 8
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

    UserError if a loss, a gradient or a score is not finite; Interrupted after SIGTERM or SIGINT,
    when the state is saved.
    """
    last, first = phases[-1], distributed.is_first()
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(Checkpoints(folder / "checkpoints"))
        state, best = checkpoints.restore_latest(state)
        done = int(state.step)
        buffer = stack.enter_context(contextlib.closing(_MetricBuffer(folder, done)))
        show = stack.enter_context(progress.bar("step", last.steps.stop, start=done, shown=first))
        received = stack.enter_context(_signals())
        stop = False
        log.info("compiling the first steps, which takes up to a minute")
        if start_counts and not done:
            scores = buffer.write_scores(0, evaluate(state))
            best = best.update(0, scores[watched])
            checkpoints.save(state, best)
        while not stop and done < last.steps.stop and not 0 < patience <= best.without_gain:
            phase = next(phase for phase in phases if done < phase.steps.stop)
            batch, known = phase.load(done)
            state, metrics = phase.step(state, batch)
            buffer.add(done + 1, phase.pairs, metrics | known)
            done += 1
            # Processes agree on a stop by a message, so several do it less often.
            if jax.process_count() == 1 or done % LOG_EVERY == 0:
                stop = distributed.any_process(bool(received))
            if done % LOG_EVERY == 0:
                show(done, buffer.flush(leave=IN_FLIGHT))
            ends = done == phase.steps.stop
            evaluates = ends or (done - phase.steps.start) % phase.evaluate_every == 0
            if not (evaluates or stop or done % checkpoint_every == 0):
                continue
            buffer.flush()
            if evaluates:
                scores = buffer.write_scores(done, evaluate(state))
                best = best.update(done, scores[watched], counts=phase is last)
            checkpoints.save(state, best)
            buffer.restart_clock()
        checkpoints.wait()
        if stop:
            log.info("stopped at step %d, saved; the same command resumes", done)
            raise Interrupted(*(received or [signal.SIGTERM]))
        log.info("best %s at step %d", watched, best.best_step)
        return checkpoints.restore(state, best.best_step)[0]


class _MetricBuffer:
    """Keeps the metrics of steps on the device, and writes many at a time.

    Reading a metric waits for its step; read one by one they would leave the device idle.
    """

    def __init__(self, folder: pathlib.Path, done: int) -> None:
        self._writer = MetricWriter(folder, resume_at=done) if distributed.is_first() else None
        self._kept: list[tuple[int, int, dict[str, Any]]] = []
        self.restart_clock()

    def close(self) -> None:
        """Close the files."""
        if self._writer:
            self._writer.close()

    def restart_clock(self) -> None:
        """Measure the rate from now on, after work that is not training."""
        self._since = time.perf_counter()

    def add(self, step: int, pairs: int, metrics: dict[str, Any]) -> None:
        """Keep the metrics of a step and the number of its pairs; wait if many are in flight."""
        self._kept.append((step, pairs, metrics))
        if len(self._kept) > IN_FLIGHT:
            jax.block_until_ready(self._kept[-IN_FLIGHT - 1][2])

    def flush(self, *, leave: int = 0) -> str:
        """Write all but the last `leave` steps, and return a line on the last one written.

        UserError if a metric is not finite.
        """
        count = max(0, len(self._kept) - leave)
        ready, self._kept = self._kept[:count], self._kept[count:]
        if not ready:
            return ""
        read = jax.device_get([metrics for *_, metrics in ready])
        seconds = time.perf_counter() - self._since
        self.restart_clock()
        rate = round(sum(pairs for _, pairs, _ in ready) / seconds, 1)
        times = {"seconds": round(seconds / count, 6), "pairs_per_second": rate}
        rows = []
        for (step, *_), metrics in zip(ready, read, strict=True):
            values = {name: float(value) for name, value in metrics.items()}
            if not all(map(math.isfinite, values.values())):
                break
            rows.append({"step": step, **values, **times})
        if self._writer:
            self._writer.write("train", rows)
        if len(rows) < len(ready):
            what = f"loss is {values['loss']}, gradient norm is {values['grad_norm']}"
            raise _diverged(step, what)
        return f"loss {values['loss']:.4f}, {rate:,.0f} pairs/s"

    def write_scores(self, step: int, scores: dict[str, float]) -> dict[str, float]:
        """Write, log and return the scores after a step; UserError if one is not finite."""
        named = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        if not all(map(math.isfinite, scores.values())):
            raise _diverged(step, named)
        if self._writer:
            self._writer.write("validation", [{"step": step, **scores}])
        log.info("step %d: %s", step, named)
        return scores


def _diverged(step: int, what: str) -> UserError:
    return UserError(
        f"training diverged at step {step}: {what}",
        setting="optimizer.learning_rate",
        remedy="lower it, and start again with `--overwrite`",
    )


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
