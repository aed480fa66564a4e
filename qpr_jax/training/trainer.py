"""The training loop: from prepared data to the best parameters, resumable at any step."""

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
from qpr_jax.training.checkpoints import Checkpoints, open_checkpoints
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.evaluator import make_evaluator
from qpr_jax.training.metric_writer import MetricWriter, NullWriter
from qpr_jax.training.model_families import exported
from qpr_jax.training.stages import Plan, build_plan
from qpr_jax.training.train_step import Params, TrainState

log = logging.getLogger(__name__)

EMA_EVERY = 10  # steps between two looks of the average of weights, and before an evaluation


def train(config: TrainConfig, dataset: TrainDataset, workdir: Path) -> Params:
    """Train until the validation score stops rising; the best parameters.

    Goes on from the latest checkpoint of `workdir`. The same steps give the same bits, however
    often the training was killed (on one CPU machine, with one number of devices). Of several
    processes all call this with the same arguments; the first writes, scores, and reports.
    """
    training = build_plan(config, dataset)
    mesh, state, stages = training.mesh, training.state, training.stages
    _, averaged, params_of = stages[-1].turns[0].train
    total = stages[-1].ends
    evaluates_at = functools.partial(training.evaluates, every=config.early_stopping.every_steps)
    metric, patience, min_delta = (
        getattr(config.early_stopping, name) for name in ("metric", "patience", "min_delta")
    )
    score = make_evaluator(dataset, config)
    averages = config.optimizer.ema_steps > 0

    def current(state: TrainState) -> Params:
        return state.average if averages else params_of(state)

    with open_checkpoints(workdir / "checkpoints") as manager:
        state, stopping = restore_latest(manager, state)
        done = int(state.step)
        records = MetricWriter(workdir, resume_at=done) if distributed.is_first() else NullWriter()
        flush = MetricBuffer(records, dataset, training, workdir)
        with (
            contextlib.closing(records),
            progress.bar("step", total, start=done, shown=distributed.is_first()) as show,
            _signals() as signalled,
        ):
            stop = False
            while not stop and done < total and stopping.without_gain < patience:
                (feed, compiled), at = training.turn_of(done)
                state, metrics = compiled.step(state, feed.batch_at(at).placed(mesh))
                done += 1
                evaluates = evaluates_at(done)
                if averages and (evaluates or done % EMA_EVERY == 0):
                    weight = ema_weight(done, evaluates_at, config.optimizer.ema_steps)
                    state = averaged(state, weight)
                flush.add(done, feed.size, metrics | feed.false_negatives_at(at))
                # Looked at once a step: a signal that comes below is for the next. Several
                # processes agree on it now and then, since asking is a step's work for a network.
                if jax.process_count() == 1 or done % config.log_every == 0:
                    stop = distributed.any_process(bool(signalled))
                if done % config.log_every == 0:
                    show(done, flush())
                if evaluates:
                    flush()
                    encoder = exported(current(state), dataset, config)
                    row = distributed.broadcast_from_first(functools.partial(score, encoder))
                    if not all(map(np.isfinite, row.values())):
                        flush.refuse(done, f"the scores {row}")
                    records.evaluation({"step": done, **row})
                    stopping = stopping.update(done, row[metric], min_delta=min_delta)
                    if done <= stages[-1].begins:  # patience is for the last phase
                        stopping = dataclasses.replace(stopping, without_gain=0)
                    log.info("step %d: %s", done, ", ".join(f"{k} {v:.4f}" for k, v in row.items()))
                    manager.save(state, stopping)
                    flush.restart()
                elif stop or done % config.checkpoint_every == 0:
                    flush()
                    manager.save(state, stopping)
        manager.wait()
        if distributed.any_process(bool(signalled)):
            but = " without `--config.overwrite`" if config.overwrite else ""
            log.info("stopped at step %d, saved; the same command%s goes on", done, but)
            raise Interrupted(*(signalled or [signal.SIGTERM]))
        log.info("best %s at step %d", metric, stopping.best_step)
        best, _ = manager.restore(state, stopping.best_step)
    return current(best)


def ema_weight(step: int, evaluates_at: Callable[[int], bool], horizon: int) -> float:
    """What the weights after `step` count in their exponential moving average.

    It is looked after at multiples of EMA_EVERY and at evaluations, each time for all steps since;
    over the first `horizon` steps it is their plain mean.
    """
    since = 1
    while (step - since) % EMA_EVERY and not evaluates_at(step - since):
        since += 1
    return since / max(since, min(step, horizon))


def restore_latest(manager: Checkpoints, fresh: TrainState) -> tuple[TrainState, EarlyStopping]:
    """Restore the latest checkpoint, or return `fresh` if there is none."""
    if not manager.steps:
        return fresh, EarlyStopping()
    latest = manager.steps[-1]
    log.info("going on from step %d", latest)
    return manager.restore(fresh, latest)


class MetricBuffer:
    """Holds the metrics of steps on the device until they are recorded, many at a time.

    Reading a metric waits for its step; read one by one they would leave the device idle.
    """

    def __init__(
        self,
        records: MetricWriter | NullWriter,
        dataset: TrainDataset,
        training: Plan,
        workdir: Path,
    ) -> None:
        self._records = records
        self._prepared = dataset
        self._training = training
        self._workdir = workdir
        self._held: list[tuple[int, int, dict[str, Any]]] = []
        self.restart()

    def restart(self) -> None:
        """Start the clock anew, after work that is not training."""
        self._since = time.perf_counter()

    def add(self, step: int, pairs: int, metrics: dict[str, Any]) -> None:
        """Hold the metrics of a step over so many pairs."""
        self._held.append((step, pairs, metrics))

    def __call__(self) -> str:
        """Record what is held; a line on it. UserError where a loss is not finite."""
        if not self._held:
            return ""
        steps, pairs, metrics = zip(*self._held, strict=True)
        values: list[dict[str, Any]] = jax.device_get(list(metrics))
        now = time.perf_counter()
        rate = round(sum(pairs) / (now - self._since), 1)
        rows = [
            {"step": step, **{name: float(v) for name, v in row.items()}, "pairs_per_second": rate}
            for step, row in zip(steps, values, strict=True)
        ]
        self._held, self._since = [], now
        finite = list(itertools.takewhile(lambda row: all(map(np.isfinite, row.values())), rows))
        self._records.steps(finite)
        if len(finite) < len(rows):
            row = rows[len(finite)]
            self.refuse(row["step"], f"the loss {row['loss']} and gradient {row['grad_norm']}")
        return f"loss {rows[-1]['loss']:.4f}, {rate:,.0f} pairs/s"

    def refuse(self, step: int, what: str) -> NoReturn:
        """Save the question ids of the batch of `step`, and raise UserError."""
        path = self._workdir / "non_finite.json"
        draw, known = self._training.draw_at(step - 1), self._prepared.data.ids
        rows = np.concatenate([draw.pairs, draw.labeled])
        rate = self._training.stage_of(step - 1).rate
        ids = np.where(rows < len(known), known[np.minimum(rows, len(known) - 1)], -1).tolist()
        if distributed.is_first():
            write_json(path, {"step": step, "got": what, "pairs": ids})
        raise UserError(
            f"expected finite numbers, got {what} at step {step}; the question ids of its batch "
            f"are in {path}",
            setting=rate,
            remedy="lower it, and start again with {overwrite=True}",
        )


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that the number of SIGTERM or SIGINT is put into; a second signal acts at once."""
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
