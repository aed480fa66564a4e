"""The work directory of one run: locked while in use, refused to other settings."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from qpr_jax.errors import UserError
from qpr_jax.files import StrPath, locked, read_object, write_json

RUN_FILE = "run.json"
FORMAT = 1  # of run.json
_PREPARED = ("splits", "clusters")  # what a run writes before its first step
# What `overwrite` removes. The first two mark what is finished, so that a kill leaves a whole run.
# The last two are left by a kill: files and folders that are renamed when they are whole.
_OUTPUTS = (
    "report.json",
    "export",
    *_PREPARED,
    "checkpoints",
    "evaluations.jsonl",
    "index",
    "metrics.jsonl",
    "ranks.npz",
    "report.md",
    "tensorboard",
    ".*.part",
    ".*.old",
)


@contextlib.contextmanager
def open_workdir(
    workdir: StrPath, run: dict[str, Any], *, overwrite: bool = False
) -> Iterator[pathlib.Path]:
    """Lock `workdir`, a folder made if it is missing, and write there what identifies the run.

    `overwrite` removes a run that is there. UserError where the folder holds a run with other
    settings, or files that are not of a run, or another process uses it.
    """
    run, folder = {"format": FORMAT} | run, pathlib.Path(workdir)
    if not str(workdir) or (folder.exists() and not folder.is_dir()):
        raise UserError(f"expected a folder, got {str(workdir)!r}", setting="workdir")
    with locked(folder / ".lock", busy=f"{folder}: another process works in this folder"):
        if not (folder / RUN_FILE).exists():
            if foreign := _names(folder):
                what = f"expected an empty folder or a run, found {foreign[0]!r} and no {RUN_FILE}"
                raise UserError(f"{folder}: {what}", remedy="give another work directory")
        elif overwrite:
            _remove_run(folder)
        else:
            known = read_object(folder / RUN_FILE)
            differences = [
                f"{name}: {known.get(name, '(none)')!r} there, {run.get(name, '(none)')!r} here"
                for name in sorted(known.keys() | run.keys())
                if known.get(name) != run.get(name)
            ]
            if differences:
                what = f"{folder} holds a run with other settings: {', '.join(differences)}"
                remedy = "use those, or another work directory, or replace it with `--overwrite`"
                raise UserError(what, remedy=remedy)
        write_json(folder / RUN_FILE, run)
        try:
            yield folder
        except UserError:
            # Nothing was trained yet, so the next command may have other settings.
            if {*_names(folder)} <= {RUN_FILE, *_PREPARED}:
                _remove_run(folder)
                (folder / RUN_FILE).unlink()
            raise


def _names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def _remove_run(folder: pathlib.Path) -> None:
    for pattern in _OUTPUTS:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
