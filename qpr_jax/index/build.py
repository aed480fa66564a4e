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
import io
import logging
import os
import pathlib
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

import faiss
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
from qpr_jax.index.questions import QuestionFiles, damaged
from qpr_jax.index.recipe import Recipe, check_recipe, padded_dimension
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


class Build(NamedTuple):
    """An open build: its manifest, and what is in its files."""

    manifest: dict[str, Any]
    questions: QuestionFiles
    vectors: Vectors


def new_build() -> str:
    """Return a name that no build had."""
    return secrets.token_hex(8)


def write_build(
    folder: pathlib.Path,
    given: Iterable[Question],
    encode: Encode,
    recipe: Recipe,
    *,
    encoder: str,
    dimension: int,
    codes: Vectors | None = None,
    next_id: int = 0,
    export: Callable[[str], str] = lambda build: "",
) -> None:
    """Write a build, and the manifest that names it.

    The caller holds the lock of the folder. A failure leaves the build that was there.

    Args:
      encode: texts to float32 [n, d]; called with all texts, in their order.
      codes: has the codes of these very vectors, which are then not made again.
      next_id: at least this is the next id.
      export: called with the name of the build before the manifest is written; returns the name of
        the folder of the encoder.
    """
    check_recipe(recipe, dimension)
    build = new_build()
    paths = _paths(folder, build)
    try:
        with name_in_errors(folder):
            files = paths["questions"], paths["changes"]
            count, following = questions.write_questions(*files, given)
            stored = QuestionFiles(*files, dimension)
            array = _write_vectors(paths["vectors"], stored, encode, (count, dimension), recipe)
            codes = codes or Vectors.build(recipe, array)
            written = [paths["vectors"].name, paths["questions"].name]
            if codes.codes is not None:
                _write(paths["codes"], faiss.serialize_index(codes.codes))
                written.append(paths["codes"].name)
            facts = {
                "format": FORMAT,
                "build": build,
                "encoder": encoder,
                "recipe": asdict(recipe),
                "factory": codes.factory,
                "count": count,
                "dimension": dimension,
                "next_id": max(next_id, following),
                "recall@10": (recall := codes.recall()),
                "export": export(build),
                "files": file_entries(folder, written),
            }
            write_json(folder / MANIFEST, seal(facts))
    except BaseException:
        remove_leftovers(folder, build)
        raise
    log.info("index: %s, %s questions, recall@10 %.3f", codes.factory, f"{count:,}", recall)
    if recall < GOOD_RECALL:
        log.warning("recall@10 is %.3f; raise `probes` to find more, at the cost of time", recall)
    remove_leftovers(folder)


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
            raise damaged(error.filename, "the file is missing") from None


def read_index_manifest(folder: pathlib.Path) -> dict[str, Any]:
    """Read the manifest of an index; UserError if it is none of this format, or damaged."""
    manifest = read_manifest(folder, format=FORMAT)
    for name, kind in _FACTS.items():
        if type(manifest.get(name)) is not kind:
            what = f"expected {kind.__name__} as `{name}`, got {manifest.get(name)!r:.80}"
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


def _paths(folder: pathlib.Path, build: str) -> dict[str, pathlib.Path]:
    return {
        "vectors": folder / f"vectors-{build}.npy",
        "codes": folder / f"codes-{build}.faiss",
        "questions": folder / f"questions-{build}.sqlite",
        "changes": folder / f"changes-{build}.sqlite",
    }


def _write_vectors(
    path: pathlib.Path,
    stored: QuestionFiles,
    encode: Encode,
    shape: tuple[int, int],
    recipe: Recipe,
) -> np.ndarray:
    """Write the vectors of all questions and return them memory-mapped."""
    with open(path, "wb") as file, progress.bar("vectors", shape[0]) as show:
        file.write(_header(shape, recipe))
        for rows in questions.batches(shape[0], _CHUNK):
            vectors = encode(stored.texts(rows))
            if vectors.shape != (len(rows), shape[1]) or not np.isfinite(vectors).all():
                raise UserError(
                    f"expected {len(rows)} finite vectors of {shape[1]} numbers from the encoder, "
                    "got others"
                )
            file.write(np.ascontiguousarray(vectors, recipe.vectors).data)
            show(rows.stop, "")
        file.flush()
        os.fsync(file.fileno())
    return _read_vectors(path, shape, recipe)


def _write(path: pathlib.Path, data: np.ndarray) -> None:
    with name_in_errors(path), open(path, "wb") as file:
        file.write(data.data)
        file.flush()
        os.fsync(file.fileno())


def _open(folder: pathlib.Path, manifest: dict[str, Any]) -> Build:
    paths, files = _paths(folder, manifest["build"]), manifest["files"]
    shape = manifest["count"], manifest["dimension"]
    try:
        recipe = Recipe(**manifest["recipe"])
        check_recipe(recipe, shape[1])
        width = padded_dimension(manifest["factory"], shape[1])
    except (TypeError, UserError) as error:
        raise damaged(folder / MANIFEST, str(error)) from None
    for kind in ("vectors", "questions"):
        if paths[kind].name not in files:
            raise damaged(folder / MANIFEST, f"no entry for {paths[kind].name}")
    for path in (*(folder / name for name in files), paths["changes"]):
        if path.name in files:
            check_size(folder, path.name, manifest)
        if not stat.S_ISREG(path.lstat().st_mode):
            raise damaged(path, "it is not a plain file")
    codes = None
    if paths["codes"].name in files:
        verify(folder, paths["codes"].name, manifest)
        codes = _read_codes(paths["codes"], shape[0], width)
    array = _read_vectors(paths["vectors"], shape, recipe)
    stored = QuestionFiles(paths["questions"], paths["changes"], shape[1])
    return Build(manifest, stored, Vectors(recipe, manifest["factory"], array, codes))


def _read_vectors(path: pathlib.Path, shape: tuple[int, int], recipe: Recipe) -> np.ndarray:
    header = _header(shape, recipe)
    try:
        with open(path, "rb") as file:
            if file.read(len(header)) == header:
                return np.memmap(file, recipe.vectors, "r", len(header), shape).view(np.ndarray)
    except ValueError:  # the file is too short
        pass
    raise damaged(path, f"expected vectors {recipe.vectors} {list(shape)}, got others")


def _header(shape: tuple[int, int], recipe: Recipe) -> bytes:
    """Return how a .npy file begins."""
    file, kind = io.BytesIO(), np.dtype(recipe.vectors)
    facts = {"descr": kind.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, facts)
    return file.getvalue()


def _read_codes(path: pathlib.Path, count: int, width: int) -> faiss.Index:
    try:
        codes = faiss.read_index(str(path))
    except (RuntimeError, MemoryError, OverflowError, ValueError) as error:
        raise damaged(path, str(error).splitlines()[0]) from None
    known = isinstance(codes, faiss.IndexIVF | faiss.IndexHNSW)
    if not known or codes.ntotal != count or codes.d != width or not codes.is_trained:
        raise damaged(path, f"expected codes of {count:,} vectors, got others")
    return codes
