"""The training loop: from a dataset to the best parameters, resumable at any step."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from qpr_jax import progress
from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import write_json
from qpr_jax.training import distributed
from qpr_jax.training.checkpoints import Checkpoints, S, open_checkpoints
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.metric_writer import MetricWriter
from qpr_jax.training.model_families import MODEL_FAMILIES
from qpr_jax.training.prefetch import Prefetch
from qpr_jax.training.stages import Plan, build_plan
from qpr_jax.training.train_step import Params, TrainState

log = logging.getLogger(__name__)

EMA_EVERY = 10  # steps between two updates of the average of weights
# The host starts at most this number of steps before they are done. So the device has work while
# metrics are written, and a signal does not wait for many steps.
IN_FLIGHT = 8


def train(
    config: TrainConfig,
    dataset: TrainDataset,
    workdir: Path,
) -> Params:
    """Train until the validation score stops rising, and return the best parameters.

    Resumes from the latest checkpoint of `workdir`. The same steps give the same bits, however
    often the training was killed (on one CPU machine, with one number of devices). Several
    processes all call this with the same arguments; process 0 writes, scores and reports.
    """
    plan = build_plan(config, dataset)
    last = plan.stages[-1]
    _, update_average, params_of = last.objectives[0].train
    stops = config.early_stopping
    evaluates_at = functools.partial(plan.evaluates, every=stops.every_steps)
    score = _make_scorer(config, dataset)
    averages = config.optimizer.ema_steps > 0

    def current(state: TrainState) -> Params:
        return state.average if averages else params_of(state)

    with open_checkpoints(workdir / "checkpoints") as checkpoints:
        state, stopping = restore_latest(checkpoints, plan.state)
        done = int(state.step)
        plan.compile(done)
        writer = MetricWriter(workdir, resume_at=done) if distributed.is_first() else None
        buffer = MetricBuffer(writer, functools.partial(_refuse, dataset, plan, workdir))
        with (
            contextlib.closing(writer) if writer else contextlib.nullcontext(),
            progress.bar("step", last.ends, start=done, shown=distributed.is_first()) as show,
            catch_signals() as signals,
            Prefetch(plan.load, range(done, last.ends), busy=buffer.busy) as batches,
        ):
            stop = False
            while not stop and done < last.ends and stopping.without_gain < stops.patience:
                (loader, compiled), _ = plan.objective_at(done)
                batch, of_batch = next(batches)
                state, metrics = compiled.step(state, batch)
                done += 1
                evaluates = evaluates_at(done)
                if averages and (evaluates or done % EMA_EVERY == 0):
                    weight = ema_weight(done, evaluates_at, config.optimizer.ema_steps)
                    state = update_average(state, weight)
                buffer.add(done, loader.size, metrics | of_batch)
                # Read once a step: a signal that comes later in it is for the next step. Several
                # processes must agree, which costs them a message, so they do it less often.
                if jax.process_count() == 1 or done % config.log_every == 0:
                    stop = distributed.any_process(bool(signals))
                if done % config.log_every == 0:
                    show(done, buffer.flush(leave=IN_FLIGHT))
                if evaluates:
                    buffer.flush()
                    scores = score(current(state))
                    buffer.write_scores(done, scores)
                    watched = scores[stops.metric]
                    stopping = stopping.update(done, watched, min_delta=stops.min_delta)
                    if done <= last.begins:  # patience counts in the last stage alone
                        stopping = dataclasses.replace(stopping, without_gain=0)
                    checkpoints.save(state, stopping)
                    buffer.restart_clock()
                elif stop or done % config.checkpoint_every == 0:
                    buffer.flush()
                    checkpoints.save(state, stopping)
        if buffer.seconds:
            share = 100 * batches.waited / buffer.seconds
            log.info("the device waited for batches at most %.1f %% of its time", share)
        checkpoints.wait()
        if distributed.any_process(bool(signals)):
            log.info("stopped at step %d, saved; the same command resumes", done)
            raise Interrupted(*(signals or [signal.SIGTERM]))
        log.info("best %s at step %d", stops.metric, stopping.best_step)
        best, _ = checkpoints.restore(state, stopping.best_step)
    return current(best)


def _make_scorer(
    config: TrainConfig, dataset: TrainDataset
) -> Callable[[Params], dict[str, float]]:
    """Make a function from parameters to their validation scores, which process 0 computes."""
    evaluate = make_evaluator(dataset, config)
    family = MODEL_FAMILIES[config.encoder.kind]

    def score(params: Params) -> dict[str, float]:
        encoder = family.export(config, dataset.start, dataset.tokenizer, params)
        scores: dict[str, float] = distributed.broadcast_from_first(lambda: evaluate(encoder))
        return scores

    return score


def ema_weight(step: int, evaluates_at: Callable[[int], bool], horizon: int) -> float:
    """The weight of the parameters after `step` in their exponential moving average.

    The average is updated at multiples of EMA_EVERY and at evaluations, each time for all steps
    since the last update; over the first `horizon` steps it is their plain mean.
    """
    since = 1
    while (step - since) % EMA_EVERY and not evaluates_at(step - since):
        since += 1
    return since / max(since, min(step, horizon))


def restore_latest(checkpoints: Checkpoints, fresh: S) -> tuple[S, EarlyStopping]:
    """Restore the latest checkpoint, or return `fresh` if there is none."""
    if not checkpoints.steps:
        return fresh, EarlyStopping()
    latest = checkpoints.steps[-1]
    log.info("resuming from step %d", latest)
    return checkpoints.restore(fresh, latest)


class MetricBuffer:
    """Keeps the metrics of steps on the device, and writes many at a time.

    Reading a metric waits for its step; read one by one they would leave the device idle.

    Attributes:
      seconds: of the steps whose metrics are written.
    """

    def __init__(self, writer: MetricWriter | None, refuse: Callable[[int, str], NoReturn]) -> None:
        """Write to `writer`, if any; `refuse` raises for a step and what it got."""
        self._writer, self._refuse = writer, refuse
        self._kept: list[tuple[int, int, dict[str, Any]]] = []
        self.seconds = 0.0
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the rate from now on, after work that is not training."""
        self._since = time.perf_counter()

    def add(self, step: int, pairs: int, metrics: dict[str, Any]) -> None:
        """Keep the metrics of a step and the number of its pairs; wait if many are in flight."""
        self._kept.append((step, pairs, metrics))
        if len(self._kept) > IN_FLIGHT:
            jax.block_until_ready(self._kept[-IN_FLIGHT - 1][2])

    def busy(self) -> bool:
        """Whether the device still computes the last step."""
        loss: Any = self._kept[-1][2]["loss"] if self._kept else None
        return isinstance(loss, jax.Array) and not loss.is_ready()  # type: ignore[attr-defined]

    def flush(self, *, leave: int = 0) -> str:
        """Write all but the last `leave` steps, and return a line on the last one written.

        UserError if a loss is not finite.
        """
        ready = self._kept[: max(0, len(self._kept) - leave)]
        if not ready:
            return ""
        steps, pairs, metrics = zip(*ready, strict=True)
        values: list[dict[str, Any]] = jax.device_get(list(metrics))
        now = time.perf_counter()
        rate = round(sum(pairs) / (now - self._since), 1)
        rows = [
            {"step": step, **{name: float(v) for name, v in row.items()}, "pairs_per_second": rate}
            for step, row in zip(steps, values, strict=True)
        ]
        self.seconds += now - self._since
        self._kept, self._since = self._kept[len(ready) :], now
        finite = list(itertools.takewhile(lambda row: all(map(np.isfinite, row.values())), rows))
        if self._writer:
            self._writer.steps(finite)
        if len(finite) < len(rows):
            row = rows[len(finite)]
            self._refuse(row["step"], f"the loss {row['loss']} and gradient {row['grad_norm']}")
        return f"loss {rows[-1]['loss']:.4f}, {rate:,.0f} pairs/s"

    def write_scores(self, step: int, scores: dict[str, float]) -> None:
        """Write and log the scores after a step; UserError if one is not finite."""
        if not all(map(np.isfinite, scores.values())):
            self._refuse(step, f"the scores {scores}")
        if self._writer:
            self._writer.evaluation({"step": step, **scores})
        named = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        log.info("step %d: %s", step, named)


def _refuse(dataset: TrainDataset, plan: Plan, workdir: Path, step: int, what: str) -> NoReturn:
    """Save the question ids of the batch of `step`, and raise UserError."""
    path = workdir / "non_finite.json"
    indices, ids = plan.indices(step - 1), dataset.data.ids
    rows = np.concatenate([indices.pairs, indices.labeled_pairs])
    known = np.where(rows < len(ids), ids[np.minimum(rows, len(ids) - 1)], -1).tolist()
    if distributed.is_first():
        write_json(path, {"step": step, "got": what, "pairs": known})
    raise UserError(
        f"expected finite numbers, got {what} at step {step}; the question ids of its batch "
        f"are in {path}",
        setting=plan.stage_at(step - 1).rate,
        remedy="lower it, and start again with `--overwrite`",
    )


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
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
