"""The files of an index folder: written whole, named by a manifest that is replaced last.

    manifest.json           format, encoder, recipe, build; size and SHA-256 of the files below
    vectors-BUILD.npy       float32 or float16 [n, d], memory-mapped
    codes-BUILD.faiss       what FAISS searches for candidates; none for `Flat`
    questions-BUILD.sqlite  the questions of the build
    changes-BUILD.sqlite    what was added and removed since, in no manifest

BUILD is drawn for each build, so a file that another process has open is never overwritten: it is
replaced by one of another name, and unlinked. Overwriting or truncating a mapped file by hand ends
the processes that read it.
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from qpr_jax import progress
from qpr_jax.errors import UserError
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    check_size,
    file_entries,
    name_in_errors,
    read_manifest,
    seal,
    verify,
    write_json,
)
from qpr_jax.index import questions
from qpr_jax.index.base import Question
from qpr_jax.index.questions import QuestionFiles
from qpr_jax.index.recipe import Recipe, check_recipe, padded_dimension
from qpr_jax.index.vector_files import read_codes, read_vectors, write_codes, write_vectors
from qpr_jax.index.vectors import Vectors

log = logging.getLogger(__name__)

FORMAT = "qpr_jax index 1"
GOOD_RECALL = 0.9
_CHUNK = 16_384  # questions that are encoded at once
_REMEDY = "restore the folder, or build the index again"
_FILES = re.compile(
    r"\.?(?:vectors|codes|questions|changes)-([0-9a-f]{16})\.\w+(?:-journal|\.part)?"
)
_EXPORTS = re.compile(r"export-[0-9a-f]{16}|\.export(?:-[0-9a-f]{16})?\.(?:part|old)")
_BUILD = re.compile("[0-9a-f]{16}")
# Types of the facts of a manifest.
_FACTS = {
    "build": str,
    "encoder": str,
    "export": str,
    "factory": str,
    "recipe": dict,
    "count": int,
    "dimension": int,
    "next_id": int,
    "recall@10": float,
}

Encode = Callable[[list[str]], np.ndarray]
# From the texts of a range of rows, and the number of rows, to their vectors, part by part.
VectorsOf = Callable[[Callable[[range], list[str]], int], Iterator[np.ndarray]]


class Build(NamedTuple):
    """An open build: its manifest, and what is in its files."""

    manifest: dict[str, Any]
    questions: QuestionFiles
    vectors: Vectors


def new_build() -> str:
    """Return a name that no build had."""
    return secrets.token_hex(8)


def encoded(encode: Encode) -> VectorsOf:
    """Return vectors that an encoder makes of the texts, with a progress bar."""

    def vectors(texts: Callable[[range], list[str]], count: int) -> Iterator[np.ndarray]:
        with progress.bar("encoded", count) as show:
            for rows in questions.batches(count, _CHUNK):
                yield encode(texts(rows))
                show(rows.stop, "")

    return vectors


def write_build(
    folder: pathlib.Path,
    build: str,
    given: Iterable[Question],
    vectors_of: VectorsOf,
    recipe: Recipe,
    *,
    encoder: str,
    dimension: int,
    codes: Vectors | None = None,
    next_id: int = 0,
    export: Callable[[str], str] = lambda build: "",
) -> dict[str, Any]:
    """Write a build and the manifest that names it, and return the manifest.

    The caller holds the lock of the folder. A failure leaves the build that was there.

    Args:
      codes: has the codes of these very vectors, which are then not made again.
      next_id: at least this is the next id.
      export: called with the name of the build before the manifest is written; returns the name of
        the folder of the encoder.
    """
    check_recipe(recipe, dimension)
    paths = {kind: folder / name for kind, name in _names(build).items()}
    try:
        with name_in_errors(folder):
            files = paths["questions"], paths["changes"]
            count, following = questions.write_questions(*files, given)
            stored = QuestionFiles(*files, dimension)
            parts = vectors_of(stored.texts, count)
            array = write_vectors(paths["vectors"], parts, count, dimension, recipe.vectors)
            if codes is None:
                codes = Vectors.build(recipe, array)
            kinds = ["vectors", "questions"]
            if codes.codes is not None:
                write_codes(paths["codes"], codes.codes)
                kinds.append("codes")
            facts = {
                "format": FORMAT,
                "build": build,
                "encoder": encoder,
                "recipe": asdict(recipe),
                "factory": codes.factory,
                "count": count,
                "dimension": dimension,
                "next_id": max(next_id, following),
                "recall@10": codes.recall(),
                "export": export(build),
                "files": file_entries(folder, [paths[kind].name for kind in kinds]),
            }
            write_json(folder / MANIFEST, seal(facts))
    except BaseException:
        remove_leftovers(folder, build)
        raise
    _log_build(facts)
    remove_leftovers(folder)
    return facts


def open_build(folder: pathlib.Path) -> Build:
    """Open the build that the manifest names; UserError if it is incomplete or damaged.

    Codes and small files are read and compared with their SHA-256; of vectors and questions the
    size is checked, and `verify_build` reads them.
    """
    while True:
        manifest = read_index_manifest(folder)
        try:
            return _open(folder, manifest)
        except (UserError, FileNotFoundError) as error:
            # Another process may have replaced the build.
            if read_index_manifest(folder)["build"] != manifest["build"]:
                continue
            if isinstance(error, UserError):
                raise
            raise UserError(f"{error.filename}: the file is missing", remedy=_REMEDY) from None


def read_index_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Read the manifest of an index; UserError if it is none of this format, or damaged."""
    manifest = read_manifest(folder, format=FORMAT)
    for name, kind in _FACTS.items():
        if type(manifest.get(name)) is not kind:
            what = f"expected {kind.__name__} as `{name}`, got {manifest.get(name)!r:.80}"
            raise UserError(f"{folder / MANIFEST}: {what}", remedy=_REMEDY)
    if not _BUILD.fullmatch(manifest["build"]) or not 0 <= manifest["count"] < 2**40:
        what = f"got the build {manifest['build']!r:.80} of {manifest['count']} questions"
        raise UserError(f"{folder / MANIFEST}: {what}", remedy=_REMEDY)
    return manifest


