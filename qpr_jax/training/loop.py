"""The training loop of encoders and cross-encoders, resumable at any step from checkpoints.

Orbax writes a checkpoint, the whole training state, in the background.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import pathlib
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from qpr_jax.errors import Interrupted, UserError
from qpr_jax.files import MANIFEST, read_json, read_manifest, sync_tree, verify, write_manifest
from qpr_jax.running import progress
from qpr_jax.training import distributed
from qpr_jax.training.metrics import Metrics
from qpr_jax.training.train_step import Step, TrainState

log = logging.getLogger(__name__)

LOG_EVERY = 20  # steps between two writes of the metrics
# Each device has the whole state, and one writes it. By default Orbax cuts each array into a part
# for each device, and compiles every cut.
_ARRAYS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False))
)
_FORMAT = "qpr_jax checkpoint 1"
_MAKE_ROOM = "make room, then run the same command again, which resumes from the checkpoint before"


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


class EarlyStopping(NamedTuple):
    """The last step of the highest score, 0 before an evaluation, and the evaluations since."""

    best_step: int = 0
    best_score: float = float("-inf")
    without_gain: int = 0

    def update(self, step: int, score: float, *, counts: bool = True) -> EarlyStopping:
        """Return the state after the evaluation of `step`, which `counts` towards patience.

        Of equal scores the later step wins: a score that is perfect from the start ends nothing.
        """
        if score >= self.best_score:
            return EarlyStopping(step, score)
        return self._replace(without_gain=self.without_gain + 1 if counts else 0)


class Checkpoints:
    """The checkpoints of one run: those of the latest two steps and that of the best.

    Orbax renames a checkpoint into place when it is written. A kill leaves no checkpoint or a whole
    one. Orbax does not sync its files, so each checkpoint is synced, and gets a manifest of their
    SHA-256, before the next one is begun: when power is lost, at most the latest is damaged.
    Leaving the context waits for the last save, `wait` also raises what failed.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Open a folder; remove unfinished checkpoints, and rename damaged ones."""
        self._folder = folder.absolute()
        for path in () if jax.process_index() else [*self._folder.glob("*")]:
            if not path.name.isdecimal():  # as one that was not finished
                continue
            try:
                _check_files(path)
            except (UserError, OSError) as error:
                self._set_aside(int(path.name), error)
        latest = policies.LatestN(2)
        best = policies.BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([latest, best]),
            best_fn=_score,
            cleanup_tmp_directories=True,
        )
        handler = ocp.PyTreeCheckpointHandler(type_handler_registry=_ARRAYS)
        self._manager = ocp.CheckpointManager(self._folder, options=options, item_handlers=handler)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Orbax waits here, and raises once more what `save` or `wait` have raised.
        with contextlib.suppress(ValueError, OSError):
            self._manager.close()

    def save(self, state: TrainState, best: EarlyStopping) -> None:
        """Start to save the state, unless its step is saved. UserError if the last save failed."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        # Of checkpoints between evaluations, the best is the one that was evaluated.
        metrics = best._asdict() | {"step": step}
        self.wait()
        with self._failing(step, "write", _MAKE_ROOM):
            # Orbax fails with the tracebacks of all its threads, and leaves a part of a checkpoint.
            size = sum(array.nbytes for array in jax.tree.leaves(state))
            if shutil.disk_usage(self._folder).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            saved = ocp.args.PyTreeSave(state._asdict())
            self._manager.save(step, args=saved, metrics=metrics)

    def wait(self) -> None:
        """Wait until the last save is finished and on disk. UserError if it failed."""
        step = self._manager.latest_step() or 0
        with self._failing(step, "write", _MAKE_ROOM):
            self._manager.wait_until_finished()
            path = self._folder / str(step)
            if step and not jax.process_index() and not (path / MANIFEST).exists():
                write_manifest(path, sync_tree(path), format=_FORMAT)

    def restore_latest(self, fresh: TrainState) -> tuple[TrainState, EarlyStopping]:
        """Restore the latest readable checkpoint; `fresh` without any, UserError if none reads."""
        errors: dict[int, UserError] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                found = self.restore(fresh, step)
            except UserError as error:
                errors[step] = error
                continue
            for damaged, reason in errors.items():
                self._set_aside(damaged, reason)
            if errors:
                self._manager.reload()
            log.info("resuming from step %d", step)
            return found
        if errors:
            raise next(iter(errors.values()))
        return fresh, EarlyStopping()

    def _set_aside(self, step: int, error: Exception) -> None:
        """Rename a damaged checkpoint, and say so."""
        path = self._folder / f"damaged-{step}"
        log.warning("%s; it is kept as %s, and the checkpoint before is used", error, path.name)
        if not jax.process_index():
            (self._folder / str(step)).replace(path)

    def restore(self, like: TrainState, step: int) -> tuple[TrainState, EarlyStopping]:
        """Read a checkpoint in the shapes and types of `like`; UserError if it is damaged."""
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
        restoring = ocp.checkpoint_utils.construct_restore_args(target)
        with self._failing(step, "read", "start again with `overwrite=True`"):
            args = ocp.args.PyTreeRestore(target, restore_args=restoring)
            saved: Any = self._manager.restore(step, args=args)
            metrics = dict(self._manager.metrics(step) or {})
            del metrics["step"]
        return TrainState(**saved), EarlyStopping(**metrics)

    @contextlib.contextmanager
    def _failing(self, step: int, verb: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, OSError) as error:
            # TensorStore raises a ValueError for a full disk: the cause, then ` [NAME=...`.
            line = re.split(r"\n| \[\w+=", str(error))[0]
            reason = getattr(error, "strerror", None) or line.rpartition(": ")[2]
            what = f"{self._folder / str(step)}: cannot {verb} the checkpoint ({reason})"
            raise UserError(what, remedy=remedy) from error


def _check_files(path: pathlib.Path) -> None:
    """Raise a UserError, or an OSError, for a checkpoint that is damaged."""
    if (path / MANIFEST).exists():
        manifest = read_manifest(path, format=_FORMAT)
        for name in manifest["files"]:
            verify(path, name, manifest)
    else:  # it was the latest when the training was killed
        read_json(path / "metrics" / "metrics")


def _score(metrics: Any) -> float:
    """The rank of a checkpoint: its score if its step is the best so far."""
    return float(metrics["best_score"]) if metrics["best_step"] == metrics["step"] else -math.inf
