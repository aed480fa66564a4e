"""The stage of a run after the index: train the light re-ranker on the validation questions.

It learns from hits of an encoder that has not seen the queries, so these are held out: all members
of the validation clusters. Their own scores come from trees that have not seen their cluster (see
`boosting`); the test questions are scored by the trees that are shipped.
"""

from __future__ import annotations

import itertools
import logging
import pathlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.splits import VALIDATION
from qpr_jax.encoders.base import Encoder, parse_tensors
from qpr_jax.errors import UserError, spell
from qpr_jax.evaluation.lexical import bm25_search
from qpr_jax.evaluation.retrieval import RankFn, exact_search, rank
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    read_manifest,
    read_verified,
    replace_folder,
    write_atomically,
    write_manifest,
)
from qpr_jax.index.base import Hit
from qpr_jax.index.statistics import Statistics
from qpr_jax.machine import peak_memory
from qpr_jax.reranking.features import FEATURES, FeatureExtractor
from qpr_jax.reranking.light import (
    LIGHT,
    LightModel,
    LightReranker,
    calibrate,
    rank_hits,
    read_light,
    save_light,
)
from qpr_jax.reranking.trees import Forest, predict
from qpr_jax.retriever import Retriever
from qpr_jax.training import boosting
from qpr_jax.training.boosting import CrossFit, Lists, assign_folds, cross_fit
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import neighbors

log = logging.getLogger(__name__)

FORMAT = "qpr_jax trained reranker 1"
FOLDER = "reranking"  # of a work directory: the trees of the folds, and facts of the report
_TREES = "folds.safetensors"
MIN_QUERIES = 50  # with a paraphrase among their hits; of fewer nothing can be learned
MAX_QUERIES = 5000  # of a run without labels
_BLOCK = 1024  # queries whose distances are computed at once


@dataclass(frozen=True)
class Candidates:
    """The first stage's hits of q queries, the query itself left out.

    Attributes:
      queries: int64 [q], rows of questions.
      rows: int64 [m], rows of the hits, those of one query after those of another.
      distances: float32 [m].
      starts: int64 [q + 1].
    """

    queries: np.ndarray
    rows: np.ndarray
    distances: np.ndarray
    starts: np.ndarray


@dataclass(frozen=True)
class TrainedReranker:
    """The re-ranker of a run, with what scores its validation questions honestly.

    Attributes:
      model: what is shipped.
      forests: of the folds.
      folds: int64 [Q], of each question; -1 for one that no tree was fitted to.
      facts: of the report.
      finder: finds candidates and their features.
    """

    model: LightModel
    forests: list[Forest]
    folds: np.ndarray
    facts: dict[str, Any]
    finder: Finder

    def search(self, first: RankFn) -> RankFn:
        """The search of two stages over a first stage; validation questions out of fold."""

        def search(queries: np.ndarray, k: int) -> np.ndarray:
            most = self.finder.count
            found = np.full((len(queries), max(k, most)), -1, np.int64)
            found[:] = rank(first, queries, found.shape[1])
            lists = self.finder.candidates(found[:, : self.model.candidates], queries)
            scores = self.scores(lists)
            order = rank_hits(scores, lists.distances, lists.rows, lists.starts)
            for i, (start, stop) in enumerate(itertools.pairwise(lists.starts.tolist())):
                best = lists.rows[order[start:stop]]
                rest = found[i][~np.isin(found[i], best)]
                found[i] = np.concatenate([best, rest])[: found.shape[1]]
            return found[:, :k]

        return search

    def scores(self, lists: Candidates) -> np.ndarray:
        """Raw scores of candidates by the trees that have not seen their query: float64 [m]."""
        features = self.finder.features(lists)
        fold = np.repeat(self.folds[lists.queries], np.diff(lists.starts))
        scores = np.empty(len(features))
        for number, forest in [(-1, self.model.forest), *enumerate(self.forests)]:
            scores[fold == number] = predict(forest, features[fold == number])
        return scores


