"""The whole state of a training, saved in the background: the latest and the best."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from qpr_jax.errors import UserError
from qpr_jax.files import Path
from qpr_jax.training.early_stopping import EarlyStopping
from qpr_jax.training.step import TrainState

log = logging.getLogger(__name__)


@contextlib.contextmanager
def open_checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """A manager that keeps the latest checkpoint and the one saved last with a metric, the best.

    Saves run in the background; leaving the context waits for the last. A save that a kill cuts
    off is never taken for a checkpoint: Orbax renames it into place when it is whole.
    """
    import pathlib

    options = ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(
            [
                policies.LatestN(1),
                # The caller gives a metric only to a new best, so the best is the last of these.
                # (Orbax's `best_fn` with `max_to_keep` would drop the latest where its score is
                # poor, and a resumed run would go back in time.)
                policies.BestN(
                    get_metric_fn=lambda metrics: metrics["step"],
                    n=1,
                    keep_checkpoints_without_metrics=False,
                ),
            ]
        ),
        cleanup_tmp_directories=True,
    )
    manager = ocp.CheckpointManager(pathlib.Path(folder).absolute(), options=options)
    try:
        yield manager
        manager.wait_until_finished()
    finally:
        manager.close()


def save(
    manager: ocp.CheckpointManager, state: TrainState, stopping: EarlyStopping, *, best: bool
) -> None:
    """Save the state after step `state.step`; `best` where this step has the best score."""
    step = int(state.step)
    if step in manager.all_steps():
        return
    manager.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state._asdict()),
            stopping=ocp.args.JsonSave(dataclasses.asdict(stopping)),
        ),
        metrics={"step": step} if best else None,
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
