"""An index in a folder: every change is on disk before it counts, and nothing unverified is used.

    manifest.json       what there is: facts, and size and SHA-256 of each file; the only file that
                        is replaced, so a change has happened when it says so
    vectors-3.faiss     as FAISS writes it
    texts-3.bin         UTF-8 of all questions, one after the other
    offsets-3.npy       where each begins, and the end
    ids-3.npy           the id of each
    changes-3.jsonl     {"id", "question"}: added or replaced since; {"id"}: removed

The number rises with each compaction. What stands in the changes beyond the size in the manifest
was never acknowledged, and is cut off before the next change.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import pathlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import faiss
import numpy as np

from qpr_jax.errors import UserError
from qpr_jax.files import (
    MANIFEST,
    Path,
    locked,
    read_manifest,
    sha256_of,
    verify,
    write_atomically,
    write_json,
)
from qpr_jax.retrieval.index import Encode, QuestionIndex, Rows
from qpr_jax.retrieval.texts import Texts, encoded
from qpr_jax.retrieval.vectors import METRICS, Recipe

FORMAT = "qpr_jax index 2"
LOCK = ".lock"
_FILES = {
    "vectors": "vectors-{}.faiss",
    "texts": "texts-{}.bin",
    "offsets": "offsets-{}.npy",
    "ids": "ids-{}.npy",
    "changes": "changes-{}.jsonl",
}
_FACTS: dict[str, type] = {
    "number": int,
    "factory": str,
    "wanted_factory": str,
    "metric": str,
    "probes": int,
    "assignments": int,
    "wanted_assignments": int,
    "count": int,
    "dimension": int,
    "recall@10": float,
    "next_id": int,
    "encoder": str,
}


@contextlib.contextmanager
def only_writer(folder: Path, *, wait: float = 60.0) -> Iterator[None]:
    """Hold the folder's lock; UserError where another process holds it for `wait` seconds."""
    until = time.monotonic() + wait
    while True:
        with locked(pathlib.Path(folder, LOCK)) as ours:
            if ours:
                yield
                return
        if time.monotonic() > until:
            raise UserError(f"{folder}: another process is changing the index; try again later")
        time.sleep(0.02)


class TextsWriter:
    """Questions and ids on their way to the files of a folder."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = pathlib.Path(folder), number

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
        return self._folder / _FILES[kind].format(self._number)


def next_number(folder: Path) -> int:
    """The number of the next files of a folder."""
    names = os.listdir(folder) if pathlib.Path(folder).is_dir() else []
    found = [int(match[1]) for name in names if (match := re.search(r"-(\d+)\.\w+$", name))]
    return max(found, default=0) + 1


def write_store(folder: Path, index: QuestionIndex, number: int) -> dict[str, Any]:
    """Write what `TextsWriter` has not, then the manifest, then remove all older files.

    The lock must be held. Returns the manifest.
    """
    folder = pathlib.Path(folder)
    rows = index.rows
    if rows.changed:
        raise ValueError("an index that was changed since it was built must be compacted first")
    names = {kind: name.format(number) for kind, name in _FILES.items()}
    with write_atomically(folder / names["vectors"]) as file:
        faiss.write_index(rows.vectors, faiss.PyCallbackIOWriter(file.write))
    with write_atomically(folder / names["changes"]):
        pass
    manifest = {
        "format": FORMAT,
        "number": number,
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
        "files": {
            name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
            for name in names.values()
        },
    }
    write_json(folder / MANIFEST, manifest)
    for path in folder.iterdir():
        if path.name not in (MANIFEST, LOCK, *names.values()) and path.is_file():
            path.unlink()
    return manifest


class Store:
    """The folder of an index, as this process last saw it. Changes need `only_writer`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = pathlib.Path(folder), manifest
        self._digest, self._digested = hashlib.sha256(), 0

    def append(self, ids: Sequence[int], questions: Sequence[str] | None, next_id: int) -> None:
        """Record that questions were put, or, without them, that ids were removed.

        When this returns the change is on disk; when it fails nothing has changed.
        """
        name = _FILES["changes"].format(self.manifest["number"])
        size = self.manifest["files"][name]["bytes"]
        lines = (
            [json.dumps({"id": i}) for i in ids]
            if questions is None
            # ASCII, so that a lone surrogate (any string is a question) survives the file.
            else [json.dumps({"id": i, "question": q}) for i, q in zip(ids, questions, strict=True)]
        )
        data = "".join(f"{line}\n" for line in lines).encode("ascii")
        with open(self.folder / name, "r+b") as file:
            if self._digested != size:  # not what was written here last
                self._digest = hashlib.sha256(file.read(size))
            digest = self._digest.copy()
            digest.update(data)
            file.truncate(size)
            file.seek(size)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        entry = {"bytes": size + len(data), "sha256": digest.hexdigest()}
        files = self.manifest["files"] | {name: entry}
        changed = self.manifest | {"next_id": next_id, "files": files}
        write_json(self.folder / MANIFEST, changed)
        self.manifest, self._digest, self._digested = changed, digest, entry["bytes"]

    def catch_up(self, index: QuestionIndex, encode: Encode) -> QuestionIndex:
        """The index with what another process has changed in the folder since."""
        present = read_manifest(self.folder, format=FORMAT)
        if present == self.manifest:
            return index
        if present.get("number") != self.manifest["number"]:
            index, self.manifest = read_store(self.folder, encode, encoder=index.encoder)
            return index
        name = _FILES["changes"].format(self.manifest["number"])
        verify(self.folder, name, present, growing=True)
        start, stop = (m["files"][name]["bytes"] for m in (self.manifest, present))
        _apply(index, encode, self.folder / name, start, stop)
        index.next_id = max(index.next_id, present["next_id"])
        self.manifest = present
        return index


