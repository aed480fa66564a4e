"""Find data: at a path, in the data folder or the cache, at Quora's address, or in the package."""

from __future__ import annotations

import http.client
import importlib.resources
import logging
import os
import pathlib
import urllib.error
import urllib.request

from qpr_jax import kinds, progress
from qpr_jax.errors import UserError, similar_path
from qpr_jax.files import StrPath, refuse_existing, replace_folder, user_cache, write_atomically

log = logging.getLogger("qpr_jax")

NAME = "quora_duplicate_questions.tsv"
ADDRESS = "http://qim.fs.quoracdn.net/quora_duplicate_questions.tsv"
SIZE = 58_176_133  # bytes of the official file
TIMEOUT = 30.0  # seconds without an answer


def find_quora(path: str = "") -> pathlib.Path:
    """Return `path`, or else the pair file in `$QPR_DATA_DIR` or the cache, or download it there.

    The cache is `$XDG_CACHE_HOME/qpr_jax` (`~/.cache/qpr_jax`).
    """
    if path:
        file = pathlib.Path(path)
        if not file.exists():
            what = f"expected a file of question pairs, found none at {path}{similar_path(path)}"
            raise UserError(what, setting="data.path", remedy="name a file or a folder")
        kinds.refuse_kind(file, kinds.LABELS, kinds.TABLE, kinds.PACKED)
        return file
    folder, cached = os.environ.get("QPR_DATA_DIR"), user_cache() / NAME
    if folder and (found := pathlib.Path(folder, "quora", NAME)).is_file():
        return found
    if cached.is_file():
        return cached
    log.info("downloading %s to %s", ADDRESS, cached)
    try:
        _download(cached)
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        what = f"expected a pair file at $QPR_DATA_DIR/quora/{NAME} or {cached}, got none, and the "
        what += f"download from {ADDRESS} failed ({error})"
        remedy = "put the file there, name it with `data.path`, or use "
        remedy += "`data.source=synthetic`, which needs none"
        raise UserError(what, remedy=remedy) from error
    return cached


def find_logs(path: str = "") -> pathlib.Path:
    """Return logs of questions and answers: `path` (file or folder), else $QPR_DATA_DIR/qa_logs."""
    folder = os.environ.get("QPR_DATA_DIR")
    found = pathlib.Path(path) if path else pathlib.Path(folder or ".", "qa_logs")
    if not found.exists():
        what = f"expected logs of questions and answers, found none at {found}"
        remedy = "name a file or folder of them, or a folder that `qpr clusters` made, or set "
        remedy += "$QPR_DATA_DIR to the folder that contains qa_logs/"
        raise UserError(what, setting="data.path", remedy=remedy)
    return found


def write_sample(folder: StrPath) -> dict[str, int]:
    """Write questions to the help desk of a shop to a new folder; return the rows of each file.

    questions.csv: `id,question,product,date`. queries.csv: `question,id`, wordings that
    questions.csv lacks, a row for each question there that means the same. pairs.csv: labeled
    pairs, `question1,question2,is_duplicate`. logs.jsonl: questions with their answers.
    """
    refuse_existing(folder)
    counts = {}
    with replace_folder(folder) as part:
        for name in ("questions.csv", "queries.csv", "pairs.csv", "logs.jsonl"):
            data = importlib.resources.files("qpr_jax.data").joinpath("sample_files", name)
            (part / name).write_bytes(data.read_bytes())
            stem, _, kind = name.partition(".")
            counts[stem] = len(data.read_bytes().splitlines()) - (kind == "csv")
    return counts


def _download(path: pathlib.Path) -> None:
    """Download ADDRESS to `path`, whole or not at all; OSError or HTTPException on failure."""
    with urllib.request.urlopen(ADDRESS, timeout=TIMEOUT) as answer, write_atomically(path) as file:
        size = 0
        with progress.bar("byte", SIZE) as show:
            while size <= SIZE and (chunk := answer.read(1 << 18)):
                size += file.write(chunk)
                show(size, "")
        if size != SIZE:
            got = f"{size} bytes" if size < SIZE else "more"
            raise OSError(f"expected {SIZE} bytes, got {got}")
