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
from qpr_jax.training.step import TrainState

FORMAT = "qpr_jax checkpoint 1"


@contextlib.contextmanager
def open_checkpoints(folder: Path) -> Iterator[ocp.CheckpointManager]:
    """A manager that keeps the latest checkpoint and the one saved last as the best.

    Saves run in the background; leaving the context waits for the last. A save that a kill cuts
    off is never taken for a checkpoint: Orbax renames it into place when it is whole. UserError
    where a file is not as it was saved (unless a kill came before its hash was taken).
    """
    folder = pathlib.Path(folder).absolute()
    _verify(folder)
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
    manager = ocp.CheckpointManager(folder, options=options)
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
        if not (step / MANIFEST).exists():
            files = [f"{path.relative_to(step)}" for path in step.rglob("*") if path.is_file()]
            write_manifest(step, files, format=FORMAT)


def _verify(folder: pathlib.Path) -> None:
    for path in folder.glob(f"*/{MANIFEST}"):
        try:
            manifest = read_manifest(path.parent, format=FORMAT)
            for name in manifest["files"]:
                verify(path.parent, name, manifest)
        except UserError as error:
            raise _unreadable(path.parent, error) from error


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
        raise _unreadable(pathlib.Path(manager.directory, str(step)), error) from error
    return TrainState(**found["state"]), EarlyStopping(**found["stopping"])