class Finder:
    """Candidates of questions of the run, and their features."""

    def __init__(
        self, config: TrainConfig, questions: list[str], vectors: np.ndarray, encoder: Encoder
    ) -> None:
        self.questions, self.vectors = questions, vectors
        self.lexical = config.rerank.lexical_candidates
        self.count = config.rerank.candidates + self.lexical
        self.statistics = Statistics.build(questions)
        self._extractor = FeatureExtractor(encoder, self.statistics)
        self._bm25 = bm25_search(questions) if self.lexical else None

    def candidates(self, found: np.ndarray, queries: np.ndarray) -> Candidates:
        """The hits `found`, int64 [q, k], of queries, and those of BM25 if there are any."""
        if self._bm25:
            more = rank(self._bm25, queries, self.lexical)
            known = (more[:, :, None] == found[:, None, :]).any(axis=2)
            found = np.concatenate([found, np.where(known, -1, more)], axis=1)
        valid = found >= 0
        starts = np.concatenate([[0], np.cumsum(valid.sum(axis=1))])
        distances = np.empty(found.shape, np.float32)
        for start in range(0, len(found), _BLOCK):
            block = slice(start, start + _BLOCK)
            ends = self.vectors[found[block]]
            distances[block] = ((self.vectors[queries[block]][:, None] - ends) ** 2).sum(axis=2)
        return Candidates(np.asarray(queries), found[valid], distances[valid], starts)

    def features(self, lists: Candidates) -> np.ndarray:
        """The features of candidates, float32 [m, f]."""
        texts = self.questions
        return self._extractor.compute(
            [texts[i] for i in lists.queries.tolist()],
            [texts[i] for i in lists.rows.tolist()],
            lists.distances,
            lists.starts,
        )


def check_tools(config: TrainConfig) -> None:
    """UserError, before anything is trained, where a package that the stage needs is missing."""
    if config.rerank.kind != "none":
        boosting.require_lightgbm()
        if config.rerank.lexical_candidates:
            bm25_search(["a question"])


def train_light(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    retriever: Retriever,
    vectors: np.ndarray,
) -> TrainedReranker | None:
    """Train the re-ranker of a run, or read it where that is done; None without one.

    Args:
      folder: the work directory; gets export/reranker/, which is shipped, and reranking/.
      config: its section `rerank` says whether there is one.
      dataset: the questions and their clusters or, without these, the teacher.
      retriever: the encoder and the index of the run.
      vectors: of all questions, float32 [Q, d].
    """
    if config.rerank.kind == "none":
        return None
    start = time.perf_counter()
    finder = Finder(config, dataset.data.questions, vectors, retriever.encoder)
    queries, groups = training_queries(dataset)
    folds = np.full(len(dataset.data.questions), -1)
    folds[queries] = assign_folds(groups, config.seed)
    if (kept := _read(folder, retriever.encoder)) is not None:
        return TrainedReranker(**kept, folds=folds, finder=finder)
    found = rank(exact_search(vectors), queries, config.rerank.candidates)
    lists = finder.candidates(found, queries)
    labels = relevant_hits(dataset, lists)
    paraphrases = np.add.reduceat(labels, lists.starts[:-1]) if len(queries) else labels
    if (usable := int((paraphrases > 0).sum())) < MIN_QUERIES:
        log.warning(
            "no re-ranker: expected %s validation questions or more with a paraphrase among their "
            "hits, got %s; %s",
            MIN_QUERIES,
            usable,
            spell("raise {data.held_out_pairs}, or set {rerank.kind=none}"),
        )
        return None
    features = finder.features(lists)
    fitted = cross_fit(Lists(features, labels, lists.starts, folds[queries]), config.seed)
    model = _make_model(config, retriever.encoder, fitted, labels)
    facts = {
        **_facts(fitted, len(queries), labels, lists),
        **_speed(LightReranker(model, retriever.encoder, finder.statistics), finder, lists),
        "seconds": time.perf_counter() - start,
        "peak_memory_gib": peak_memory() / 2**30,
    }
    log.info(
        "re-ranker: %s trees of %s leaves; MRR of %s validation questions %.4f, out of fold %.4f",
        *(fitted.shipped_size.trees, fitted.shipped_size.leaves, f"{len(queries):,}"),
        *(facts["mrr@20"], facts["reranked_mrr@20"]),
    )
    save_light(folder / "export" / LIGHT, model)
    _write(folder / FOLDER, fitted.forests, facts, retriever.encoder)
    return TrainedReranker(model, fitted.forests, folds, facts, finder)


