"""Loading many questions into Milvus: as a new collection, which replaces the one before at once.

A load writes a collection `NAME_BUILD`, batch by batch, and has the alias NAME mean it when it is
complete. The digest of each batch that Milvus has acknowledged is a record, so that the same load
goes on after a kill where it was; other questions begin from the first.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import pathlib
import re
import secrets
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from qpr_jax.encoders.base import Encoder, accepted_identities
from qpr_jax.errors import UserError
from qpr_jax.ids import Id
from qpr_jax.index.base import Check, StoredQuestion
from qpr_jax.index.exact import ExactTopK, recall_of
from qpr_jax.index.milvus_entities import as_id, batches, fields_of, write_entities
from qpr_jax.index.milvus_index import MilvusIndex
from qpr_jax.index.milvus_recipe import index_parameters
from qpr_jax.index.milvus_records import Files, Records
from qpr_jax.index.milvus_server import Address, Server
from qpr_jax.index.payloads import payload_json
from qpr_jax.index.question_index import GOOD_RECALL
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.records import number_of
from qpr_jax.index.statistics import Statistics

FORMAT = "qpr_jax milvus 1"
STATISTICS = "statistics.safetensors"  # among the files of a version
LOADING, COMPLETE = "loading", "complete"
_QUERIES, _AT = 200, 10  # of the recall that is measured
_LOOKED_UP = 64  # digests
_INDEXED = 1024  # questions; Milvus compares fewer one by one, whatever the index

Log = Callable[[str], object]


def find_collection(server: Server) -> dict[str, Any] | None:
    """The facts of the collection of an address, None where there is none; it must be ours."""
    found = server.describe(server.address.name)
    if found is None:
        return None
    format = found["properties"].get("qpr.format")
    if format != FORMAT:
        raise UserError(
            f"{server.address}: expected a collection of `qpr index` ({FORMAT!r}), got "
            f"{'another' if format is None else repr(format)}",
            remedy="name another collection",
        )
    return found


def require_collection(server: Server) -> dict[str, Any]:
    """As `find_collection`; UserError where there is none."""
    found = find_collection(server)
    if found is None:
        raise UserError(
            f"{server.address}: expected a collection, found none",
            remedy="make it with `qpr index`, or name another one",
        )
    return found


def require_encoder(server: Server, found: Mapping[str, Any], encoder: Encoder) -> None:
    """UserError, with both hashes, where another encoder made the vectors of a collection."""
    made = found["properties"]["qpr.encoder"]
    if made not in accepted_identities(encoder):
        raise UserError(
            f"{server.address}: the collection was made with encoder {made}, not with "
            f"{encoder.identity}",
            remedy="use that encoder, or name another collection",
        )


def run_folder(address: str) -> pathlib.Path:
    """The folder of the run's files of a collection, in the cache of this machine."""
    server = Server(Address.parse(address))
    found = require_collection(server)
    return Records(server).fetch_files(found["properties"]["qpr.version"])


