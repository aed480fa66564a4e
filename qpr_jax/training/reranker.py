"""The stage of a run after the index: train the light re-ranker on the validation questions.

It must learn from queries that the encoder was not trained on: all members of the validation
clusters. The validation scores are out-of-fold (see `boosting`); the test questions are scored by
the exported re-ranker.
"""

from __future__ import annotations

import itertools
import logging
import os
import pathlib
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.splits import TEST
from qpr_jax.encoders.base import parse_tensors
from qpr_jax.errors import UserError, spell
from qpr_jax.evaluation.retrieval import RankFn, exact_search, rank
from qpr_jax.files import (
    MANIFEST,
    StrPath,
    read_manifest,
    read_object,
    read_verified,
    replace_folder,
    write_atomically,
    write_json,
    write_manifest,
)
from qpr_jax.machine import peak_memory
from qpr_jax.reranking.cross_encoder import CrossEncoder, read_cross_encoder
from qpr_jax.reranking.isotonic import calibrate
from qpr_jax.reranking.light import (
    LIGHT,
    STACKED,
    LightModel,
    PairScorer,
    features_of,
    rank_hits,
    read_light,
    save_light,
)
from qpr_jax.reranking.scorer import Scorer, from_tensors, score_features, to_tensors
from qpr_jax.retriever import Retriever
from qpr_jax.training import boosting
from qpr_jax.training.boosting import FOLDS, Lists, assign_folds
from qpr_jax.training.candidates import Candidates, Finder, LogitCache
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.cross_fitting import CrossFit, cross_fit
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.rerank_data import (
    add_word_weights,
    pretrain,
    relevant_hits,
    training_queries,
)
from qpr_jax.training.rerank_network import init_network

log = logging.getLogger(__name__)

FORMAT = "qpr_jax trained reranker 1"
# Folders of a work directory, for a light and a stacked re-ranker: the scorers of the folds, and
# facts for the report.
FOLDERS = ("reranking", "reranking_cross")
LOGITS = "cross_logits"  # of a work directory
NAMES = (LIGHT, STACKED)
STACKED_CANDIDATES = 20  # more would take too long with a cross-encoder
_TREES = "folds.safetensors"
_TOO_FEW = f"{FOLDERS[1]}/too_few.json"
_TIMED = 1000  # queries that the speed is measured with


@dataclass(frozen=True)
class TrainedReranker:
    """The re-ranker of a run, and the scorers of its cross-validation.

    Attributes:
      model: the exported model, fitted to all queries.
      scorers: one for each fold, fitted to the other folds.
      folds: int64 [Q], the fold of each question; -1 for one that is not a training query.
      facts: facts for the report.
      finder: finds candidates and computes their features.
    """

    model: LightModel
    scorers: list[Scorer]
    folds: np.ndarray
    facts: dict[str, Any]
    finder: Finder

    def search(self, first: RankFn) -> RankFn:
        """Return the search in two stages over `first`; validation questions out-of-fold."""

        def search(queries: np.ndarray, k: int) -> np.ndarray:
            found = rank(first, queries, max(k, self.finder.dense + self.finder.lexical))
            lists = self.finder.collect(found, queries)
            scores = self.scores(lists)
            order = rank_hits(scores, lists.distances, lists.rows, lists.starts)
            for i, (start, stop) in enumerate(itertools.pairwise(lists.starts.tolist())):
                best = lists.rows[order[start:stop]]
                rest = found[i][~np.isin(found[i], best)]
                found[i] = np.concatenate([best, rest])[: found.shape[1]]
            return found[:, :k]

        return search

    def scores(self, lists: Candidates) -> np.ndarray:
        """Compute raw scores by scorers that were not fitted to the query: float64 [m]."""
        features = self.finder.features(lists)
        fold = self.folds[lists.queries[lists.owners]]
        scores = np.empty(len(features))
        for number, scorer in [(-1, self.model.scorer), *enumerate(self.scorers)]:
            scores[fold == number] = score_features(scorer, features[fold == number])
        return scores


