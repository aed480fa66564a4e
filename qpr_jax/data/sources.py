"""Where data comes from: a path, a data folder, a cache, or Quora's own address."""

from __future__ import annotations

import http.client
import os
import pathlib
import urllib.request
from collections.abc import Callable

from qpr_jax import progress
from qpr_jax.errors import UserError
from qpr_jax.files import user_cache, write_atomically

NAME = "quora_duplicate_questions.tsv"
ADDRESS = "http://qim.fs.quoracdn.net/quora_duplicate_questions.tsv"
SIZE = 58_176_133  # bytes of the official file
TIMEOUT = 30.0  # seconds without an answer

_CHUNK = 1 << 18


def find_quora(path: str = "", *, log: Callable[[str], object] = print) -> pathlib.Path:
    """The pair file: `path`, else in `$QPR_DATA_DIR`, else in the cache, else downloaded to it.

    The cache is `$XDG_CACHE_HOME/qpr_jax` (`~/.cache/qpr_jax`). Nothing is downloaded when a file
    is there. UserError where `path` is not a file, or where no file can be had.
    """
    if path:
        given = pathlib.Path(path).expanduser()
        if not given.is_file():
            raise UserError(f"`data.path`: expected a file of question pairs, got {path!r}")
        return given
    folder = os.environ.get("QPR_DATA_DIR")
    if folder and (found := pathlib.Path(folder) / "quora" / NAME).is_file():
        return found
    cached = user_cache() / NAME
    if cached.is_file():
        return cached
    log(f"downloading {ADDRESS} to {cached}")
    try:
        _download(cached)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"no pair file: expected `data.path`, or $QPR_DATA_DIR/quora/{NAME}, or {cached}, or "
            f"a download from {ADDRESS}, which failed ({error}); give one of the four, or run "
            "--config=synthetic_sdml, which needs no data"
        ) from error
    return cached


def find_questions(path: str) -> pathlib.Path:
    """The list of questions at `path`, a file of any kind that `data.questions` reads."""
    given = pathlib.Path(path).expanduser()
    if not path or not given.is_file():
        raise UserError(
            "`data.path`: expected a file of questions, a line each (or TSV, CSV, JSON lines), "
            f"got {path!r}; name it"
        )
    return given


def find_logs(path: str = "") -> pathlib.Path:
    """Logs of questions and answers: `path`, a file or a folder, else `$QPR_DATA_DIR`/qa_logs."""
    folder = os.environ.get("QPR_DATA_DIR")
    found = pathlib.Path(path).expanduser() if path else pathlib.Path(folder or ".", "qa_logs")
    if not found.exists():
        raise UserError(
            f"`data.path`: expected logs of questions and answers, found none at {found}; name a "
            "file or a folder of them, or one that `qpr clusters` made, or set $QPR_DATA_DIR to "
            "what holds qa_logs/"
        )
    return found


def _download(path: pathlib.Path) -> None:
    """Fetch ADDRESS to `path`, whole or not at all; OSError or HTTPException where that fails."""
    with (
        urllib.request.urlopen(ADDRESS, timeout=TIMEOUT) as answer,
        progress.bar("byte", SIZE) as show,
        write_atomically(path) as file,
    ):
        size = 0
        while size <= SIZE and (chunk := answer.read(_CHUNK)):
            file.write(chunk)
            size += len(chunk)
            show(size, "")
        if size != SIZE:
            got = f"{size} bytes" if size < SIZE else "more"
            raise OSError(f"expected {SIZE} bytes, got {got}")
