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
from qpr_jax.encoders.base import parse_tensors
from qpr_jax.errors import UserError, spell
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
from qpr_jax.machine import peak_memory
from qpr_jax.reranking.light import (
    LIGHT,
    STACKED,
    LightModel,
    PairScorer,
    calibrate,
    features_of,
    rank_hits,
    read_light,
    save_light,
)
from qpr_jax.reranking.trees import Forest, predict
from qpr_jax.retriever import Retriever
from qpr_jax.training import boosting
from qpr_jax.training.boosting import CrossFit, Lists, assign_folds, cross_fit
from qpr_jax.training.candidates import Candidates, Finder, LogitCache
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.teacher import neighbors

log = logging.getLogger(__name__)

FORMAT = "qpr_jax trained reranker 1"
# Folders of a work directory, of a light and of a stacked re-ranker: the trees of the folds, and
# facts of the report.
FOLDERS = ("reranking", "reranking_cross")
LOGITS = "cross_logits"  # of a work directory
NAMES = (LIGHT, STACKED)
STACKED_CANDIDATES = 20  # as many as a cross-encoder has time for
_TREES = "folds.safetensors"
MIN_QUERIES = 50  # with a paraphrase among their hits; of fewer nothing can be learned
MAX_QUERIES = 5000  # of a run without labels
_TIMED = 1000  # queries


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
            lists = self.finder.find(first, queries)
            found = rank(first, queries, max(k, self.finder.dense + self.finder.lexical))
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
        fold = self.folds[lists.queries[lists.owners]]
        scores = np.empty(len(features))
        for number, forest in [(-1, self.model.forest), *enumerate(self.forests)]:
            scores[fold == number] = predict(forest, features[fold == number])
        return scores


def check_tools(config: TrainConfig) -> None:
    """UserError, before anything is trained, where a package that the stage needs is missing."""
    if config.rerank.kind != "none":
        boosting.require_lightgbm()


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
    dense, lexical = config.rerank.candidates, config.rerank.lexical_candidates
    finder = Finder(*(retriever, dataset.data.questions, vectors), dense=dense, lexical=lexical)
    return _train(folder, config, dataset, retriever.encoder.identity, vectors, finder)


def train_stacked(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    retriever: Retriever,
    vectors: np.ndarray,
    scorer: PairScorer,
) -> TrainedReranker | None:
    """As `train_light`, over fewer hits and with the logit of a cross-encoder as one more feature.

    It is shipped in export/reranker_cross/.
    """
    questions = dataset.data.questions
    logits = LogitCache(folder / LOGITS, scorer, questions)
    finder = Finder(retriever, questions, vectors, dense=STACKED_CANDIDATES, logits=logits)
    return _train(folder, config, dataset, retriever.encoder.identity, vectors, finder)


def _train(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: str,
    vectors: np.ndarray,
    finder: Finder,
) -> TrainedReranker | None:
    start = time.perf_counter()
    scorer = finder.logits.identity if finder.logits else ""
    state, shipped = folder / FOLDERS[bool(scorer)], folder / "export" / NAMES[bool(scorer)]
    queries, groups = training_queries(dataset)
    folds = np.full(len(dataset.data.questions), -1)
    folds[queries] = assign_folds(groups, config.seed)
    if (kept := _read(state, shipped, encoder, scorer)) is not None:
        return TrainedReranker(**kept, folds=folds, finder=finder)
    lists = finder.find(exact_search(vectors), queries)
    labels = relevant_hits(dataset, lists)
    usable = np.count_nonzero(np.bincount(lists.owners, labels, len(queries)))
    if usable < MIN_QUERIES:
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
    model = LightModel(
        encoder=encoder,
        candidates=finder.dense,
        features=features_of(scorer),
        forest=fitted.shipped,
        calibration=calibrate(fitted.scores, labels),
        lexical_candidates=finder.lexical,
        cross_encoder=scorer,
        settings={"seed": config.seed, **fitted.shipped_size._asdict()},
    )
    facts = {
        **_facts(fitted, model, labels, lists),
        "pairs_per_second": _rate(finder, model.forest, lists),
        "seconds": time.perf_counter() - start,
        "peak_memory_gib": peak_memory() / 2**30,
    }
    log.info(
        "re-ranker: %s trees of %s leaves; MRR of %s validation questions %.4f, out of fold %.4f",
        *(fitted.shipped_size.trees, fitted.shipped_size.leaves, f"{len(queries):,}"),
        *(facts["mrr@20"], facts["reranked_mrr@20"]),
    )
    save_light(shipped, model)
    _write(state, fitted.forests, facts, encoder, scorer)
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
    queries = lists.queries[lists.owners]
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
        labels = nearest[lists.owners] == lists.rows
    return labels.astype(np.int8)


def _facts(
    fitted: CrossFit, model: LightModel, labels: np.ndarray, lists: Candidates
) -> dict[str, Any]:
    """What the report says of a training; MRR is over all queries that were learned from."""
    heaviest = np.argsort(-fitted.importances, kind="stable")
    before = boosting.reciprocal_ranks(-lists.distances, labels, lists.starts)
    after = boosting.reciprocal_ranks(fitted.scores, labels, lists.starts)
    return {
        "candidates": model.candidates,
        "lexical_candidates": model.lexical_candidates,
        **({"cross_encoder": model.cross_encoder} if model.cross_encoder else {}),
        "queries": len(lists.queries),
        "hits": len(labels),
        "relevant_hits": int(labels.sum()),
        **fitted.shipped_size._asdict(),
        "sizes_of_folds": [size._asdict() for size in fitted.sizes],
        "mrr@20": float(before.mean()),
        "reranked_mrr@20": float(after.mean()),
        "importances": {model.features[i]: float(fitted.importances[i]) for i in heaviest},
    }


def _rate(finder: Finder, forest: Forest, lists: Candidates) -> float:
    """Hits that are scored in a second, those of many queries at a time."""
    count = min(_TIMED, len(lists.queries))
    hits = int(lists.starts[count])
    some = Candidates(
        lists.queries[:count], lists.rows[:hits], lists.distances[:hits], lists.starts[: count + 1]
    )
    start = time.perf_counter()
    predict(forest, finder.features(some))
    return hits / (time.perf_counter() - start)


def _write(
    folder: StrPath, forests: list[Forest], facts: dict[str, Any], encoder: str, scorer: str
) -> None:
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}
    for i, forest in enumerate(forests):
        tensors |= {f"{i}.{name}": array for name, array in forest._asdict().items()}
    with replace_folder(folder) as part:
        with write_atomically(part / _TREES) as file:
            file.write(save(tensors))
        known = {"encoder": encoder, "cross_encoder": scorer, "facts": facts}
        write_manifest(part, [_TREES], format=FORMAT, **known)


def _read(
    folder: pathlib.Path, shipped: pathlib.Path, encoder: str, scorer: str
) -> dict[str, Any] | None:
    """What `_train` left when it was done; None where it was not."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = read_manifest(folder, format=FORMAT)
    if (manifest.get("encoder"), manifest.get("cross_encoder")) != (encoder, scorer):
        return None
    tensors = parse_tensors(read_verified(folder, _TREES, manifest), str(folder))
    count = len(tensors) // len(Forest._fields)
    forests = [Forest(*(tensors[f"{i}.{name}"] for name in Forest._fields)) for i in range(count)]
    return {"model": read_light(shipped), "forests": forests, "facts": manifest["facts"]}