def verify_build(folder: StrPath) -> None:
    """Compare all files of a build with their SHA-256; UserError for the first that differs."""
    manifest = read_index_manifest(pathlib.Path(folder))
    for name in manifest["files"]:
        verify(folder, name, manifest)


def replace_encoder(folder: pathlib.Path, encoder: str, export: str) -> None:
    """Name another encoder in the manifest, whose vectors are those of the former.

    The caller holds the lock of the folder. encoder: its identity. export: its folder's name.
    """
    manifest = read_index_manifest(folder)
    write_json(folder / MANIFEST, seal(manifest | {"encoder": encoder, "export": export}))
    remove_leftovers(folder)


def remove_leftovers(folder: pathlib.Path, failed: str = "") -> None:
    """Remove files of builds that the manifest does not name, and encoders beside the folder.

    The caller holds the lock of the folder. Without a whole manifest only the files of the `failed`
    build go: the others may be all that is left of an index.
    """
    build, export = "", ""
    with contextlib.suppress(UserError, OSError):
        manifest = read_index_manifest(folder)
        build, export = manifest["build"], manifest["export"]
    for path in folder.iterdir():
        match = _FILES.fullmatch(path.name)
        if match and match[1] != build and (build or match[1] == failed):
            path.unlink(missing_ok=True)
    for path in folder.parent.iterdir() if build else ():
        if _EXPORTS.fullmatch(path.name) and path.name != export:
            shutil.rmtree(path, ignore_errors=True)


def _names(build: str) -> dict[str, str]:
    return {
        "vectors": f"vectors-{build}.npy",
        "codes": f"codes-{build}.faiss",
        "questions": f"questions-{build}.sqlite",
        "changes": f"changes-{build}.sqlite",
    }


def _open(folder: pathlib.Path, manifest: dict[str, Any]) -> Build:
    names = _names(manifest["build"])
    count, dimension = manifest["count"], manifest["dimension"]
    try:
        recipe = Recipe(**manifest["recipe"])
        check_recipe(recipe, dimension)
        width = padded_dimension(manifest["factory"], dimension)
    except (TypeError, UserError) as error:
        raise UserError(f"{folder / MANIFEST}: {error}", remedy=_REMEDY) from None
    for name in manifest["files"]:
        check_size(folder, name, manifest)
    for name in (*manifest["files"], names["changes"]):
        if not stat.S_ISREG((folder / name).lstat().st_mode):
            raise UserError(f"{folder / name}: expected a plain file, got another", remedy=_REMEDY)
    for kind in ("vectors", "questions"):
        if names[kind] not in manifest["files"]:
            raise UserError(f"{folder / MANIFEST}: no entry for {names[kind]}", remedy=_REMEDY)
    codes = None
    if names["codes"] in manifest["files"]:
        verify(folder, names["codes"], manifest)
        codes = read_codes(folder / names["codes"], count, width)
    array = read_vectors(folder / names["vectors"], (count, dimension), recipe.vectors)
    return Build(
        manifest,
        QuestionFiles(folder / names["questions"], folder / names["changes"], dimension),
        Vectors(recipe, manifest["factory"], array, codes),
    )


def _log_build(facts: dict[str, Any]) -> None:
    factory, recall = facts["factory"], facts["recall@10"]
    log.info("index: %s, %s questions, recall@10 %.3f", factory, f"{facts['count']:,}", recall)
    if recall < GOOD_RECALL:
        log.warning("recall@10 is %.3f; raise `probes` to find more, at the cost of time", recall)
