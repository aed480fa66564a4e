"""Checkpoints of the whole training state, written by Orbax in the background."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, read_json, read_manifest, sync_tree, verify, write_manifest
from qpr_jax.training.train_step import TrainState

log = logging.getLogger(__name__)

# Each device has the whole state, and one writes it. By default Orbax cuts each array into a part
# for each device, and compiles every cut.
_ARRAYS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False))
)
_FORMAT = "qpr_jax checkpoint 1"
_MAKE_ROOM = "make room, then run the same command again, which resumes from the checkpoint before"


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
        """Open a folder.

        Checkpoints that were not finished are removed, and damaged ones renamed.
        """
        self._folder = folder.absolute()
        for step in _steps(self._folder) if not jax.process_index() else ():
            try:
                _check(self._folder / str(step))
            except (UserError, OSError) as error:
                self._set_aside(step, error)
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
        """Restore the latest checkpoint that can be read; without any, return `fresh`.

        UserError if none of several can be read.
        """
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
        """Read the checkpoint of a step, in the shapes, types and shardings of `like`.

        UserError if it is damaged or of another model.
        """
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
        how = ocp.checkpoint_utils.construct_restore_args(target)
        with self._failing(step, "read", "start again with `overwrite=True`"):
            args = ocp.args.PyTreeRestore(target, restore_args=how)
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


def _steps(folder: pathlib.Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, in ascending order."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def _check(path: pathlib.Path) -> None:
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
