"""An index in a folder: every change is on disk before it counts, and nothing unverified is used.

    manifest.json           what there is: facts, and size and SHA-256 of each file; the only file
                            that is replaced, so a change has happened when it says so; `sha256` is
                            of all else that it says
    vectors-BUILD.faiss     as FAISS writes it
    texts-BUILD.bin         UTF-8 of all questions, one after the other
    offsets-BUILD.npy       where each begins, and the end
    ids-BUILD.npy           the id of each
    changes-BUILD.jsonl     {"id", "question"}: added or replaced since; {"id"}: removed

BUILD is drawn for each build and compaction, so a name never means another file. What stands in the
changes beyond the size in the manifest was never acknowledged, and is cut off before the next
change.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    check_digest,
    digest_of,
    file_entries,
    locked,
    read_json,
    read_manifest,
    verify,
    write_atomically,
    write_json,
)
from qpr_jax.index.faiss_index import SHARDS, Recipe
from qpr_jax.index.question_index import Encode, QuestionIndex, Rows
from qpr_jax.index.question_store import Texts, encoded

FORMAT = "qpr_jax index 4"
LOCK = ".lock"
SEAL = "sha256"
_FILES = {
    "vectors": "vectors-{}.faiss",
    "texts": "texts-{}.bin",
    "offsets": "offsets-{}.npy",
    "ids": "ids-{}.npy",
    "changes": "changes-{}.jsonl",
}
_OURS = re.compile(rf"\.?({'|'.join(_FILES)})-[0-9a-f]{{16}}\.\w+(\.part)?")
_AT_ONCE = 32_768  # changes that are encoded together


def only_writer(folder: StrPath) -> contextlib.AbstractContextManager[bool]:
    """Hold the folder's lock, after any other process that does."""
    return locked(pathlib.Path(folder, LOCK), wait=True)


class TextsWriter:
    """Questions and ids on their way to the files of a build. Needs `only_writer`."""

    def __init__(self, folder: StrPath, build: str) -> None:
        """What an unfinished build left in the folder is removed first."""
        self._folder, self._build = pathlib.Path(folder), build
        remove_others(self._folder)

    def write(self, entries: Iterable[tuple[int, str]]) -> tuple[Texts, np.ndarray]:
        """Write (id, question) of all to disk; texts and ids, mapped from there."""
        lengths, ids = array.array("q", [0]), array.array("q")
        with write_atomically(self._path("texts")) as file:
            for value, question in entries:
                data = encoded(question)
                file.write(data)
                lengths.append(len(data))
                ids.append(value)
        offsets = np.cumsum(np.frombuffer(lengths, np.int64))
        for name, values in (("offsets", offsets), ("ids", np.array(ids, np.int64))):
            with write_atomically(self._path(name)) as file:
                np.save(file, values, allow_pickle=False)
        return _map_texts(self._path("texts"), self._path("offsets")), np.load(self._path("ids"))

    def _path(self, kind: str) -> pathlib.Path:
        return self._folder / _FILES[kind].format(self._build)


def new_build() -> str:
    """A name that no build had."""
    return secrets.token_hex(8)


def remove_others(folder: pathlib.Path) -> None:
    """Remove what builds left in the folder that its manifest does not name, if it has one."""
    kept: set[str] = set()
    if (folder / MANIFEST).exists():
        kept = {*read_json(folder / MANIFEST).get("files", {})}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(SHARDS) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif _OURS.fullmatch(path.name) and path.name not in kept:
            path.unlink()


@contextlib.contextmanager
def nothing_left(folder: StrPath) -> Iterator[None]:
    """Remove what a build in the block leaves in the folder when it fails."""
    try:
        yield
    except BaseException:
        remove_others(pathlib.Path(folder))
        raise


