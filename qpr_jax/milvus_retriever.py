"""A `Retriever` of a collection of Milvus, which other machines read and write, too."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.load import save_encoder
from qpr_jax.encoders.packaged import default_folder
from qpr_jax.errors import UserError
from qpr_jax.files import StrPath
from qpr_jax.index.base import Check, StoredQuestion
from qpr_jax.index.built_questions import accept
from qpr_jax.index.milvus_index import MilvusIndex
from qpr_jax.index.milvus_load import (
    STATISTICS,
    Load,
    find_collection,
    require_collection,
    require_encoder,
)
from qpr_jax.index.milvus_recipe import milvus_recipe
from qpr_jax.index.milvus_records import Records
from qpr_jax.index.milvus_server import Address, MissingError, Server
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.run import run_recipe
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking.second_stage import SecondStages, read_stages
from qpr_jax.retriever import Log, Retriever
from qpr_jax.searcher import Parts

_LOOK = 1.0  # seconds between two looks whether the collection was replaced


class MilvusRetriever(Retriever):
    """A `Retriever` of a collection; it takes a newer load, or a newer re-ranker, by itself."""

    def __init__(
        self, server: Server, cross_encoder: StrPath | None = None, *, half: bool = False
    ) -> None:
        """UserError where there is no collection of ours, or its files are damaged."""
        self._server, self._options = server, (cross_encoder, half)
        self._records = Records(server)
        super(Retriever, self).__init__(self._read())
        self._looked = time.monotonic()
        self._looking, self._writing = threading.Lock(), threading.Lock()

    @property
    def collection(self) -> MilvusIndex:
        """The index."""
        index = self._parts.index
        if not isinstance(index, MilvusIndex):
            raise TypeError(f"expected a MilvusIndex, got {type(index).__name__}")
        return index

    def _read(self) -> Parts:
        cross_encoder, half = self._options
        while True:
            facts = require_collection(self._server)
            properties = facts["properties"]
            try:
                folder = self._records.fetch_files(properties["qpr.version"])
            except UserError:
                if (find_collection(self._server) or {}).get("properties") != properties:
                    continue  # it was replaced meanwhile
                raise
            encoder, stages = read_stages(folder, cross_encoder, half=half)
            require_encoder(self._server, facts, encoder)
            recipe = Recipe(
                properties["qpr.factory"], properties["qpr.metric"], int(properties["qpr.probes"])
            )
            statistics = Statistics.from_bytes((folder / STATISTICS).read_bytes(), f"{folder}")
            index = MilvusIndex(self._server, self._records, facts, recipe, statistics)
            return Parts(encoder, index, stages)

    def _newest(self) -> Parts:
        if time.monotonic() - self._looked >= _LOOK and self._looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looking.release()
        return self._parts

    def _look(self) -> None:
        """Take a newer load, or newer files of the run, if there are any."""
        facts = find_collection(self._server)
        ours = self.collection.build, self.collection.version
        if facts is None or ours != (facts["collection_name"], facts["properties"]["qpr.version"]):
            before = self.collection
            self._parts = self._read()
            self.collection.follow(before)
        self._looked = time.monotonic()

    def search(self, *args: Any, **kwargs: Any) -> Any:
        """As of `Retriever`."""
        try:
            return super().search(*args, **kwargs)
        except MissingError:  # it was replaced within the last second
            with self._looking:
                self._look()
            return super().search(*args, **kwargs)

    search.__doc__ = Retriever.search.__doc__

    @property
    def state(self) -> str:
        """Names the load, and the version of the run's files."""
        return f"{self.collection.build} {self.collection.version}"

    def __repr__(self) -> str:
        parts = f"{self.encoder!r}, {self.collection!r}, {self.second_stages!r}"
        return f"<Retriever in {self._server.address}: {parts}>"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold off other changes of this process, and take a newer load first."""
        with self._writing:
            with self._looking:
                self._look()
            yield

    def compact(self, log: Log = lambda line: None) -> None:
        """Nothing, but for a line: Milvus does so by itself."""
        log(f"{self._server.address}: Milvus compacts its collections by itself")

    def save(self, folder: StrPath) -> None:
        """Nothing for its own address, where all is; UserError for another, or a folder."""
        if str(folder) != str(self._server.address):
            raise UserError(
                f"expected {self._server.address}, which has every change, got another",
                setting="folder",
                remedy="load the questions there with `qpr index`",
            )


def open_collection(
    address: str, cross_encoder: StrPath | None = None, *, half: bool = False
) -> MilvusRetriever:
    """The retriever of an address; arguments as of `Retriever.load`."""
    return MilvusRetriever(Server(Address.parse(address)), cross_encoder, half=half)


def load_collection(
    address: str,
    questions: Iterable[StoredQuestion],
    run: StrPath | Encoder | None,
    cross_encoder: StrPath | None = None,
    *,
    recipe: Recipe | None = None,
    check: Check = accept,
    log: Log = lambda line: None,
) -> MilvusRetriever:
    """Load questions into a collection, in place of what it has; arguments as of `build_in`."""
    source = default_folder() if run is None else run
    encoder, stages = read_stages(source)
    name = encoder.summary().library if source is encoder else pathlib.Path(str(source)).name
    own = encoder, stages, name
    return _load(address, questions, own, recipe, check, 0, cross_encoder=cross_encoder, log=log)


def save_collection(address: str, retriever: Retriever) -> None:
    """Load the questions of a retriever, with its encoder and its re-rankers."""
    own = retriever.encoder, retriever.second_stages, retriever.encoder.summary().library
    index = retriever.index
    _load(address, index.store, own, index.requested, accept, index.next_id)


def _load(
    address: str,
    questions: Iterable[StoredQuestion],
    own: tuple[Encoder, SecondStages, str],
    recipe: Recipe | None,
    check: Check,
    next_id: int,
    *,
    cross_encoder: StrPath | None = None,
    log: Log = lambda line: None,
) -> MilvusRetriever:
    """Load questions; own: the encoder, its re-rankers, and its name."""
    encoder, stages, name = own
    server = Server(Address.parse(address))
    how = milvus_recipe(
        recipe or run_recipe(encoder), encoder.dimension, assignments_given=recipe is not None
    )
    files = run_files(encoder, stages)
    Load(server, encoder, how, name).run(questions, check, files, next_id, log)
    return MilvusRetriever(server, cross_encoder)


def run_files(encoder: Encoder, stages: SecondStages) -> dict[str, bytes]:
    """The files of an encoder's folder, with its re-rankers and calibration, by their names."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary, "export")
        save_encoder(folder, encoder)
        stages.save_models(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def renew_run(address: str, run: StrPath) -> bool:
    """Give a collection the encoder, re-rankers and calibration of `run`; whether they are new.

    The vectors stay, so the encoder must be that of the collection, or extend it. Servers of the
    collection take the new files within a second.
    """
    server = Server(Address.parse(address))
    records = Records(server)
    facts = require_collection(server)
    encoder, stages = read_stages(run)
    require_encoder(server, facts, encoder)
    before = facts["properties"]["qpr.version"]
    statistics = (records.fetch_files(before) / STATISTICS).read_bytes()
    version = records.write_files({**run_files(encoder, stages), STATISTICS: statistics})
    if version == before:
        return False
    server.set_properties(facts["collection_name"], {"qpr.version": version})
    records.remove_files(before, version)
    return True
