"""The whole state of a training, saved in the background: the latest and the best."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from qpr_jax.errors import UserError
from qpr_jax.files import Path
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.step import TrainState


@contextlib.contextmanager
def open_checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """A manager that keeps the latest checkpoint and the one saved last as the best.

    Saves run in the background; leaving the context waits for the last. A save that a kill cuts
    off is never taken for a checkpoint: Orbax renames it into place when it is whole.
    """
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
    manager = ocp.CheckpointManager(pathlib.Path(folder).absolute(), options=options)
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
    """The state of `step`, with the shapes, types and shardings of `like` (arrays or abstract)."""
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
    try:
        found: Any = manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(target), stopping=ocp.args.JsonRestore()
            ),
        )
    except (ValueError, KeyError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise UserError(
            f"{manager.directory}/{step}: the checkpoint cannot be read ({reason}); remove this "
            "folder to go on from an earlier one, or start anew with `--config.overwrite=True`"
        ) from error
    return TrainState(**found["state"]), EarlyStopping(**found["stopping"])