def write_store(folder: StrPath, index: QuestionIndex, build: str, export: str) -> dict[str, Any]:
    """Write what `TextsWriter` has not, then the manifest, then remove all older files.

    Needs `only_writer`. export: the name of the encoder's folder, beside this one. Returns the
    manifest.
    """
    folder = pathlib.Path(folder)
    rows = index.rows
    if rows.changed:
        raise ValueError("an index that was changed since it was built must be compacted first")
    names = {kind: name.format(build) for kind, name in _FILES.items()}
    with write_atomically(folder / names["vectors"]) as file:
        faiss.write_index(rows.vectors, faiss.PyCallbackIOWriter(file.write))
    with write_atomically(folder / names["changes"]):
        pass
    manifest = {
        "format": FORMAT,
        "build": build,
        "export": export,
        "factory": rows.recipe.factory,
        "wanted_factory": index.wanted.factory,
        "metric": rows.recipe.metric,
        "probes": rows.recipe.probes,
        "assignments": rows.recipe.assignments,
        "wanted_assignments": index.wanted.assignments,
        "count": rows.count,
        "dimension": index.dimension,
        "recall@10": rows.recall,
        "next_id": index.next_id,
        "encoder": index.encoder,
        "files": file_entries(folder, names.values()),
    }
    manifest = sealed(manifest)
    write_json(folder / MANIFEST, manifest)
    remove_others(folder)
    return manifest


class Store:
    """The folder of an index, as this process last saw it. Changes need `only_writer`."""

    def __init__(self, folder: StrPath, manifest: dict[str, Any]) -> None:
        # A relative one would mean another after a change of the working directory.
        self.folder, self.manifest = pathlib.Path(folder).absolute(), manifest
        # Of the file of changes, and the entry that it belongs to.
        self._digest, self._digested = hashlib.sha256(), {"bytes": 0, "sha256": ""}

    @contextlib.contextmanager
    def change(
        self, ids: Sequence[int], questions: Sequence[str] | None, next_id: int
    ) -> Iterator[None]:
        """Record that questions are put, or, without them, that ids are removed.

        The change is on disk when this yields; when it raises before, nothing has changed. It
        counts as seen when the block ends, else `catch_up` makes it.
        """
        name = _FILES["changes"].format(self.manifest["build"])
        entry = self.manifest["files"][name]
        size = entry["bytes"]
        lines = (
            [json.dumps({"id": i}) for i in ids]
            if questions is None
            # ASCII, so that a lone surrogate (any string is a question) survives the file.
            else [json.dumps({"id": i, "question": q}) for i, q in zip(ids, questions, strict=True)]
        )
        data = "".join(f"{line}\n" for line in lines).encode("ascii")
        with open(self.folder / name, "r+b") as file:
            if self._digested != entry:
                self._digest = digest_of(file, size)
                check_digest(self.folder / name, self._digest.hexdigest(), entry)
            digest = self._digest.copy()
            digest.update(data)
            file.truncate(size)
            file.seek(size)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        entry = {"bytes": size + len(data), "sha256": digest.hexdigest()}
        files = self.manifest["files"] | {name: entry}
        changed = sealed(self.manifest | {"next_id": next_id, "files": files})
        write_json(self.folder / MANIFEST, changed)
        yield
        self.manifest, self._digest, self._digested = changed, digest, entry

    def catch_up(self, index: QuestionIndex, encode: Encode) -> QuestionIndex:
        """The index with what another process has changed in the folder since.

        UserError where there is an index of another encoder now.
        """
        present = _read_manifest(self.folder)
        if present == self.manifest:
            return index
        if present["build"] != self.manifest["build"]:
            index, self.manifest = read_store(self.folder, encode, encoder=index.encoder)
            return index
        name = _FILES["changes"].format(present["build"])
        verify(self.folder, name, present, growing=True)
        start, stop = (m["files"][name]["bytes"] for m in (self.manifest, present))
        if start > stop:
            raise UserError(f"{self.folder}: the changes shrank; load the index anew")
        _apply(index, encode, self.folder / name, start, stop)
        index.next_id = max(index.next_id, present["next_id"])
        self.manifest = present
        return index


