"""The files of an index folder, and those beside it.

    manifest.json           facts of the build; size and SHA-256 of the files below
    vectors-BUILD.npy       float32 or float16 [n t, d], memory-mapped: t texts of each question
    codes-BUILD.faiss       what FAISS searches for candidates; none for `Flat`
    questions-BUILD.sqlite  the questions of the build
    changes-BUILD.log       what was added and removed since, in no manifest

BUILD is drawn for each build, so a file that another process has open is never overwritten: the
manifest is replaced last, and the files that it no longer names are removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import faiss
import numpy as np

from qpr_jax import kinds
from qpr_jax.encoders.encoder import Encoder, npy_header, sync
from qpr_jax.encoders.load import PACKAGED, contains_encoder
from qpr_jax.errors import UserError, counted
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    check_size,
    name_in_errors,
    read_manifest,
    read_object,
    verify,
    write_manifest,
)
from qpr_jax.index import questions
from qpr_jax.index.changes import Changes
from qpr_jax.index.protocol import (
    IndexConfig,
    Question,
    SaveEncoder,
    check_index_config,
    cleaner_of,
    damaged,
    padded_dimension,
    texts_of,
)
from qpr_jax.index.questions import QuestionFile
from qpr_jax.index.vectors import Vectors, check_vectors, read_codes
from qpr_jax.running import progress
from qpr_jax.text.cleaning import Cleaner

log = logging.getLogger(__name__)

FORMAT = "qpr_jax index 1"
EXPORT, INDEX = "export", "index"  # folders of an encoder and of its index, side by side
_ENDINGS = {"vectors": "npy", "codes": "faiss", "questions": "sqlite", "changes": "log"}
_FACTS = dict.fromkeys(("build", "encoder", "factory", "export"), str) | {
    **dict.fromkeys(("count", "dimension", "next_id"), int),
    "recall@10": int | float,
}
GOOD_RECALL = 0.9
_CHUNK = 16_384  # questions that are read or encoded at once
_SAMPLE = 50_000  # questions in which shared sentences are looked for
_FILES = re.compile(r"(?:vectors|codes|questions|changes)-([0-9a-f]{16})\.\w+")
_EXPORTS = re.compile(r"export-[0-9a-f]{16}|\.export(?:-[0-9a-f]{16})?\.(?:part|old)")

Encode = Callable[[list[str]], np.ndarray]


def write_build(
    folder: pathlib.Path,
    indexed: Iterable[Question],
    encode: Encode,
    index_config: IndexConfig,
    *,
    encoder: str,
    dimension: int,
    codes: Vectors | None = None,
    next_id: int = 0,
    cleaner: Cleaner | None = None,
    export: Callable[[str], str] = lambda build: "",
) -> None:
    """Write a build, and the manifest that names it.

    The caller holds the lock of the folder. A failure leaves the build that was there.

    Args:
      encode: texts to float32 [n, d]; called with all texts, cleaned unless `cleaner` is given.
      codes: has the codes of these very vectors, which are then not made again.
      next_id: at least this is the next id.
      cleaner: that of the build before, whose vectors `encode` returns; None: of these texts.
      export: called with the name of the build before the manifest is written; returns the name of
        the folder of the encoder.
    """
    check_index_config(index_config, dimension)
    paths = _paths(folder, build := secrets.token_hex(8))
    try:
        with name_in_errors(folder):
            Changes.create(paths["changes"])
            texts = index_config.texts
            count, following = questions.write_questions(paths["questions"], indexed, texts)
            stored = QuestionFile(paths["questions"])
            if cleaner is None:
                cleaner = of_texts = _cleaner_of(stored, count, index_config)
                plain, encode = encode, lambda texts: plain(of_texts.clean_all(texts))
            shape = count * texts, dimension
            array = _write_vectors(paths["vectors"], stored, encode, shape, index_config)
            codes = codes or Vectors.build(index_config, array)
            if codes.codes is not None:
                with open(paths["codes"], "wb") as file:
                    file.write(faiss.serialize_index(codes.codes).data)
                    sync(file)
            written = [path.name for path in paths.values() if path.exists()]
            facts = {
                "format": FORMAT,
                "build": build,
                "encoder": encoder,
                "index_config": asdict(index_config),
                "factory": codes.factory,
                "count": count,
                "dimension": dimension,
                "next_id": max(next_id, following),
                "shared": cleaner.shared,
                "recall@10": (recall := codes.recall()),
                "export": export(build),
            }
            write_manifest(folder, {*written} - {paths["changes"].name}, **facts)
    except BaseException:
        remove_leftovers(folder, build)
        raise
    size = counted(count, "question")
    log.info("index: %s, %s, recall@10 %.3f", codes.factory, size, recall)
    if recall < GOOD_RECALL:
        log.warning("recall@10 is low; raise `nprobe` to find more, at the cost of time")
    remove_leftovers(folder)


def verify_build(folder: StrPath) -> None:
    """Compare all files of a build with their SHA-256; UserError for the first that differs."""
    manifest = read_manifest(folder, format=FORMAT)
    for name in manifest["files"]:
        verify(folder, name, manifest)


def remove_leftovers(folder: pathlib.Path, failed: str = "") -> None:
    """Remove files of builds that the manifest does not name, and encoders beside the folder.

    The caller holds the lock of the folder. Without a whole manifest only the files of the `failed`
    build go: the others may be all that is left of an index.
    """
    build, export = "", ""
    with contextlib.suppress(UserError, OSError):
        manifest = read_manifest(folder, format=FORMAT)
        build, export = manifest["build"], manifest["export"]
    for path in folder.iterdir():
        match = _FILES.fullmatch(path.name)
        if match and match[1] != build and (build or match[1] == failed):
            path.unlink(missing_ok=True)
    for path in folder.parent.iterdir() if build else ():
        if _EXPORTS.fullmatch(path.name) and path.name != export:
            shutil.rmtree(path, ignore_errors=True)


def _paths(folder: pathlib.Path, build: str) -> dict[str, pathlib.Path]:
    return {kind: folder / f"{kind}-{build}.{ending}" for kind, ending in _ENDINGS.items()}


def _cleaner_of(stored: QuestionFile, count: int, index_config: IndexConfig) -> Cleaner:
    """Return the cleaner of at most about `_SAMPLE` of the questions."""
    step = index_config.texts
    rows, sample = range(0, count * step, step * max(1, count // _SAMPLE)), list[Question]()
    for some in questions.batches(len(rows) if index_config.clean else 0, _CHUNK):
        sample += stored.get(rows[some.start : some.stop]).values()
    cleaner = cleaner_of(sample, index_config)
    if cleaner.shared:
        text = "shared sentences are not encoded: %d, such as %r"
        log.info(text, len(cleaner.shared), next(iter(cleaner.shared)))
    return cleaner


def _write_vectors(
    path: pathlib.Path,
    stored: QuestionFile,
    encode: Encode,
    shape: tuple[int, int],
    index_config: IndexConfig,
) -> np.ndarray:
    """Write the vectors of all texts; return them, memory-mapped."""
    step = index_config.texts
    with open(path, "wb") as file, progress("vectors", shape[0]) as show:
        file.write(npy_header(shape, index_config.vectors))
        for rows in questions.batches(shape[0], _CHUNK * step):
            found = stored.get(rows[::step])
            vectors = encode(texts_of((found[row] for row in rows[::step]), index_config))
            shape_now = len(rows), shape[1]
            check_vectors(vectors, shape_now, index_config.vectors, "vectors of the encoder")
            file.write(np.ascontiguousarray(vectors, index_config.vectors).data)
            show(rows.stop, "")
        sync(file)
    return _read_vectors(path, shape, index_config)


def _read_vectors(
    path: pathlib.Path, shape: tuple[int, int], index_config: IndexConfig
) -> np.ndarray:
    """Return the vectors, memory-mapped."""
    header = npy_header(shape, index_config.vectors)
    with contextlib.suppress(ValueError), open(path, "rb") as file:
        if file.read(len(header)) == header:
            return np.memmap(file, index_config.vectors, "r", len(header), shape).view(np.ndarray)
    raise damaged(path, f"expected vectors {index_config.vectors} {list(shape)}, got others")


def read_build(folder: pathlib.Path) -> tuple[dict[str, Any], QuestionFile, Changes, Vectors]:
    """Open the build that the manifest names, and the file of its changes.

    Codes and small files are compared with their SHA-256; of vectors and questions the size is
    checked, and `verify_build` reads them. UserError if a file is damaged.
    """
    manifest = read_manifest(folder, format=FORMAT)
    try:
        paths, files = _paths(folder, manifest["build"]), manifest["files"]
        shape = manifest["count"], manifest["dimension"]
        index_config = IndexConfig(**manifest["index_config"])
        texts, shape = index_config.texts, (shape[0] * index_config.texts, shape[1])
        check_index_config(index_config, shape[1])
        for fact, kind in _FACTS.items():
            if not isinstance(manifest[fact], kind):
                raise TypeError(f"`{fact}`: expected {kind}")
        dict(manifest["shared"] or {})
        width = padded_dimension(manifest["factory"], shape[1])
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise damaged(folder / MANIFEST, str(error)) from None
    for name in {*files, paths["vectors"].name, paths["questions"].name}:
        check_size(folder, name, manifest)
    codes = None
    if paths["codes"].name in files:
        verify(folder, paths["codes"].name, manifest)
        codes = read_codes(paths["codes"], shape[0], width)
    vectors = _read_vectors(paths["vectors"], shape, index_config)
    changes = Changes(paths["changes"], shape[1] * texts)
    searched = Vectors(index_config, manifest["factory"], vectors, codes)
    return manifest, QuestionFile(paths["questions"]), changes, searched


def index_manifest(folder: StrPath) -> dict[str, Any]:
    """Return the manifest of the index of a folder, not verified; empty if there is none."""
    return read_object(pathlib.Path(folder, INDEX, MANIFEST))


def exporter(
    folder: pathlib.Path, encoder: Encoder, save_encoder: SaveEncoder
) -> Callable[[str], str]:
    """Return what saves the encoder of a new build beside its index, and names its folder.

    The encoder of the present index stays until the new index is complete. UserError for a folder
    of another kind.
    """
    kinds.refuse_output(folder, kinds.INDEX, kinds.RUN, kinds.ENCODER)

    def export(build: str) -> str:
        try:
            present = index_manifest(folder).get("encoder", encoder.fingerprint)
        except UserError:  # a damaged manifest, whose encoder is kept
            present = ""
        has_it = present == encoder.fingerprint or contains_encoder(folder / EXPORT, encoder)
        name = EXPORT if has_it else f"{EXPORT}-{build}"
        save_encoder(folder / name)
        return name

    return export


def refuse_part(folder: pathlib.Path) -> None:
    """UserError if a folder is index/ itself."""
    if folder.name == INDEX and (folder / MANIFEST).exists():
        what = f"expected the folder of a run or of an index, got a part of it, {folder}"
        raise UserError(what, remedy=f"name the folder of this index: {folder.parent}")


def found_nothing(location: StrPath, wanted: str, other: str = "") -> UserError:
    """Return the error of a location where no index is, or no encoder, which may be a name.

    other: what else may have been there, as "an index or ".
    """
    is_encoder, name = wanted == kinds.ENCODER, os.fspath(location)
    near = kinds.similar_path(location, wanted, *PACKAGED if is_encoder else ())
    what = f"expected {other}{wanted}, found none at {location}{near}"
    remedy = kinds.instead(wanted)
    if is_encoder:
        what += ", nor one of this name in $QPR_MODELS or ~/.cache/qpr_jax/models"
    if is_encoder and (of_hub := re.fullmatch(r"(\w[\w.-]*/)?(\w[\w.-]*)", name)):
        address = f"hf://{of_hub[1] or 'sentence-transformers/'}{of_hub[2]}"
        remedy += f", or a model of the hub, as {address}"
    return UserError(what, remedy=remedy)