def read_store(
    folder: Path, encode: Encode, *, encoder: str | None = None
) -> tuple[QuestionIndex, dict[str, Any]]:
    """The index of a folder as its manifest says, and the manifest.

    `encode` makes the vectors of questions that were added. UserError where a file is missing,
    changed or cut off, where the manifest does not fit the files, or where `encoder` is given and
    the index was made with another.
    """
    folder = pathlib.Path(folder)
    while True:
        manifest = read_manifest(folder, format=FORMAT)
        try:
            return _read(folder, manifest, encode, encoder), manifest
        except UserError:
            # Another process may have put a new index there in the meantime.
            if read_manifest(folder, format=FORMAT)["files"] == manifest["files"]:
                raise


def _read(
    folder: pathlib.Path, manifest: dict[str, Any], encode: Encode, encoder: str | None
) -> QuestionIndex:
    _check_manifest(manifest, folder)
    if encoder is not None and manifest["encoder"] != encoder:
        raise UserError(
            f"{folder}: the index was made with encoder {manifest['encoder'][:12]}, not with "
            f"{encoder[:12]}; build the index again"
        )
    names = {kind: name.format(manifest["number"]) for kind, name in _FILES.items()}
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
    _check_fit(folder, manifest, vectors, texts, ids)
    rows = Rows(vectors, texts, ids, recipe, manifest["recall@10"])
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
        for line in file.read(stop - start).splitlines():
            entry = json.loads(line)
            last.pop(entry["id"], None)
            last[entry["id"]] = entry.get("question")
    if gone := [i for i, question in last.items() if question is None]:
        index.remove(np.array(gone, np.int64))
    if put := {i: question for i, question in last.items() if question is not None}:
        questions = list(put.values())
        index.put(np.array(list(put), np.int64), questions, encode(questions))


def _map_texts(texts: pathlib.Path, offsets: pathlib.Path) -> Texts:
    # An empty file cannot be mapped.
    data = np.memmap(texts, np.uint8, "r") if texts.stat().st_size else np.zeros(0, np.uint8)
    return Texts(data, np.load(offsets, mmap_mode="r", allow_pickle=False))


def _check_manifest(manifest: dict[str, Any], folder: Path) -> None:
    for name, kind in _FACTS.items():
        value = manifest.get(name)
        if not isinstance(value, kind) or (
            isinstance(value, int) and name in ("probes", "assignments") and value < 1
        ):
            raise UserError(f"{folder}: the manifest's `{name}` is {value!r}; build it again")
    if manifest["metric"] not in METRICS:
        raise UserError(f"{folder}: the manifest's `metric` is {manifest['metric']!r}; remake it")


def _check_fit(
    folder: Path, manifest: dict[str, Any], vectors: faiss.Index, texts: Texts, ids: np.ndarray
) -> None:
    """UserError where the files are whole, but not of one index."""
    count = manifest["count"]
    lists = vectors.nlist if isinstance(vectors, faiss.IndexIVF) else 0
    named = re.match(r"IVF(\d+)", manifest["factory"])
    metric = {code: name for name, code in METRICS.items()}.get(vectors.metric_type, "another")
    held = {
        "factory": (int(named[1]) if named else 0, lists),
        "metric": (manifest["metric"], metric),
        "dimension": (manifest["dimension"], vectors.d),
        "count": (count, len(texts)),
        "count of ids": (count, len(ids) if ids.dtype == np.int64 else -1),
        "count x assignments": (count * manifest["assignments"], vectors.ntotal),
        "bytes of texts": (int(texts.offsets[-1]) if len(texts) else 0, len(texts.data)),
    }
    for name, (expected, got) in held.items():
        if got != expected:
            raise UserError(
                f"{folder}: the manifest's `{name}` is {expected}, the files hold {got}; "
                "build the index again"
            )