def check_tools(config: TrainConfig) -> None:
    """Raise a UserError, before any training, if a package that the stage needs is missing."""
    if config.rerank.kind != "none":
        boosting.require_lightgbm()


def read_scorer(config: TrainConfig) -> CrossEncoder | None:
    """Read the cross-encoder that the config names, if any; UserError if it cannot be read."""
    if config.rerank.kind == "none" or not config.rerank.cross_encoder:
        return None
    try:
        return read_cross_encoder(os.path.expanduser(config.rerank.cross_encoder))
    except (UserError, FileNotFoundError) as error:
        what = error.what if isinstance(error, UserError) else str(error)
        raise UserError(what, setting="rerank.cross_encoder") from error


def lacks_stacked(folder: pathlib.Path, scorer: PairScorer | None) -> bool:
    """Whether the run lacks a stacked re-ranker with this cross-encoder, or its figures.

    Not if it has too few questions for one, as `mark_too_few` has noted.
    """
    if scorer is None or read_object(folder / _TOO_FEW).get("cross_encoder") == scorer.identity:
        return False
    reported = read_object(folder / "report.json").get("reranker_cross", {})
    shipped = read_object(folder / "export" / STACKED / MANIFEST)
    known = (reported.get("cross_encoder"), shipped.get("cross_encoder"))
    return known != (scorer.identity, scorer.identity)


def mark_too_few(folder: pathlib.Path, scorer: PairScorer) -> None:
    """Note that the run has too few questions for a stacked re-ranker, so that none is retried."""
    write_json(folder / _TOO_FEW, {"cross_encoder": scorer.identity})


def train_light(
    folder: pathlib.Path,
    config: TrainConfig,
    dataset: TrainDataset,
    retriever: Retriever,
    vectors: np.ndarray,
) -> TrainedReranker | None:
    """Train the re-ranker of a run, or read it if it is trained already; None if there is none.

    Args:
      folder: the work directory; gets export/reranker/, for searches, and reranking/.
      config: its section `rerank` says whether to train one.
      dataset: the questions and their clusters or, without these, the teacher.
      retriever: the encoder and the index of the run.
      vectors: float32 [Q, d], of all questions.
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
    """As `train_light`, for fewer hits, and with the logit of a cross-encoder as the last feature.

    It is written to export/reranker_cross/.
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
        finder.use_weights(kept["model"].word_weights)
        return TrainedReranker(**kept, folds=folds, finder=finder)
    lists = finder.find(exact_search(vectors), queries)
    # Test questions are among the hits, for gaps and ranks, but nothing is learned from them.
    learned = dataset.splits.split_of[lists.rows] != TEST
    labels, no_features = relevant_hits(dataset, lists), np.empty((len(learned), 0), np.float32)
    known = Lists(no_features, labels, lists.starts, folds[queries], folds[lists.rows])
    known = known.select(np.full(len(queries), True), learned)
    if not boosting.suffices(known):
        useful = boosting.learnable(known.labels, known.starts)
        log.warning(
            "no re-ranker: expected %s validation questions or more, of several clusters, with a "
            "relevant and another question among their hits, got %s of %s clusters; %s",
            *(boosting.MIN_QUERIES, useful.sum(), len(np.unique(groups[useful]))),
            spell("raise {data.held_out_pairs}, or set {rerank.kind=none}"),
        )
        return None
    network, weights = pretrain(
        config, dataset, finder, vectors, init_network(finder.features(lists), config.seed)
    )
    finder.use_weights(weights)
    features = finder.features(lists)
    known = known._replace(features=features[learned])
    fitted = cross_fit(known, add_word_weights(network, features), config.seed)
    model = LightModel(
        encoder=encoder,
        candidates=finder.dense,
        features=features_of(scorer),
        **fitted.shipped._asdict(),
        calibration=calibrate(fitted.scores, known.labels),
        lexical_candidates=finder.lexical,
        cross_encoder=scorer,
        settings={"seed": config.seed, **fitted.shipped_size._asdict()},
        word_weights=weights,
    )
    facts = {
        **_facts(fitted, model, known),
        "pairs_per_second": _rate(finder, model.scorer, lists),
        "seconds": time.perf_counter() - start,
        "peak_memory_gib": peak_memory() / 2**30,
    }
    # The other order would let a kill leave a model that no longer is the one of the report.
    _write(state, fitted.scorers, facts, encoder, scorer)
    save_light(shipped, model)
    return TrainedReranker(model, fitted.scorers, folds, facts, finder)


