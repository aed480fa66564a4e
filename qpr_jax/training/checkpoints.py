"""The whole state of a training, saved in the background: the latest and the best."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, Path, read_manifest, verify, write_manifest
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.train_step import TrainState

FORMAT = "qpr_jax checkpoint 1"


@contextlib.contextmanager
def open_checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """A manager that keeps the latest checkpoint and the one saved last as the best.

    Saves run in the background; leaving the context waits for the last. A save that a kill cuts
    off is never taken for a checkpoint: Orbax renames it into place when it is whole.
    """
    folder = pathlib.Path(folder).absolute()
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(
            [
                policies.LatestN(1),
                policies.BestN(get_metric_fn=_step_if_best, n=1),
            ]
        ),
        # Only with a `best_fn` does Orbax write the metrics down, and know the best of a reopened
        # folder. (With `max_to_keep` in place of the policy it would drop the latest where its
        # score is poor, and a resumed run would go back in time.)
        best_fn=_step_if_best,
        cleanup_tmp_directories=True,
    )
    try:
        manager = ocp.CheckpointManager(folder, options=options)
        manager.latest_step()  # reads what each step says of itself
    except ValueError as error:
        raise _unreadable(folder, error) from error
    try:
        yield manager
        wait(manager)
    finally:
        # What failed in the background was raised by `save` or `wait`, and is raised here again.
        with contextlib.suppress(ValueError, OSError):
            manager.close()


def wait(manager: ocp.CheckpointManager) -> None:
    """Wait until the last save is whole; UserError where it failed."""
    with _failed_write(manager):
        manager.wait_until_finished()
        if jax.process_index() == 0:
            _record(pathlib.Path(manager.directory), manager.all_steps())


def _record(folder: pathlib.Path, steps: Iterable[int]) -> None:
    """Record the files of finished checkpoints in a manifest each."""
    for step in (folder / str(step) for step in steps):
        with contextlib.suppress(FileNotFoundError):  # one that is being removed
            if (step / MANIFEST).exists():
                continue
            files = [f"{path.relative_to(step)}" for path in step.rglob("*") if path.is_file()]
            if files:
                write_manifest(step, files, format=FORMAT)


def _verify(step: pathlib.Path) -> None:
    """UserError where a file is not as it was saved (unless a kill came before it was recorded)."""
    if (step / MANIFEST).exists():
        try:
            manifest = read_manifest(step, format=FORMAT)
            for name in manifest["files"]:
                verify(step, name, manifest)
        except UserError as error:
            raise _unreadable(step, error) from error


def _unreadable(step: pathlib.Path, reason: object) -> UserError:
    first_line = str(reason).split("\n")[0]
    return UserError(
        f"{step}: the checkpoint cannot be read ({first_line}); remove this folder to go on from "
        "an earlier one, or start anew with `--config.overwrite=True`"
    )


@contextlib.contextmanager
def _failed_write(manager: ocp.CheckpointManager) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:  # TensorStore tells of a full disk by a ValueError
        reason = str(error).split("\n")[0].rpartition(": ")[2]
        raise UserError(
            f"{manager.directory}: a checkpoint could not be written ({reason}); make room, and "
            "the same command goes on from the one before"
        ) from error


def _step_if_best(metrics: dict[str, int]) -> int:
    """Each new best has a higher step than the last, the others have 0."""
    return metrics["step_if_best"]


def save(
    manager: ocp.CheckpointManager, state: TrainState, stopping: EarlyStopping, *, best: bool
) -> None:
    """Save the state after step `state.step`; `best` where this step has the best score."""
    step = int(state.step)
    if step in manager.all_steps():
        return
    wait(manager)
    with _failed_write(manager):
        manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state._asdict()),
                stopping=ocp.args.JsonSave(dataclasses.asdict(stopping)),
            ),
            metrics={"step_if_best": step if best else 0},
        )


def restore(
    manager: ocp.CheckpointManager, like: TrainState, step: int
) -> tuple[TrainState, EarlyStopping]:
    """The state of `step`, with the shapes, types and shardings of `like` (arrays or abstract).

    UserError where it is damaged. Others are not looked at: a kill may have left one half removed.
    """
    folder = pathlib.Path(manager.directory, str(step))
    _verify(folder)
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
    try:
        found: Any = manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(target), stopping=ocp.args.JsonRestore()
            ),
        )
    except (ValueError, KeyError, OSError) as error:
        raise _unreadable(folder, error) from error
    return TrainState(**found["state"]), EarlyStopping(**found["stopping"])
