"""Questions in a collection of Milvus, which any number of machines search and change.

The collection NAME_qpr_BUILD has an entity for each text of a question, with the fields

    id      the id as text; characters that mean something in Milvus's expressions as %XX; of the
            second text and further ones with {1}, {2}, ... behind it
    data    JSON: `id`, `text`, `payload`; or `exact`, these as text, where Milvus would change them
    row     orders questions: 0, 1, ... when the collection was made, later a time
    vector  float32 [d]

Its properties have the name and the fingerprint of the encoder, which every machine loads by this
name, and the index_config. Calls use the alias NAME of the newest complete collection, so an index
is replaced at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

import numpy as np

from qpr_jax.data.entries import Id
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError, later_format
from qpr_jax.index.milvus_server import LEVELS, MAX_LISTS, Server, index_parameters
from qpr_jax.index.protocol import (
    AUTO,
    Hit,
    IndexConfig,
    Question,
    SaveEncoder,
    check_encoder,
    cleaner_of,
    texts_of,
)
from qpr_jax.index.questions import RepeatedIdError, as_hit, question_json
from qpr_jax.text.cleaning import Cleaner

FORMAT = "qpr_jax milvus 1"
_CHUNK, _HITS = 512, 10_000  # questions of a call; hits of a call
_MOST, _MAX_DATA, _MAX_EF = 16_384, 65_536, 32_768  # Milvus's limits
_SAMPLE = 50_000  # questions in which shared sentences are looked for
_LOOK = 1.0  # seconds between two looks whether the collection was replaced
_PATIENCE = 3600.0  # seconds that the server may take to store and index a new collection
_SAFE = "".join(map(chr, range(32, 127))).translate(dict.fromkeys(map(ord, "\"'\\%{}")))
_ODD = re.compile("[\ud800-\udfff]|\\d{19}")  # Milvus refuses surrogates and rounds numbers
Entity = dict[str, Any]


class MilvusStore:
    """A `Store` in Milvus; `encoder_name` is where machines find its encoder."""

    encoder_name: str
    defaults: ClassVar[Mapping[str, Any]] = {"factory": AUTO}  # it lacks most of FAISS's

    def __init__(self, address: str) -> None:
        """Open the collection of an address; UserError if there is none."""
        self.address, self._server = address, Server(address)
        self._expected, self._build = "", ""  # the fingerprint of an encoder, if one is required
        self._name, self._changing = self._server.name, threading.RLock()
        self._changes, self._removals, self._seen = 0, 1, 0  # the first read sees all
        self._looked = -_LOOK
        self._look()

    @classmethod
    def open(cls, location: str) -> Self:
        """See `Store`."""
        return cls(location)

    @classmethod
    def build(
        cls,
        location: str,
        questions: Iterable[Question],
        encoder: Encoder,
        index_config: IndexConfig,
        encoder_name: str,
        save_encoder: SaveEncoder,
    ) -> Self:
        """See `Store`; the next call removes what a killed process wrote."""
        if not encoder_name:
            what = "expected an encoder of a folder, got one from Python, which other machines lack"
            raise UserError(what, remedy="save it in a folder first")
        server = Server(location)
        old, name = _find(server), server.name
        if old:
            check_encoder(location, old["properties"]["qpr.encoder"], encoder.fingerprint)
        dimension = encoder.dimension
        index = index_parameters(index_config, dimension)
        present = old["collection_name"] if old else ""
        for other in server.call("list_collections"):  # killed processes left the others
            if re.fullmatch(rf"{name}_qpr_[0-9a-f]{{12}}", other) and other != present:
                server.call("drop_collection", other)
        build = f"{name}_qpr_{uuid.uuid4().hex[:12]}"
        facts = {"format": FORMAT, "encoder_name": encoder_name, "encoder": encoder.fingerprint}
        facts["index_config"] = json.dumps(dataclasses.asdict(index_config))
        facts["dimension"] = str(dimension)
        stream = iter(questions)
        first = [*itertools.islice(stream, _SAMPLE)]
        cleaner = cleaner_of(first, index_config)
        facts["shared"] = json.dumps(cleaner.shared)
        _create(server, build, dimension, {f"qpr.{key}": value for key, value in facts.items()})
        keys: set[str] = set()
        for some in _chunks(itertools.chain(first, stream)):
            entities = [_entity(q, row) for row, q in enumerate(some, len(keys))]
            for question, entity in zip(some, entities, strict=True):
                if entity["id"] in keys:
                    raise RepeatedIdError(question.id, len(keys))
                keys.add(entity["id"])
            vectors = encoder.encode(cleaner.clean_all(texts_of(some, index_config)))
            _upsert(server, build, entities, vectors, index_config.texts)
        params = server.client.prepare_index_params()
        params.add_index("vector", **index)
        server.call("flush", build, timeout=_PATIENCE)
        server.call("create_index", build, index_params=params, timeout=_PATIENCE)
        server.call("load_collection", build, timeout=_PATIENCE)
        server.call("alter_alias" if old else "create_alias", build, name)
        if old:
            server.call("drop_collection", present)
        return cls(location)

    def require(self, encoder: str) -> None:
        """See `Store`."""
        check_encoder(self.address, self.encoder, encoder)
        self._expected = encoder

    def __repr__(self) -> str:
        return f"<MilvusStore: {self.address}, {self.index_config.factory}>"

    def __len__(self) -> int:
        """Return the number of questions."""
        found = self._read("query", filter="", output_fields=["count(*)"])
        return int(found[0]["count(*)"]) // self.index_config.texts

    @property
    def location(self) -> str:
        """Its address."""
        return self.address

    def compact(self) -> None:
        """Do nothing: the server compacts by itself."""

    @property
    def version(self) -> str:
        """Name of the collection, and how often this store changed it."""
        self._look()
        return f"{self._build} {self._changes}"

    def facts(self) -> dict[str, Any]:
        """See `Store`."""
        facts = {"store": "milvus", "collection": self._build, "encoder_name": self.encoder_name}
        return facts | {"consistency": self._server.consistency}

    def search(self, vectors: np.ndarray, k: int) -> list[list[Hit]]:
        """Find the `k` (at most 16,384) nearest questions of each vector float32 [n, d]."""
        if k > _MOST:
            raise UserError(f"`k`: expected 1 to {_MOST:,}, the limit of Milvus, got {k:,}")
        self._look()
        limit = min(k * self.index_config.texts, _MOST)  # at least k questions have so many texts
        size = max(1, min(256, _HITS // limit))
        results: list[list[Hit]] = []
        for start in range(0, len(vectors), size):
            some = [*np.asarray(vectors[start : start + size], np.float32)]
            found = self._search(some, limit, self.index_config.nprobe)
            if any(len(hits) < k for hits in found):  # the lists that were read may have fewer
                found = self._search(some, limit, MAX_LISTS)
            results += [hits[:k] for hits in found]
        return results

    def _search(self, data: list[Any], k: int, probes: int) -> list[list[Hit]]:
        metric, sign = self.index_config.metric, -1.0 if self.index_config.metric == "ip" else 1.0
        effort = {"nprobe": min(probes, MAX_LISTS), "ef": min(max(2 * probes, k), _MAX_EF)}
        parameters = {"metric_type": metric.upper(), "params": effort}
        fields = {"anns_field": "vector", "output_fields": ["data", "row"]}
        columns, results = (None, *self.index_config.text_columns), []
        for found in self._read("search", data=data, limit=k, search_params=parameters, **fields):
            hits: dict[str, Hit] = {}
            for hit in sorted(found, key=lambda h: (sign * h["distance"], h["entity"]["row"])):
                key, _, number = hit["id"].partition("{")
                if key not in hits:
                    column = columns[int(number[:-1] or 0)]
                    hits[key] = as_hit(_question(hit["entity"]), sign * hit["distance"], column)
            results.append([*hits.values()])
        return results

    def add(self, questions: Sequence[Question], vectors: np.ndarray) -> None:
        """See `Store`, 512 questions after the other; if it fails, the same call completes it."""
        with self.changing():
            entities = [_entity(q, row) for row, q in enumerate(questions, time.time_ns())]
            _upsert(self._server, self._name, entities, vectors, self.index_config.texts)
            self._changes += 1

    def remove(self, ids: Sequence[Id]) -> int:
        """See `Store`."""
        with self.changing():
            there = self._by_key(map(_key, ids))
            for keys in _chunks(there):
                texts = range(self.index_config.texts)
                ids = [_key_of_text(key, number) for key in keys for number in texts]
                self._server.call("delete", self._name, ids=ids)
            self._changes += 1
            self._removals += len(there)
            return len(there)

    def get(self, ids: Sequence[Id]) -> list[Question | None]:
        """See `Store`."""
        there = self._by_key(map(_key, ids))
        return [there.get(_key(value)) for value in ids]

    def questions(self) -> Iterator[Question]:
        """See `Store`."""
        for keys in self._keys():
            there = self._by_key(keys)
            yield from (there[key] for key in keys if key in there)

    def blocks(self) -> Iterator[tuple[list[Question], np.ndarray]]:
        """See `Store`."""
        for keys in self._keys():
            found = self._read("query", ids=keys, output_fields=["data", "vector"])
            vectors = np.array([entity["vector"] for entity in found], np.float32)
            yield [_question(entity) for entity in found], vectors

    def _keys(self) -> Iterator[list[str]]:
        """Yield the keys of all questions in their order, some at a time."""
        pages, rows = self._read("query_iterator", output_fields=["row"]), []
        while page := self._server.answer(pages.next):
            rows += [(entity["row"], entity["id"]) for entity in page if "{" not in entity["id"]]
        return _chunks(key for _, key in sorted(rows))

    def new_ids(self, count: int) -> list[Id]:
        """Return UUIDs."""
        return [str(uuid.uuid4()) for _ in range(count)]

    def changing(self) -> AbstractContextManager[Any]:
        """Hold off the changes of other threads; other processes may change meanwhile."""
        return self._changing

    def _by_key(self, keys: Iterable[str]) -> dict[str, Question]:
        """Return the questions of the keys that exist."""
        found = {}
        for some in _chunks(keys):
            for entity in self._read("query", ids=some, output_fields=["id", "data"]):
                found[entity["id"]] = _question(entity)
        return found

    def _read(self, method: str, **query: Any) -> Any:
        """Call what reads; "Strong" after removals, which a session of pymilvus may miss."""
        level, removals = self._server.consistency, self._removals
        if level == "session" and self._seen < removals:
            level = "strong"
        found = self._server.call(method, self._name, consistency_level=LEVELS[level], **query)
        if level == "strong":
            self._seen = max(self._seen, removals)
        return found

    def _look(self) -> None:
        """Read the properties, at most once a second: the collection may have been replaced."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        found = _find(self._server)
        if found is None:
            what = f"{self.address}: found no collection"
            raise UserError(what, remedy="make it with `qpr index`, or name another one")
        properties = found["properties"]
        if found["collection_name"] != self._build:
            check_encoder(self.address, properties["qpr.encoder"], self._expected)
        self._build, self.encoder_name = found["collection_name"], properties["qpr.encoder_name"]
        self.encoder, self.dimension = properties["qpr.encoder"], int(properties["qpr.dimension"])
        self.index_config = IndexConfig(**json.loads(properties["qpr.index_config"]))
        self.cleaner = Cleaner(json.loads(properties["qpr.shared"]))
        self._looked = now


