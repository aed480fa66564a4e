"""The questions of an index in format 4, which `qpr compact` upgrades to the present one.

texts-BUILD.bin, offsets-BUILD.npy, ids-BUILD.npy   the questions of the build
changes-BUILD.jsonl     {"id", "question"}: added or replaced since; {"id"}: removed
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from qpr_jax.files import MANIFEST, read_object, verify
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.database import decode_text
from qpr_jax.index.folder import OLD_FORMAT, read_manifest
from qpr_jax.index.recipe import Recipe

_FILES = ("texts-{}.bin", "offsets-{}.npy", "ids-{}.npy", "changes-{}.jsonl")


class OldIndex(NamedTuple):
    """What an index of format 4 holds but for its vectors, which are made again."""

    folder: pathlib.Path
    build: str
    requested: Recipe
    encoder: str
    next_id: int
    changes_bytes: int

    def questions(self) -> Iterator[StoredQuestion]:
        """All questions, in the order in which they came."""
        texts, offsets, ids, changes = (self.folder / name.format(self.build) for name in _FILES)
        last: dict[int, str | None] = {}  # of each id that was changed
        with open(changes, "rb") as file:
            for line in file.read(self.changes_bytes).splitlines():
                entry = json.loads(line)
                last.pop(entry["id"], None)
                last[entry["id"]] = entry.get("question")
        stops = np.load(offsets, allow_pickle=False).tolist()
        with open(texts, "rb") as file:
            for i, value in enumerate(np.load(ids, allow_pickle=False).tolist()):
                text = decode_text(file.read(stops[i + 1] - stops[i]))
                if value not in last:
                    yield StoredQuestion(value, text)
        for value, added in last.items():
            if added is not None:
                yield StoredQuestion(value, added)


def read_old_index(folder: pathlib.Path) -> OldIndex | None:
    """The index of a folder where it is of format 4, with verified files; else None."""
    if read_object(folder / MANIFEST).get("format") != OLD_FORMAT:
        return None
    manifest = read_manifest(folder, format=OLD_FORMAT)
    build = manifest["build"]
    for name in _FILES:
        verify(folder, name.format(build), manifest, growing=name.startswith("changes"))
    requested = Recipe(
        *(manifest[k] for k in ("wanted_factory", "metric", "probes", "wanted_assignments"))
    )
    changes_bytes = manifest["files"][_FILES[-1].format(build)]["bytes"]
    return OldIndex(
        folder, build, requested, manifest["encoder"], manifest["next_id"], changes_bytes
    )
