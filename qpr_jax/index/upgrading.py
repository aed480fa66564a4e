"""The questions of an index of an older format, which `qpr compact` builds again.

Format 4:
    texts-BUILD.bin, offsets-BUILD.npy, ids-BUILD.npy   the questions of the build
    changes-BUILD.jsonl     {"id", "question"}: added or replaced since; {"id"}: removed
Format 5:
    texts-BUILD.bin         UTF-8 of all questions
    rows-BUILD.npy          int64 [n + 1, 3]: where each text begins, its id, its CRC; the end
    changes-BUILD.sqlite    as it is now
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.files import MANIFEST, read_object, verify
from qpr_jax.ids import Id
from qpr_jax.index import changes_file
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.changes_file import ChangesFile
from qpr_jax.index.database import decode_text
from qpr_jax.index.folder import OLD_FORMATS, read_manifest
from qpr_jax.index.recipe import Recipe

FORMAT_4, FORMAT_5 = OLD_FORMATS
_FILES = {
    FORMAT_4: ("texts-{}.bin", "offsets-{}.npy", "ids-{}.npy", "changes-{}.jsonl"),
    FORMAT_5: ("texts-{}.bin", "rows-{}.npy"),
}


class OldIndex(NamedTuple):
    """What an index of an older format holds but for its vectors, which are made again.

    texts: the file of the texts of the build, whose ends are `stops`, and whose ids are `ids`.
    changed: the text of each id that was changed since; None for one that was removed.
    """

    requested: Recipe
    encoder: str
    next_id: int
    texts: pathlib.Path
    stops: list[int]
    ids: list[int]
    changed: dict[Id, str | None]

    def questions(self) -> Iterator[StoredQuestion]:
        """All questions, in the order in which they came."""
        start = 0
        with open(self.texts, "rb") as file:
            for value, stop in zip(self.ids, self.stops, strict=True):
                text, start = decode_text(file.read(stop - start)), stop
                if value not in self.changed:
                    yield StoredQuestion(value, text)
        for changed, added in self.changed.items():
            if added is not None:
                yield StoredQuestion(changed, added)


def read_old_index(folder: pathlib.Path) -> OldIndex | None:
    """The index of a folder where it is of an older format, with verified files; else None."""
    format = read_object(folder / MANIFEST).get("format")
    if format not in OLD_FORMATS:
        return None
    manifest = read_manifest(folder, format=format)
    names = [name.format(manifest["build"]) for name in _FILES[format]]
    for name in names:
        verify(folder, name, manifest, growing=name.startswith("changes"))
    if format == FORMAT_4:
        stops = np.load(folder / names[1], allow_pickle=False)[1:]
        ids = np.load(folder / names[2], allow_pickle=False)
        changed = _json_changes(folder / names[3], manifest)
    else:
        rows = np.load(folder / names[1], allow_pickle=False)
        stops, ids = rows[1:, 0], rows[:-1, 1]
        changed = _sqlite_changes(folder / changes_file.NAME.format(manifest["build"]))
    requested = Recipe(
        *(manifest[k] for k in ("wanted_factory", "metric", "probes", "wanted_assignments"))
    )
    next_id = max(manifest["next_id"], *(1 + int(value) for value in changed), 0)
    return OldIndex(
        *(requested, manifest["encoder"], next_id, folder / names[0]),
        *(stops.tolist(), ids.tolist(), changed),
    )


def _json_changes(path: pathlib.Path, manifest: dict[str, Any]) -> dict[Id, str | None]:
    """The changes of format 4; what stands behind the size in the manifest never counted."""
    changed: dict[Id, str | None] = {}
    with open(path, "rb") as file:
        for line in file.read(manifest["files"][path.name]["bytes"]).splitlines():
            entry = json.loads(line)
            changed.pop(entry["id"], None)
            changed[entry["id"]] = entry.get("question")
    return changed


def _sqlite_changes(path: pathlib.Path) -> dict[Id, str | None]:
    """The changes of format 5."""
    changed: dict[Id, str | None] = {}
    for change in ChangesFile(path).read_new():
        changed.pop(change.id, None)
        changed[change.id] = change.question
    return changed
