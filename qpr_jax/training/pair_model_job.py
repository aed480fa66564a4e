"""The stage of a run after the index: train the words model of pairs on validation questions.

It must learn from questions that the encoder was not trained on: all members of the validation
clusters. Weights of words, and first weights of the network, are learned from training questions.
Then the network learns to sort the hits of validation questions, and to tell pairs apart: labeled
ones and, with less weight, the nearest hits of validation questions, some of which are duplicates
that nobody labeled, and contrasts (`data.contrasts`), which are nearer than most paraphrases. Last,
a scale is fitted to the labeled pairs alone, so that the sigmoid is a probability.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.clusters import in_one_cluster
from qpr_jax.data.contrasts import contrasts
from qpr_jax.encoders.base import Encoder
from qpr_jax.evaluation.rankings import reliability
from qpr_jax.evaluation.retrieval import first_scores, index_search
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.vectors import Vectors
from qpr_jax.reranking.features import FeatureExtractor, zero_weights
from qpr_jax.reranking.fitting import logistic
from qpr_jax.reranking.terms import Frequencies
from qpr_jax.reranking.words import LOWEST, Network, WordsModel
from qpr_jax.training.dataset import TrainDataset
from qpr_jax.training.pair_examples import (
    SHARE,
    Examples,
    assign_folds,
    find_hits,
    labeled_pairs,
    near_pairs,
    pairs_of,
    read_contrasts,
    read_pairs,
    read_taught,
    share_weights,
)
from qpr_jax.training.pair_network import train_early, train_network

log = logging.getLogger(__name__)

MIN_QUERIES = 50  # with both relevant and other hits; fewer are too few to learn from
TRIPLES = 500  # of a query, a paraphrase and a contrast
FOLDS = 3  # of the validation queries, to estimate what the model gains
_REACHED = 0.995  # share of relevant hits within the reach


@dataclass(frozen=True)
class TrainedWords:
    """The words model of a run, and the networks that score its validation questions."""

    model: WordsModel
    networks: list[Network]  # one for each fold, fitted to the others; then that of the model
    folds: np.ndarray  # int64 [Q], the fold of each question; -1 for others
    seconds: float = 0.0  # of the training

    def rerank(
        self, questions: Sequence[str], vectors: np.ndarray, queries: np.ndarray, found: np.ndarray
    ) -> np.ndarray:
        """Reorder the first hits of queries, a ranking int64 [q, k], out of fold."""
        found, first = found.copy(), found[:, : self.model.depth]
        pairs, logits = pairs_of(queries, first), np.full(first.shape, -np.inf)
        none = np.zeros(len(pairs), bool)
        hits = read_pairs(questions, vectors, self.model.extractor, pairs, none)
        scores = score_folds(self.networks, self.folds, hits)
        logits[first >= 0] = np.where(hits.features[:, 1] > self.model.farthest, LOWEST, scores)
        order = np.argsort(-logits, axis=1, kind="stable")
        found[:, : first.shape[1]] = np.take_along_axis(first, order, axis=1)
        return found


def train_words(
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    *,
    depth: int,
    trained: bool = True,
    seed: int = 0,
    index: Vectors | None = None,
) -> TrainedWords | None:
    """Train the words model of an encoder; None, and a logged reason, if it is of no use.

    Args:
      vectors: float32 [Q, d], of all questions.
      depth: hits of a search that the model reorders.
      trained: whether the encoder was trained on the training questions.
      index: of the vectors; None: one is built.
    """
    start, questions = time.perf_counter(), dataset.data.questions
    queries, folds = assign_folds(dataset, FOLDS, seed)
    if not len(queries):
        log.info("no words model: the data have no labels")
        return None
    hits = find_hits(dataset, vectors, queries, depth)
    relevant = in_one_cluster(dataset.clusters, hits)
    pairs, labels = labeled_pairs(dataset, vectors, "validation")
    if lacking := _lacking(hits, relevant, labels):
        log.warning("no words model: expected %s", lacking)
        return None
    frequencies = Frequencies.count(questions)
    extractor = FeatureExtractor(encoder, frequencies, zero_weights())
    read = functools.partial(read_pairs, questions, vectors, extractor)
    lists, labeled, near = (
        read(*some)
        for some in ((hits, relevant), (pairs, labels), near_pairs(dataset, vectors, "validation"))
    )
    labeled = labeled._replace(weights=share_weights(labels))
    others = near.joined(read_contrasts(dataset, encoder, extractor))
    search = index_search(index or Vectors.build(Recipe(), vectors), vectors)
    taught = read_taught(dataset, vectors, extractor, search, seed)
    early, weights = train_early(taught, lists, trained=trained, seed=seed)
    lists, labeled, others = (some.with_words(weights) for some in (lists, labeled, others))
    examples = lists, labeled, others
    networks = [
        train_network(early, *(some.without(folds, fold) for some in examples), seed=seed)
        for fold in range(FOLDS)
    ]
    found = first_scores(sort_labels(lists, score_folds(networks, folds, lists)))
    alone = first_scores(sort_labels(lists, -lists.features[:, 0]))
    log.info(
        "validation MRR of the words model %.4f, of the distance %.4f",
        found["mrr@20"],
        alone["mrr@20"],
    )
    if found["mrr@20"] <= alone["mrr@20"]:
        log.info("no words model: it sorts no better than the distance")
        return None
    networks.append(train_network(early, *examples, seed=seed))
    model = WordsModel(
        encoder=encoder.identity,
        depth=depth,
        farthest=float(np.quantile(lists.features[lists.labels, 1], _REACHED)),
        network=networks[-1],
        frequencies=frequencies,
        embeddings=encoder,
        word_weights=weights,
    )
    model.settings.update(
        seed=seed,
        queries=len(queries),
        hits=len(hits),
        fitted_pairs=len(labels),
        fitted_duplicates=int(labels.sum()),
        share=SHARE,
        validation={"words": found, "distance": alone},
        test=score_pairs(dataset, vectors, model),
    )
    return TrainedWords(model, networks, folds, time.perf_counter() - start)


def _lacking(hits: np.ndarray, relevant: np.ndarray, labels: np.ndarray) -> str:
    """Say what is too little to learn from; empty if nothing is."""
    _, query = np.unique(hits[:, 0], return_inverse=True)
    count, found = np.bincount(query), np.bincount(query, relevant)
    if (useful := int(((found > 0) & (found < count)).sum())) < MIN_QUERIES:
        what = "validation questions or more with a relevant and another question among their hits"
        return f"{MIN_QUERIES} {what}, got {useful}; raise data.held_out_pairs"
    return "" if 0 < labels.sum() < len(labels) else "duplicates and others among labeled pairs"


def score_folds(networks: list[Network], folds: np.ndarray, hits: Examples) -> np.ndarray:
    """Compute logits, float64 [P], by the network that was not fitted to the fold of the query."""
    logits, own_folds = np.empty(len(hits.labels)), folds[hits.pairs[:, 0]]
    for fold in np.unique(own_folds).tolist():
        rows = own_folds == fold
        logits[rows] = networks[fold].logits(hits.features[rows])
    return logits


def sort_labels(lists: Examples, scores: np.ndarray) -> np.ndarray:
    """Return the labels of the hits of each query, best score first: bool [q, most hits]."""
    starts, counts = lists.starts, np.diff(lists.starts)
    owners = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((lists.pairs[:, 1], lists.features[:, 0], -scores, owners))
    labels = np.zeros((len(counts), counts.max()), bool)
    labels[owners, np.arange(len(owners)) - starts[owners]] = lists.labels[order]
    return labels


def score_pairs(dataset: TrainDataset, vectors: np.ndarray, model: WordsModel) -> dict[str, Any]:
    """Compare the probabilities of pairs with a test question with their labels."""
    pairs, labels = labeled_pairs(dataset, vectors, "test")
    if not 0 < labels.sum() < len(labels):
        return {}
    examples = read_pairs(dataset.data.questions, vectors, model.extractor, pairs, labels)
    found = logistic(model.network.logits(examples.features))
    scores = reliability(found, labels, share_weights(labels))
    text = "probabilities of pairs: calibration error %.3f, Brier score %.3f (base rate %.3f)"
    log.info(text, *(scores[name] for name in ("ece", "brier", "base_brier")))
    return scores


def score_contrasts(dataset: TrainDataset, encoder: Encoder, model: WordsModel) -> float | None:
    """Return how often a paraphrase is above a contrast of it or of the query; None without any.

    There is a query of each cluster with test pairs, at most TRIPLES.
    """
    rng, seen, texts = random.Random(0), set[int](), list[str]()
    pairs = dataset.splits.pairs["test"].tolist()
    rng.shuffle(pairs)
    for query, same in pairs:
        cluster = int(dataset.clusters[query])
        both = dataset.data.questions[query], dataset.data.questions[same]
        negatives = contrasts(rng.choice(both), rng)
        if negatives and cluster not in seen and len(seen) < TRIPLES:
            seen.add(cluster)
            texts += [*both, rng.choice(negatives)]
    if not texts:
        return None
    vectors = encoder.encode(texts)
    queries, *others = (slice(start, None, 3) for start in range(3))
    alike, contrast = (
        model.logits(
            texts[queries], texts[hits], ((vectors[queries] - vectors[hits]) ** 2).sum(axis=1)
        )
        for hits in others
    )
    return float(np.mean(alike > contrast))
