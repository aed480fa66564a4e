"""Checkpoints of the whole training state, saved in the background and verified when read."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, StrPath, read_manifest, verify, write_manifest
from qpr_jax.training.distributed import broadcast_from_first
from qpr_jax.training.early_stopping import EarlyStopping

log = logging.getLogger(__name__)

FORMAT = "qpr_jax checkpoint 1"
# Orbax writes these two after the manifest; restoring reads neither.
_UNVERIFIED = {"_CHECKPOINT_METADATA", "commit_success.txt"}
# Each of several devices has the whole state, and one writes it. Orbax would cut every array into a
# part for each device, and compile every cut.
_ARRAYS = ocp.type_handlers.create_type_handler_registry(
    (jax.Array, ocp.type_handlers.ArrayHandler(use_replica_parallel=False))
)


class State(Protocol):
    """A named tuple of all that a step changes, with the `step`s done, int32 []."""

    @property
    def step(self) -> Any: ...  # noqa: D102
    def _asdict(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=State)


@dataclasses.dataclass
class _KeepBest:
    """The preservation policy of the checkpoint of the best step."""

    step: int = 0

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        return [checkpoint.step == self.step for checkpoint in checkpoints]


class Checkpoints:
    """The checkpoints of one run: that of the latest step and that of the best.

    Each holds a manifest with the SHA-256 of its files, which is written in the background before
    Orbax renames the checkpoint into place. So a kill leaves either no checkpoint or a whole one.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._saving = 0  # the step of the last save
        self._best = _KeepBest()
        kept = policies.AnyPreservationPolicy([policies.LatestN(1), self._best])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=kept,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._write_manifest),
            cleanup_tmp_directories=True,
            lightweight_initialize=True,  # reads no file whose hash is not checked
        )
        handlers = {
            "state": ocp.PyTreeCheckpointHandler(type_handler_registry=_ARRAYS),
            "stopping": ocp.JsonCheckpointHandler(),
        }
        self._manager = ocp.CheckpointManager(folder, options=options, item_handlers=handlers)

    @property
    def steps(self) -> list[int]:
        """The steps with a checkpoint, ascending; one may still be being written."""
        return sorted(self._manager.all_steps())

    def save(self, state: State, stopping: EarlyStopping) -> None:
        """Start to save the state after step `state.step`, unless it is saved already.

        Then all checkpoints but this one and that of `stopping.best_step` are removed. UserError if
        the previous save failed.
        """
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        self.wait()
        self._saving, self._best.step = step, stopping.best_step
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(state._asdict()),
            stopping=ocp.args.JsonSave(dataclasses.asdict(stopping)),
        )
        with self._failed_write():
            self._manager.save(step, args=args)

    def wait(self) -> None:
        """Wait until the last save is finished. Raises UserError if it failed."""
        with self._failed_write():
            self._manager.wait_until_finished()

    def restore(self, like: S, step: int) -> tuple[S, EarlyStopping]:
        """Read and verify the checkpoint of `step`, one of `steps`.

        `like` has the shapes, types and shardings to restore to. UserError if the checkpoint is
        damaged, or of another model.
        """
        folder = self._folder / str(step)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
        try:
            _verify(folder)
            restored = ocp.checkpoint_utils.construct_restore_args(target)
            args = ocp.args.Composite(
                state=ocp.args.PyTreeRestore(target, restore_args=restored),
                stopping=ocp.args.JsonRestore(),
            )
            saved: Any = self._manager.restore(step, args=args)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"{folder}: expected a checkpoint of this run, got {_reason(error)}",
                remedy="start again with `--overwrite`",
            ) from error
        return type(like)(**saved["state"]), EarlyStopping(**saved["stopping"])

    def close(self) -> None:
        """Stop the background threads, after the last save."""
        # `save` and `wait` have raised what failed; Orbax raises it here once more.
        with contextlib.suppress(ValueError, OSError):
            self._manager.close()

    def _write_manifest(self) -> None:
        """Hash the files of the checkpoint being saved, in Orbax's thread of the first process."""
        suffix = ocp.path.atomicity_types.TMP_DIR_SUFFIX
        (folder,) = self._folder.glob(f"{self._saving}{suffix}*")
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        names = sorted(files - _UNVERIFIED)
        write_manifest(folder, names, format=FORMAT, best_step=self._best.step)

    @contextlib.contextmanager
    def _failed_write(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:  # a ValueError if TensorStore finds the disk full
            raise UserError(
                f"{self._folder / str(self._saving)}: cannot write the checkpoint "
                f"({_reason(error)})",
                remedy="make room, then run the same command again, which resumes from the "
                "checkpoint before",
            ) from error


@contextlib.contextmanager
def open_checkpoints(folder: StrPath) -> Iterator[Checkpoints]:
    """Open the checkpoints of a run; leaving the context waits for the last save.

    If the latest checkpoint is damaged or has no manifest, it is removed and the one before it
    becomes the latest, with a line in the log. UserError if there are checkpoints but none is
    whole.
    """
    folder = pathlib.Path(folder).absolute()
    broadcast_from_first(lambda: _remove_damaged(folder))
    with _orbax_silenced():
        manager = Checkpoints(folder)
        try:
            yield manager
            manager.wait()
        finally:
            manager.close()


def _remove_damaged(folder: pathlib.Path) -> None:
    """Remove the checkpoints after the newest that is whole, together with its best one."""
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    steps = sorted((int(name) for name in names if name.isdecimal()), reverse=True)
    damage: dict[int, str] = {}
    for step in steps:
        try:
            best = _verify(folder / str(step))
            if best not in (0, step):
                _verify(folder / str(best))
        except (UserError, NotADirectoryError) as error:
            damage[step] = _reason(error)
        else:
            break
    else:
        if damage:
            raise UserError(
                f"{folder}: expected a whole checkpoint, got none ({damage[steps[0]]})",
                remedy="start again with `--overwrite`",
            )
        return
    for damaged, reason in damage.items():
        shutil.rmtree(folder / str(damaged))
        log.warning(
            "removed the damaged checkpoint of step %d (%s); continuing from that of step %d",
            *(damaged, reason, step),
        )


def _verify(folder: pathlib.Path) -> int:
    """Return the best step of a checkpoint; UserError if one of its files is damaged."""
    manifest = read_manifest(folder, format=FORMAT)
    for name in manifest["files"]:
        verify(folder, name, manifest)
    best = manifest.get("best_step")
    if type(best) is not int:
        raise UserError(f"{folder / MANIFEST}: expected a whole number `best_step`, got {best!r}")
    return best


def _reason(error: Exception) -> str:
    """What went wrong, in a few words, without a remedy."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    if isinstance(error, UserError):
        return error.what.partition("; ")[0]
    # TensorStore puts the cause last: "...: No space left on device [os_error_code='28']".
    line = str(error).split("\n")[0]
    return line.rpartition(": ")[2].partition(" [os_error")[0] if "[os_error" in line else line


@contextlib.contextmanager
def _orbax_silenced() -> Iterator[None]:
    """Drop what Orbax prints of a failed save: pages of tracebacks, and `wait` raises it too."""

    def keep(record: logging.LogRecord) -> bool:
        return "orbax" not in pathlib.PurePath(record.pathname).parts

    def hook(unraisable: Any) -> None:
        # TensorStore's threads report a second failed write to the closed event loop of the first.
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    logger, before = logging.getLogger("absl"), sys.unraisablehook
    logger.addFilter(keep)
    sys.unraisablehook = hook
    try:
        yield
    finally:
        logger.removeFilter(keep)
        sys.unraisablehook = before