class Load:
    """A load of questions into a new collection.

    Attributes:
      build: the name of this collection.
      current: the facts of the one that it is to replace, if there is one.
    """

    def __init__(self, server: Server, encoder: Encoder, recipe: Recipe, name: str) -> None:
        """recipe: of `milvus_recipe`. name: of the encoder, for people."""
        self.server, self.encoder, self.recipe = server, encoder, recipe
        self.current = find_collection(server)
        if self.current is not None:
            require_encoder(server, self.current, encoder)
        old = self.current["collection_name"] if self.current else ""
        facts = [old, encoder.identity, recipe.factory, recipe.metric, encoder.dimension]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
        self.build = f"{server.address.name}_{digest}"
        self.records = Records(server)
        self._owner = secrets.token_hex(8)
        self._properties = {
            "qpr.format": FORMAT,
            "qpr.state": LOADING,
            "qpr.owner": self._owner,
            "qpr.encoder": encoder.identity,
            "qpr.encoder_name": name,
            "qpr.dimension": str(encoder.dimension),
            "qpr.factory": recipe.factory,
            "qpr.metric": recipe.metric,
            "qpr.probes": str(recipe.probes),
        }

    def run(
        self,
        questions: Iterable[StoredQuestion],
        check: Check,
        files: Files,
        next_id: int,
        log: Log,
    ) -> None:
        """Write the questions and the files of the run, and replace the collection of before.

        check: of the ids, as of `stored_entries`. next_id: questions without an id get numbers from
        here on, or from the greatest id on.
        """
        self.records.create()
        self._remove_leftovers()
        if self.server.describe(self.build) is None:
            self._create()
        self.server.set_properties(self.build, self._properties)
        numbers, statistics, recall = array("q"), Statistics(), _Recall(self.recipe.metric)
        self._write(questions, numbers, statistics, recall, log)
        check(len(numbers), self._repeated(numbers))
        if len(numbers) >= _INDEXED:
            self.server.settle(self.build)
        self.server.load(self.build, index_parameters(self.recipe))
        self._check_whole(len(numbers))
        files = {**files, STATISTICS: statistics.to_bytes()}
        facts = {
            "qpr.version": self.records.write_files(files),
            "qpr.count": str(len(numbers)),
            "qpr.recall": "null",
        }
        self.records.reserve_ids(self.build, max(next_id, 1 + max(numbers, default=-1)))
        self.server.set_properties(self.build, facts)
        found = recall.measure(self._index(statistics))
        done = {"qpr.recall": json.dumps(found), "qpr.state": COMPLETE}
        self.server.set_properties(self.build, done)
        self._publish(facts["qpr.version"])
        said = "not measured, as the load was resumed" if found is None else f"{found:.3f}"
        log(f"index: {self.recipe.factory}, {len(numbers):,} questions, recall@10 {said}")
        if found is not None and found < GOOD_RECALL:
            log(
                f"warning: recall@10 is {found:.3f} (good: {GOOD_RECALL}); raise `probes`, or "
                "name fewer lists"
            )

    def _create(self) -> None:
        """Make the collection; it gets its index when all questions are there."""
        fields = fields_of(self.encoder.dimension)
        self.server.create(self.build, fields, **self._properties)

    def _write(
        self,
        questions: Iterable[StoredQuestion],
        numbers: array[int],
        statistics: Statistics,
        recall: _Recall,
        log: Log,
    ) -> None:
        """Write what is not written yet, and take the numbers and words of all questions."""
        known, done, resuming = self._digests(), 0, True
        numbered = enumerate(batches(questions, self.encoder.dimension, itertools.count()))
        for number, (some, entities) in numbered:
            texts = [question.question for question in some]
            statistics.add(texts)
            numbers.extend(number_of(question.id) for question in some)
            digest = _digest(some)
            if resuming:
                found = next(known, None)
                if found == digest:
                    done += len(some)
                    continue
                resuming = False
                if found is not None:
                    self._begin_again(done)
                if done:
                    log(f"{done:,} questions were loaded before; going on after them")
                    recall.skip()
            self._check_owner()
            vectors = self.encoder.encode(texts)
            recall.add(np.array([entity["qpr_row"] for entity in entities]), vectors)
            write_entities(self.server, self.build, entities, vectors)
            self.records.put({self._batch(number): digest})
        if resuming and numbers:
            recall.skip()
            if next(known, None) is not None:
                self._begin_again(done)

    def _batch(self, number: int) -> str:
        return f"{self.build}/batch/{number}"

    def _digests(self) -> Iterator[str]:
        """The digests of the batches that were acknowledged, in order."""
        for start in itertools.count(0, _LOOKED_UP):
            keys = [self._batch(number) for number in range(start, start + _LOOKED_UP)]
            found = self.records.get(keys)
            for key in keys:
                if key not in found:
                    return
                yield found[key]

    def _begin_again(self, done: int) -> None:
        """Remove what a load of other questions left; UserError where some were passed over."""
        self.records.remove_under(f"{self.build}/batch/")
        self.server.drop(self.build)
        if done:
            raise UserError(
                f"{self.server.address}: expected the questions of the load that was stopped, got "
                f"others after the first {done:,}",
                remedy="run it again; it then begins with the first",
            )
        self._create()

    def _check_owner(self) -> None:
        found = self.server.describe(self.build)
        if found is None or found["properties"].get("qpr.owner") != self._owner:
            raise UserError(
                f"{self.server.address}: another load of this collection has begun",
                remedy="let it finish, or run this one again after it",
            )

    def _repeated(self, numbers: array[int]) -> tuple[int, Id] | None:
        """The first row whose id an earlier one has, and the id, as of `Check`."""
        values = np.array(numbers, np.int64)
        order = np.argsort(values, kind="stable")
        same = values[order][1:] == values[order][:-1]
        for row in np.sort(order[1:][same]).tolist():
            # A question was replaced by the later one; two that are there have the same hash only.
            rows = np.flatnonzero(values == values[row]).tolist()
            self.server.load(self.build, index_parameters(Recipe("Flat", self.recipe.metric)))
            found = self.server.call(
                "query",
                self.build,
                filter=f"qpr_row in {rows}",
                output_fields=["id", "$meta"],
                consistency_level="Strong",
            )
            if len(found) < len(rows):
                self.server.drop(self.build)  # another load must not go on with it
                return row, as_id(found[0])
        return None

    def _check_whole(self, count: int) -> None:
        """UserError where the collection has other questions than were loaded."""
        self._check_owner()
        found = self.server.count(self.build, consistency_level="Strong")
        if found != count:
            self.server.drop(self.build)
            raise UserError(
                f"{self.server.address}: expected {count:,} questions after the load, found "
                f"{found:,}; another load may have run at the same time",
                remedy="load them again",
            )

    def _index(self, statistics: Statistics) -> MilvusIndex:
        facts = self.server.describe(self.build)
        if facts is None:
            raise UserError(f"{self.server.address}: the new collection was removed meanwhile")
        return MilvusIndex(self.server, self.records, facts, self.recipe, statistics)

    def _publish(self, version: str) -> None:
        """Have the name of the address mean the new collection, and remove the old one."""
        name, old = self.server.address.name, self.current
        self.server.call("alter_alias" if old else "create_alias", self.build, name)
        self.records.remove_under(f"{self.build}/batch/")
        if old is not None:
            self.records.remove_under(f"{old['collection_name']}/ids/")
            self.server.drop(old["collection_name"])
            self.records.remove_files(old["properties"]["qpr.version"], version)

    def _remove_leftovers(self) -> None:
        """Remove collections of loads that were stopped, and that this one does not go on with."""
        name = self.server.address.name
        kept = {self.build, self.current["collection_name"] if self.current else ""}
        for other in self.server.collections():
            if re.fullmatch(rf"{name}_[0-9a-f]{{12}}", other) and other not in kept:
                found = self.server.describe(other)
                if found and found["properties"].get("qpr.state") in (LOADING, COMPLETE):
                    self.server.drop(other)
                    self.records.remove_under(f"{other}/")


class _Recall:
    """Measures the recall@10 of a load by its first questions, which it compares with all."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._rows = np.zeros(0, np.int64)
        self._exact: ExactTopK | None = None
        self._whole = True

    def skip(self) -> None:
        """Some questions are not seen, so nothing can be measured."""
        self._whole = False

    def add(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        """Take the vectors of rows into account."""
        if self._whole:
            if self._exact is None:
                self._rows = rows[:_QUERIES]
                self._exact = ExactTopK(vectors[:_QUERIES], _AT + 1, self._metric)
            self._exact.add(rows, vectors)

    def measure(self, index: MilvusIndex) -> float | None:
        """The share of the nearest that the index finds; None where that is unknown."""
        if not self._whole or self._exact is None:
            return None
        found = index.find_rows(self._exact.queries, _AT + 1)
        return recall_of(self._rows, self._exact.rows, found, _AT)


def _digest(questions: Iterable[StoredQuestion]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for value, question, payload in questions:
        fields = [value, question, payload_json(payload, f"of the id {value}")]
        digest.update(json.dumps(fields).encode() + b"\n")
    return digest.hexdigest()