def _facts(fitted: CrossFit, model: LightModel, known: Lists) -> dict[str, Any]:
    """Collect the facts for the report, and log how well the queries are ranked."""
    log.info(
        "re-ranker: %s trees of %s leaves; MRR@20 of %s validation questions, without hits of the "
        "test split, %.4f, reranked %.4f",
        *(fitted.shipped_size.trees, fitted.shipped_size.leaves, f"{len(known.folds):,}"),
        boosting.reciprocal_ranks(-known.features[:, 0], known.labels, known.starts).mean(),
        boosting.reciprocal_ranks(fitted.scores, known.labels, known.starts).mean(),
    )
    heaviest = np.argsort(-fitted.importances, kind="stable")
    return {
        "candidates": model.candidates,
        "lexical_candidates": model.lexical_candidates,
        **({"cross_encoder": model.cross_encoder} if model.cross_encoder else {}),
        "queries": len(known.folds),
        "hits": len(known.labels),
        "relevant_hits": int(known.labels.sum()),
        **fitted.shipped_size._asdict(),
        "sizes_of_folds": [size._asdict() for size in fitted.sizes],
        "importances": {model.features[i]: float(fitted.importances[i]) for i in heaviest},
    }


def _rate(finder: Finder, scorer: Scorer, lists: Candidates) -> float:
    """Measure how many hits are scored in a second, with many queries in a call."""
    count = min(_TIMED, len(lists.queries))
    hits = int(lists.starts[count])
    some = Candidates(
        lists.queries[:count], lists.rows[:hits], lists.distances[:hits], lists.starts[: count + 1]
    )
    start = time.perf_counter()
    score_features(scorer, finder.features(some))
    return hits / (time.perf_counter() - start)


def _write(
    folder: StrPath, scorers: list[Scorer], facts: dict[str, Any], encoder: str, scorer: str
) -> None:
    from safetensors.numpy import save

    tensors: dict[str, np.ndarray] = {}
    for i, one in enumerate(scorers):
        tensors |= {f"{i}.{name}": array for name, array in to_tensors(one).items()}
    with replace_folder(folder) as part:
        with write_atomically(part / _TREES) as file:
            file.write(save(tensors))
        known = {"encoder": encoder, "cross_encoder": scorer, "facts": facts}
        write_manifest(part, [_TREES], format=FORMAT, **known)


def _read(
    folder: pathlib.Path, shipped: pathlib.Path, encoder: str, scorer: str
) -> dict[str, Any] | None:
    """Read what `_train` wrote; None if it did not finish, or had other inputs."""
    if not all((path / MANIFEST).is_file() for path in (folder, shipped)):
        return None
    manifest, model = read_manifest(folder, format=FORMAT), read_light(shipped)
    of_folds = (manifest.get("encoder"), manifest.get("cross_encoder"))
    if not of_folds == (model.encoder, model.cross_encoder) == (encoder, scorer):
        return None
    tensors, scorers = parse_tensors(read_verified(folder, _TREES, manifest), str(folder)), []
    for i in range(FOLDS):
        own = {n.partition(".")[2]: a for n, a in tensors.items() if n.startswith(f"{i}.")}
        scorers.append(from_tensors(own, len(model.features), str(folder)))
    return {"model": model, "scorers": scorers, "facts": manifest["facts"]}
