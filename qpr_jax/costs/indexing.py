"""What `qpr index` will take."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import NoReturn

from qpr_jax.costs.encoding import EncodingCosts, measure_encoding
from qpr_jax.costs.estimate import WRITE_RATE, Estimate, disk_of, fits, refuse
from qpr_jax.costs.faiss_costs import FaissCosts, FaissSizes, faiss_sizes, measure_faiss
from qpr_jax.costs.rows import Sample
from qpr_jax.encoders.base import Encoder
from qpr_jax.errors import ref
from qpr_jax.files import StrPath
from qpr_jax.index.base import StoredQuestion
from qpr_jax.index.built_questions import write_questions
from qpr_jax.index.documents import Documents
from qpr_jax.index.recipe import Recipe, check_recipe, count_lists, fit_recipe
from qpr_jax.index.run import run_encoder, run_encoder_folder
from qpr_jax.index.statistics import Statistics
from qpr_jax.machine import held_memory

# Bytes a question: in the files of rows and of ids, and in memory while these are written.
_FACT_BYTES, _ID_BYTES, _WRITTEN_BYTES = 24, 14, 96
_CHUNK_BYTES = 100 << 20  # vectors, and their distances to lists, that are computed at once


@dataclasses.dataclass(frozen=True)
class IndexCosts:
    """What was measured for an index: to estimate it, and others of the same questions.

    Attributes:
      sample: of the questions.
      encoding: of these.
      dimension: of the vectors.
      store_seconds: to store a question, and to count its words, if that is done.
      record_bytes: of what is stored of a question: its text, its payload, an id that is a string.
      other_disk: bytes that are written besides, as those of the encoder.
    """

    sample: Sample
    encoding: EncodingCosts
    dimension: int
    store_seconds: float
    record_bytes: float
    other_disk: int

    def estimate(self, recipe: Recipe) -> Estimate:
        """What building takes; its seconds are measured."""
        count, fitted = self.sample.count, fit_recipe(recipe, self.sample.count)
        costs = measure_faiss(fitted, count, self.dimension)
        memory, disk = self._bytes(costs)
        encode = self.encoding.all_seconds(costs.encoded)
        store = count * (self.sample.read_seconds + self.store_seconds)
        return Estimate(
            seconds=store + encode + costs.seconds + (disk + costs.parts) / WRITE_RATE,
            memory=memory,
            disk=disk,
            count=count,
            rate=costs.encoded / max(encode, 1e-9),
            exact=self.sample.exact,
        )

    def sizes(self, recipe: Recipe) -> Estimate:
        """What building takes, without its seconds; nothing is measured."""
        count = self.sample.count
        sizes = faiss_sizes(fit_recipe(recipe, count), count, self.dimension)
        return Estimate(0, *self._bytes(sizes), count, exact=self.sample.exact)

    def _bytes(self, costs: FaissCosts | FaissSizes) -> tuple[int, int]:
        """The memory and the disk."""
        count = self.sample.count
        stored = (
            self.record_bytes + _FACT_BYTES
        ) * count  # mapped, and read while they are encoded
        building = stored + costs.memory + _CHUNK_BYTES
        memory = held_memory() + max(_WRITTEN_BYTES * count, building)
        disk = stored + _ID_BYTES * count + costs.held + self.other_disk
        return round(memory), round(disk)


def measure_index(
    sample: Sample, encoder: Encoder, *, other_disk: int = 0, statistics: bool = False
) -> IndexCosts:
    """Measure, for about a second, what an index of the questions of a sample takes.

    statistics: whether their words are counted for a re-ranker.
    """
    start, count = time.perf_counter(), max(1, len(sample.entries))
    stored = write_questions(
        (
            StoredQuestion(i if entry.id is None else entry.id, entry.question, entry.payload)
            for i, entry in enumerate(sample.entries)
        ),
        None,
    )
    if statistics:
        Statistics().add(sample.questions)
    store = (time.perf_counter() - start) / count
    encoding = measure_encoding(encoder, sample.questions)
    record = stored.record_bytes / count
    return IndexCosts(sample, encoding, encoder.dimension, store, record, other_disk)


def index_estimate(
    folder: StrPath,
    run: StrPath,
    recipe: Recipe,
    encoder: Encoder | None = None,
    documents: Documents | None = None,
) -> Callable[[Sample], Estimate]:
    """A function from a sample to what an index of `folder` takes, with the encoder of `run`.

    encoder: that of `run`, where it is loaded already. documents: another one of the questions.
    It raises a UserError, with the recipe that would fit, where memory or disk cannot hold it.
    """

    def estimate(sample: Sample) -> Estimate:
        loaded, source = encoder or run_encoder(run), run_encoder_folder(run)
        check_recipe(recipe, loaded.dimension)
        sources = [source, *([documents.folder] if documents else [])]
        here = pathlib.Path(folder).resolve()
        costs = measure_index(
            sample,
            documents.encoder if documents else loaded,
            other_disk=sum(disk_of(path) for path in sources if path.resolve().parent != here),
            statistics=any(source.glob("reranker*")),
        )
        found = costs.estimate(recipe)
        if not fits(found, folder):
            _refuse(costs, found, recipe, folder)
        return found

    return estimate


def _refuse(costs: IndexCosts, found: Estimate, recipe: Recipe, folder: StrPath) -> NoReturn:
    """Raise a UserError with the finest recipe that would fit, or without one."""
    for smaller in smaller_recipes(recipe, costs.dimension):
        if fits(costs.sizes(smaller), folder):
            factory = smaller.factory
            if smaller.assignments == recipe.assignments:
                refuse(found, folder, remedy=f"use {ref('factory', factory)}, which fits")
            refuse(
                found,
                folder,
                remedy=f"use {ref('factory', factory)} with {ref('assignments', 1)}, which fits",
            )
    refuse(found, folder, remedy="give fewer {questions}")


def smaller_recipes(recipe: Recipe, dimension: int) -> list[Recipe]:
    """Recipes that take less memory and less disk, the finest first."""
    lists = count_lists(recipe.factory) or 2000
    parts = max(n for n in range(1, dimension // 4 + 1) if dimension % n == 0)
    few = min(lists, 256)
    choices = [
        (f"IVF{lists},SQ8", recipe.assignments),
        (f"IVF{lists},SQ8", 1),
        (f"IVF{lists},PQ{parts}", 1),
        (f"IVF{few},PQ{parts}", 1),
    ]
    recipes = [dataclasses.replace(recipe, factory=f, assignments=a) for f, a in choices]
    return [smaller for smaller in recipes if smaller != recipe]