def _find(server: Server) -> dict[str, Any] | None:
    """Return the facts of the collection of an address, or None if there is none."""
    if not server.call("has_collection", server.name):
        return None
    found: dict[str, Any] = server.call("describe_collection", server.name)
    if found["properties"].get("qpr.format") != FORMAT:
        what = f"{server.address}: expected a collection of `qpr index` ({FORMAT})"
        remedy = later_format(found["properties"].get("qpr.format"), [FORMAT])
        raise UserError(what, remedy=remedy or "name another collection")
    return found


def _create(server: Server, build: str, dimension: int, properties: dict[str, str]) -> None:
    schema = server.client.create_schema(auto_id=False)
    longest = 3 * 1024 + len("{999}")  # as %XX
    schema.add_field("id", server.types.VARCHAR, is_primary=True, max_length=longest)
    schema.add_field("data", server.types.JSON)
    schema.add_field("row", server.types.INT64)
    schema.add_field("vector", server.types.FLOAT_VECTOR, dim=dimension)
    server.call("create_collection", build, schema=schema, properties=properties)


def _upsert(
    server: Server, name: str, entities: list[Entity], vectors: np.ndarray, texts: int
) -> None:
    # An insertion would store a question twice if pymilvus repeats the call.
    keys = ((entity, _key_of_text(entity["id"], i)) for entity in entities for i in range(texts))
    rows = zip(keys, np.asarray(vectors, np.float32), strict=True)
    for some in _chunks(rows, _CHUNK // texts * texts):  # all texts of a question in one call
        data = [entity | {"id": key, "vector": vector} for (entity, key), vector in some]
        server.call("upsert", name, data=data)


def _chunks(items: Iterable[Any], size: int = _CHUNK) -> Iterator[list[Any]]:
    iterator = iter(items)
    while some := [*itertools.islice(iterator, size)]:
        yield some


def _key(value: Id) -> str:  # ids that print alike have the same
    return urllib.parse.quote(str(value), safe=_SAFE, errors="surrogatepass")


def _key_of_text(key: str, number: int) -> str:
    return f"{key}{{{number}}}" if number else key  # no key has braces


def _entity(question: Question, row: int) -> Entity:
    data = dict(zip(Question._fields, json.loads(question_json(question)), strict=True))
    text = json.dumps(data, ensure_ascii=False)
    if _ODD.search(text):
        text = json.dumps({"exact": json.dumps(data)})
    if (size := len(text.encode())) > _MAX_DATA:
        what = f"Milvus stores up to {_MAX_DATA:,} bytes, got {size:,}"
        where = f"question {question.id!s:.60}"
        raise UserError(f"{where}: {what}", remedy="shorten it, or use a folder")
    return {"id": _key(question.id), "data": text, "row": row}


def _question(entity: Entity) -> Question:
    data = entity["data"]
    data = json.loads(data["exact"]) if "exact" in data else data
    return Question(data["id"], data["text"], data["payload"])