def training_queries(dataset: TrainDataset) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the queries to learn from, int64 [q], and what puts them into folds, int64 [q].

    Those are the members of the validation clusters or, without clusters, a sample of the
    validation questions.
    """
    held_out = np.flatnonzero(dataset.splits.split_of == VALIDATION)
    clusters = dataset.clusters[held_out]
    sizes = np.bincount(clusters[clusters >= 0], minlength=1)
    clustered = (clusters >= 0) & (sizes[np.maximum(clusters, 0)] > 1)
    if clustered.any():
        return held_out[clustered], clusters[clustered]
    sample = np.random.default_rng(0).permutation(held_out)[:MAX_QUERIES]
    return np.sort(sample), np.sort(sample)


def relevant_hits(dataset: TrainDataset, lists: Candidates) -> np.ndarray:
    """Which hits mean the same as their query, int8 [m].

    They are those of its cluster or, without clusters, the one that the teacher finds nearest.
    """
    queries = np.repeat(lists.queries, np.diff(lists.starts))
    if len(dataset.splits.pairs["validation"]):
        labels = dataset.clusters[queries] == dataset.clusters[lists.rows]
    else:
        if dataset.teacher is None:
            raise UserError(
                "expected clusters or a teacher to learn from, got neither",
                setting="rerank.kind",
                remedy="set {rerank.kind=none}, or {teacher.model}",
            )
        nearest = neighbors(dataset.teacher, len(dataset.data.questions), lists.queries)[:, 0]
        labels = np.repeat(nearest, np.diff(lists.starts)) == lists.rows
    return labels.astype(np.int8)


def _make_model(
    config: TrainConfig, encoder: Encoder, fitted: CrossFit, labels: np.ndarray
) -> LightModel:
    return LightModel(
        encoder=encoder.identity,
        candidates=config.rerank.candidates,
        features=FEATURES,
        forest=fitted.shipped,
        calibration=calibrate(fitted.scores, labels),
        lexical_candidates=config.rerank.lexical_candidates,
        settings={"seed": config.seed, **fitted.shipped_size._asdict()},
    )


def _facts(fitted: CrossFit, queries: int, labels: np.ndarray, lists: Candidates) -> dict[str, Any]:
    """What the report says of a training; MRR is over all queries that were learned from."""
    heaviest = np.argsort(-fitted.importances, kind="stable")
    before = boosting.reciprocal_ranks(-lists.distances, labels, lists.starts)
    after = boosting.reciprocal_ranks(fitted.scores, labels, lists.starts)
    return {
        "queries": queries,
        "hits": len(labels),
        "relevant_hits": int(labels.sum()),
        **fitted.shipped_size._asdict(),
        "sizes_of_folds": [size._asdict() for size in fitted.sizes],
        "mrr@20": float(before.mean()),
        "reranked_mrr@20": float(after.mean()),
        "importances": {FEATURES[i]: float(fitted.importances[i]) for i in heaviest},
    }


def _speed(reranker: LightReranker, finder: Finder, lists: Candidates) -> dict[str, float]:
    """The time to re-rank the hits of one query, and of many at a time."""
    texts, hits = finder.questions, []
    for start, stop in itertools.pairwise(lists.starts[:501].tolist()):
        part = slice(start, stop)
        rows, distances = lists.rows[part].tolist(), lists.distances[part].tolist()
        hits.append([Hit(r, texts[r], d) for r, d in zip(rows, distances, strict=True)])
    queries = [texts[i] for i in lists.queries[: len(hits)].tolist()]
    reranker.rerank(queries[:10], hits[:10])  # compiles
    times = []
    for query, found in zip(queries, hits, strict=True):
        start = time.perf_counter()
        reranker.rerank([query], [found])
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    reranker.rerank(queries, hits)
    seconds = time.perf_counter() - start
    return {
        "rerank_ms_p50": 1e3 * float(np.median(times)),
        "pairs_per_second": sum(map(len, hits)) / seconds,
    }


def _write(folder: StrPath, forests: list[Forest], facts: dict[str, Any], encoder: Encoder) -> None:
    from safetensors.numpy import save

    tensors = {
        f"{i}.{n}": a for i, forest in enumerate(forests) for n, a in forest._asdict().items()
    }
    with replace_folder(folder) as part:
        with write_atomically(part / _TREES) as file:
            file.write(save(tensors))
        write_manifest(part, [_TREES], format=FORMAT, encoder=encoder.identity, facts=facts)


def _read(folder: pathlib.Path, encoder: Encoder) -> dict[str, Any] | None:
    """What `train_light` left when it was done."""
    where = folder / FOLDER
    if not (where / MANIFEST).is_file():
        return None
    manifest = read_manifest(where, format=FORMAT)
    if manifest.get("encoder") != encoder.identity:
        return None
    tensors = parse_tensors(read_verified(where, _TREES, manifest), str(where))
    count = len(tensors) // len(Forest._fields)
    forests = [Forest(*(tensors[f"{i}.{name}"] for name in Forest._fields)) for i in range(count)]
    model = read_light(folder / "export" / LIGHT)
    return {"model": model, "forests": forests, "facts": manifest["facts"]}
