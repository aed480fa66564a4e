"""What a collection of Milvus has besides its questions, in a second collection, `NAME_qpr`.

A record is a key and a text. There are

    part/SHA256/NUMBER   a part of a file of the run, in base64; files are the same for all builds
    files/VERSION        the names, sizes and SHA-256 of the files of a version, as JSON
    BUILD/batch/NUMBER   the digest of a batch of a load that Milvus has acknowledged
    BUILD/ids/RANDOM     a number above those that a writer gave out, or is about to

so that a machine that knows the address alone has the encoder, the re-rankers, the calibration and
the statistics of the run.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import pathlib
import random
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from qpr_jax.errors import UserError
from qpr_jax.files import locked, replace_folder, sha256_of, user_cache
from qpr_jax.ids import LARGEST_ID
from qpr_jax.index.milvus_server import Server

SUFFIX = "_qpr"
_FIELDS = (
    ("key", "VARCHAR", {"max_length": 512}),
    ("text", "VARCHAR", {"max_length": 65_535}),
    ("vector", "FLOAT_VECTOR", {"dim": 2}),  # Milvus has no collection without one
)
_INDEX = {"index_type": "FLAT", "metric_type": "L2"}
_PART = 48_000  # bytes, which are 64,000 in base64
_AT_ONCE = 64  # records of a call: 4 MiB, as Milvus's limit of a message is
_PATIENCE = 30  # times that a writer looks for numbers of its own

Files = Mapping[str, bytes]
T = TypeVar("T")


class Records:
    """The records of a collection; safe to use from several threads and processes."""

    def __init__(self, server: Server) -> None:
        self._server, self._name = server, server.address.name + SUFFIX

    def create(self) -> None:
        """Make their collection, unless it is there; UserError where that is another."""
        found = self._server.describe(self._name)
        if found is None:
            self._server.create(self._name, _FIELDS)
            self._server.load(self._name, _INDEX)
        elif [field["name"] for field in found["fields"]] != [name for name, *_ in _FIELDS]:
            raise UserError(
                f"{self._server.address}: expected to keep the files of the run in the collection "
                f"{self._name}, which is another",
                remedy="name another collection",
            )

    def put(self, records: Mapping[str, str]) -> None:
        """Write records, in place of those of the same keys."""
        for some in _chunks(records.items()):
            rows = [{"key": key, "text": text, "vector": [0.0, 0.0]} for key, text in some]
            self._server.call("upsert", self._name, data=rows)

    def get(self, keys: Iterable[str]) -> dict[str, str]:
        """The records of these keys that are there, whoever wrote them."""
        found: dict[str, str] = {}
        level = "Strong"  # the first call waits for all writes before it, the others need not
        for some in _chunks(keys):
            found |= self._query(f"key in [{', '.join(map(_quoted, some))}]", level)
            level = "Eventually"
        return found

    def under(self, prefix: str) -> dict[str, str]:
        """The records whose keys begin so."""
        return self._query(f"key like {_quoted(prefix + '%')}", "Strong")

    def _query(self, where: str, level: str) -> dict[str, str]:
        fields = ["key", "text"]
        rows = self._server.call(
            "query", self._name, filter=where, output_fields=fields, consistency_level=level
        )
        return {row["key"]: row["text"] for row in rows}

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the records of these keys."""
        for some in _chunks(keys, 1024):
            where = f"key in [{', '.join(map(_quoted, some))}]"
            self._server.call("delete", self._name, filter=where)

    def remove_under(self, prefix: str) -> None:
        """Remove the records whose keys begin so."""
        self.remove(self.under(prefix))

    def write_files(self, files: Files) -> str:
        """Write a version of the run's files; its name, which is of their content."""
        facts: dict[str, dict[str, Any]] = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(files.items())
        }
        text = json.dumps(facts)
        version = hashlib.sha256(text.encode()).hexdigest()[:16]
        present = self.get(_last_part(entry) for entry in facts.values())
        for name, data in files.items():
            if _last_part(facts[name]) not in present:
                keys = _part_keys(facts[name])
                starts = range(0, max(1, len(data)), _PART)
                parts = (base64.b64encode(data[start : start + _PART]).decode() for start in starts)
                for some in _chunks(zip(keys, parts, strict=True)):
                    self.put(dict(some))
        self.put({f"files/{version}": text})
        return version

    def remove_files(self, version: str, kept: str) -> None:
        """Remove a version of the files, but for what another one has, too."""
        keys = [f"files/{name}" for name in (version, kept)]
        found = self.get(keys)
        if version == kept or not all(key in found for key in keys):
            return
        old, new = (json.loads(found[key]) for key in keys)
        shared = {entry["sha256"] for entry in new.values()}
        gone = [entry for entry in old.values() if entry["sha256"] not in shared]
        self.remove([keys[0], *(key for entry in gone for key in _part_keys(entry))])

    def fetch_files(self, version: str) -> pathlib.Path:
        """The folder of a version in the cache of this machine, downloaded where it is not there.

        UserError where what Milvus has is not what was written.
        """
        text = self.get([f"files/{version}"]).get(f"files/{version}")
        where = f"{self._server.address}: version {version} of the run"
        if text is None:
            raise UserError(f"{where}: expected its files, found none", remedy="load it again")
        facts = json.loads(text)
        folder = user_cache() / "milvus" / version
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock"), wait=True):
            if not all(_is_whole(folder / name, entry) for name, entry in facts.items()):
                self._download(facts, folder, where)
        return folder

    def _download(self, facts: Mapping[str, Any], folder: pathlib.Path, where: str) -> None:
        with replace_folder(folder) as part:
            for name, entry in facts.items():
                target = (part / name).resolve()
                if not target.is_relative_to(part.resolve()):
                    raise UserError(f"{where}: expected names of files, got {name!r}")
                data = self._read(entry)
                if hashlib.sha256(data).hexdigest() != entry["sha256"]:
                    raise UserError(
                        f"{where}: {name} differs from its SHA-256", remedy="load it again"
                    )
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)

    def _read(self, entry: Mapping[str, Any]) -> bytes:
        data = []
        for keys in _chunks(_part_keys(entry)):
            found = self.get(keys)
            data += [base64.b64decode(found.get(key, "")) for key in keys]
        return b"".join(data)

    def claim_ids(self, build: str, count: int) -> int:
        """The first of `count` numbers that no writer of a build has had.

        A writer says which numbers it will take, and takes them if no other one says the same. As
        each looks after it has said so, one of two sees the other, and looks for others. A record
        never changes, so one that is removed is one that was seen.
        """
        prefix = f"{build}/ids/"
        for _ in range(_PATIENCE):
            start = max(map(int, self.under(prefix).values()), default=0)
            if start + count > LARGEST_ID + 1:
                raise UserError(f"`ids`: expected ids, got none, and fewer than {count} are left")
            own = self.reserve_ids(build, start + count)
            others = {key: int(text) for key, text in self.under(prefix).items() if key != own}
            if all(stop <= start for stop in others.values()):
                self.remove(others)
                return start
            time.sleep(random.uniform(0.05, 1.0))
        raise UserError(
            f"{self._server.address}: other writers take numbers all the time",
            remedy="give the questions ids of their own",
        )

    def reserve_ids(self, build: str, stop: int) -> str:
        """Have numbers below `stop` given to no question without an id; the key of the record."""
        key = f"{build}/ids/{secrets.token_hex(8)}"
        self.put({key: str(stop)})
        return key


def _chunks(items: Iterable[T], size: int = _AT_ONCE) -> Iterator[list[T]]:
    rest = iter(items)
    return iter(lambda: [*itertools.islice(rest, size)], [])


def _part_keys(entry: Mapping[str, Any]) -> list[str]:
    count = max(1, -(-int(entry["bytes"]) // _PART))
    return [f"part/{entry['sha256']}/{number}" for number in range(count)]


def _last_part(entry: Mapping[str, Any]) -> str:
    """The key of the part of a file that is written last, so that all are there where it is."""
    return _part_keys(entry)[-1]


def _is_whole(path: pathlib.Path, entry: Mapping[str, Any]) -> bool:
    return path.is_file() and sha256_of(path) == entry["sha256"]


def _quoted(key: str) -> str:
    """A key in an expression; keys are ours, of letters, digits, blanks and a few marks."""
    return f'"{key}"'