def read_store(
    folder: StrPath, encode: Encode, *, encoder: str | None = None
) -> tuple[QuestionIndex, dict[str, Any]]:
    """The index of a folder as its manifest says, and the manifest.

    `encode` makes the vectors of questions that were added. UserError where a file is missing,
    changed or cut off, where the manifest does not fit the files, or where `encoder` is given and
    the index was made with another.
    """
    folder = pathlib.Path(folder)
    while True:
        manifest = _read_manifest(folder)
        try:
            return _read(folder, manifest, encode, encoder), manifest
        except (UserError, FileNotFoundError) as error:
            # Another process may have put a new index there in the meantime.
            if _read_manifest(folder)["files"] != manifest["files"]:
                continue
            if isinstance(error, UserError):
                raise
            raise UserError(f"{folder}: a file is missing ({error}); remake the folder") from None


def _read(
    folder: pathlib.Path, manifest: dict[str, Any], encode: Encode, encoder: str | None
) -> QuestionIndex:
    if encoder is not None and manifest["encoder"] != encoder:
        raise UserError(
            f"{folder}: the index was made with encoder {manifest['encoder'][:12]}, not with "
            f"{encoder[:12]}; build the index again"
        )
    names = {kind: name.format(manifest["build"]) for kind, name in _FILES.items()}
    for kind, name in names.items():
        verify(folder, name, manifest, growing=kind == "changes")
    try:
        texts = _map_texts(folder / names["texts"], folder / names["offsets"])
        ids = np.load(folder / names["ids"], allow_pickle=False)
        vectors = faiss.read_index(str(folder / names["vectors"]))
    except (RuntimeError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder}: cannot read the index ({reason}); build it again") from None
    recipe = Recipe(*(manifest[k] for k in ("factory", "metric", "probes", "assignments")))
    rows = Rows(vectors, texts, ids, recipe, manifest["recall@10"], manifest["dimension"])
    wanted = Recipe(
        manifest["wanted_factory"], recipe.metric, recipe.probes, manifest["wanted_assignments"]
    )
    index = QuestionIndex(rows, wanted, manifest["encoder"], manifest["next_id"])
    changes = folder / names["changes"]
    _apply(index, encode, changes, 0, manifest["files"][changes.name]["bytes"])
    return index


def _apply(index: QuestionIndex, encode: Encode, path: pathlib.Path, start: int, stop: int) -> None:
    """Make the changes that stand in these bytes of the file; of an id, the last counts."""
    last: dict[int, str | None] = {}
    with open(path, "rb") as file:
        file.seek(start)
        while file.tell() < stop:
            entry = json.loads(file.readline())
            last.pop(entry["id"], None)
            last[entry["id"]] = entry.get("question")
    if gone := [i for i, question in last.items() if question is None]:
        index.remove(np.array(gone, np.int64))
    put = ((i, question) for i, question in last.items() if question is not None)
    while some := list(itertools.islice(put, _AT_ONCE)):
        ids, questions = zip(*some, strict=True)
        index.put(np.array(ids, np.int64), questions, encode(questions))


def _map_texts(texts: pathlib.Path, offsets: pathlib.Path) -> Texts:
    # An empty file cannot be mapped.
    data = np.memmap(texts, np.uint8, "r") if texts.stat().st_size else np.zeros(0, np.uint8)
    return Texts(data, np.load(offsets, mmap_mode="r", allow_pickle=False))


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the SHA-256 of all else that it says."""
    said = {name: value for name, value in manifest.items() if name != SEAL}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode("ascii")).hexdigest()
    return said | {SEAL: digest}


def _read_manifest(folder: StrPath) -> dict[str, Any]:
    manifest = read_manifest(folder, format=FORMAT)
    if sealed(manifest) != manifest:
        raise UserError(
            f"{pathlib.Path(folder, MANIFEST)}: what it says differs from its `{SEAL}`; "
            "restore the file, or build the index again"
        )
    return manifest
