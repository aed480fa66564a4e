"""Train words models of pairs: that of a run, on validation questions, and a judge of lists.

It must learn from questions that the encoder was not trained on: all members of the validation
clusters. Weights of words, and first weights of the network, are learned from training questions.
Then the network learns to sort the hits of validation questions, and to tell pairs apart: labeled
ones and, with less weight, the nearest hits of validation questions, some of which are duplicates
that nobody labeled, and contrasts (`pair_examples`), which are nearer than most paraphrases.
Last, a scale is fitted to the labeled pairs alone, so that the sigmoid is a probability.

The judge is such a model of a teacher's vectors. It sorts lists of questions, and a student learns
their order. That is nearly the order of a cross-encoder, and it scores a thousand times as many
pairs a second.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from qpr_jax.data.question_pairs import in_one_cluster
from qpr_jax.data.splits import TRAIN, VALIDATION
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError, counted
from qpr_jax.evaluation.retrieval import first_scores, index_search, rank
from qpr_jax.evaluation.scores import reliability
from qpr_jax.index.close_pairs import pair_distances
from qpr_jax.index.protocol import IndexConfig
from qpr_jax.index.vectors import Vectors
from qpr_jax.locations import FittedModel, read_encoder_and_model
from qpr_jax.pair_model.features import FeatureExtractor, zero_weights
from qpr_jax.pair_model.fitting import logistic, refit
from qpr_jax.pair_model.plain import general_model
from qpr_jax.pair_model.terms import Frequencies
from qpr_jax.pair_model.words import Network, WordsModel
from qpr_jax.running import progress
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig, refuse_if, trains
from qpr_jax.training.pair_examples import (
    SHARE,
    Examples,
    assign_folds,
    contrasts,
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
from qpr_jax.training.train_data import SortedLists, TrainDataset

log = logging.getLogger(__name__)

MIN_QUERIES = 50  # with both relevant and other hits; fewer are too few to learn from
FOLDS = 3  # of the validation queries, to check what the model gains
TRIPLES = 500  # of a query, a paraphrase and a contrast
_REACHED = 0.995  # share of relevant hits within the reach
_LIST = 32  # candidates of a list
_TEMPERATURE = 1.5  # of the judge's logits
_JUDGED = 50  # hits that the judge learns from
_AT_ONCE = 2000  # lists that are scored together


def train_words(
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    *,
    depth: int,
    trained: bool = True,
    seed: int = 0,
    index: Vectors | None = None,
) -> WordsModel | None:
    """Train the words model of an encoder; None, and a logged reason, if it is of no use.

    Args:
      vectors: float32 [Q, d], of all questions.
      depth: hits of a search that the model reorders.
      trained: whether the encoder was trained on the training questions.
      index: of the vectors; None: one is built.
    """
    questions = dataset.data.questions
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
    lists = read(hits, relevant)
    labeled = read(pairs, labels)._replace(weights=share_weights(labels))
    others = read(*near_pairs(dataset, vectors, "validation"))
    others = others.joined(read_contrasts(dataset, encoder, extractor))
    search = index_search(index or Vectors.build(IndexConfig(), vectors), vectors)
    taught = read_taught(dataset, vectors, extractor, search, seed)
    early, weights = train_early(taught, lists, trained=trained, seed=seed)
    examples = [some.with_words(weights) for some in (lists, labeled, others)]
    if not (facts := _check(early, examples, folds, seed)):
        return None
    model = WordsModel(
        encoder=encoder.fingerprint,
        depth=depth,
        farthest=float(np.quantile(lists.features[lists.labels, 1], _REACHED)),
        network=train_network(early, *examples, seed=seed),
        frequencies=frequencies,
        embeddings=encoder,
        word_weights=weights,
    )
    model.settings.update(
        queries=len(queries),
        fitted_pairs=len(labels),
        fitted_duplicates=int(labels.sum()),
        share=SHARE,
        validation=facts,
        test=score_pairs(dataset, vectors, model),
    )
    return model


def _check(
    early: Network, examples: Sequence[Examples], folds: np.ndarray, seed: int
) -> dict[str, Any]:
    """Score lists by networks that are trained without the fold of the query, of int64 [Q].

    Returns nothing, and logs it, if they sort no better than the distance.
    """
    lists = examples[0]
    logits, fold_of = np.empty(len(lists.labels)), folds[lists.pairs[:, 0]]
    for fold in range(FOLDS):
        rest, rows = (some.without(folds == fold) for some in examples), fold_of == fold
        logits[rows] = train_network(early, *rest, seed=seed).logits(lists.features[rows])
    found = first_scores(sort_labels(lists, logits))
    alone = first_scores(sort_labels(lists, -lists.features[:, 0]))
    text = "MRR of validation questions by the words model %.4f, by the distance %.4f"
    log.info(text, found["mrr@20"], alone["mrr@20"])
    if found["mrr@20"] > alone["mrr@20"]:
        return {"words": found, "distance": alone}
    log.info("no words model: it sorts no better than the distance")
    return {}


def score_hits(
    model: WordsModel,
    questions: Sequence[str],
    vectors: np.ndarray,
    queries: np.ndarray,
    rankings: np.ndarray,
) -> np.ndarray:
    """Compute the logits of hits of queries, int64 [q, k], -1 for none: float64, -inf for none."""
    pairs, logits = pairs_of(queries, rankings), np.full(rankings.shape, -np.inf)
    left, right = ([questions[row] for row in rows] for rows in pairs.T.tolist())
    logits[rankings >= 0] = model.logits(left, right, pair_distances(vectors, *pairs.T))
    return logits


def _lacking(hits: np.ndarray, relevant: np.ndarray, labels: np.ndarray) -> str:
    """Say what is too little to learn from; empty if nothing is."""
    _, query = np.unique(hits[:, 0], return_inverse=True)
    count, found = np.bincount(query), np.bincount(query, relevant)
    if (useful := int(((found > 0) & (found < count)).sum())) < MIN_QUERIES:
        what = "validation questions or more with a relevant and another question among their hits"
        return f"{MIN_QUERIES} {what}, got {useful}; raise data.held_out_pairs"
    return "" if 0 < labels.sum() < len(labels) else "duplicates and others among labeled pairs"


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


def train_pair_model(
    config: TrainConfig,
    dataset: TrainDataset,
    encoder: Encoder,
    vectors: np.ndarray,
    index: Vectors,
) -> FittedModel:
    """Train the words model of a run, or fit that of the encoder that training started from.

    A few pairs are not enough for one of its own; without a start it has the general one.
    """
    words = None
    if config.rerank.candidates:
        with progress("words model"):
            words = train_words(
                dataset,
                encoder,
                vectors,
                depth=config.rerank.candidates,
                trained=trains(config),
                seed=config.seed,
                index=index,
            )
    if words is None and dataset.start:
        return inherit(config.encoder.pretrained, dataset, encoder, vectors)
    return words or general_model(encoder)


def inherit(
    start: str, dataset: TrainDataset, encoder: Encoder, vectors: np.ndarray
) -> FittedModel:
    """Take the model of pairs that training started from, fitted to pairs that are held out.

    vectors: float32 [Q, d], of all questions.
    """
    start_model = read_encoder_and_model(start)[1]
    changes: dict[str, Any] = {"encoder": encoder.fingerprint}
    if isinstance(start_model, WordsModel):
        changes["embeddings"] = encoder
    model = dataclasses.replace(
        start_model, **changes, settings=start_model.settings | {"start": start}
    )
    held_out = dataset.splits.split_of == VALIDATION
    labeled = dataset.data.subset(held_out)
    try:
        model, facts = refit(model, labeled, vectors[held_out])
    except UserError as error:
        log.info("the scores of pairs are those of %s: %s", start, error.what)
        return model
    before, after = facts["before"], facts["after"]
    text = (
        "scores are fitted to %d held-out labels: %d duplicates and %d others from 0.5 on; before"
    )
    values = (part[name] for part in (after, before) for name in ("duplicates", "others"))
    log.info(f"{text} %d and %d", facts["labels"], *values)
    return model


def sort_lists(config: TrainConfig, dataset: TrainDataset) -> SortedLists:
    """Find the teacher's nearest training questions of each, and score them by the judge.

    The judge learns from the validation questions, as the words model of a run does. UserError if
    they are too few.
    """
    start, teacher = time.perf_counter(), dataset.teacher
    assert teacher
    assert teacher.encoder  # else the settings were refused
    questions = dataset.data.questions
    vectors = teacher.vectors(np.arange(len(questions)))
    # The teacher was not trained on these questions.
    words = train_words(
        dataset, teacher.encoder, vectors, depth=_JUDGED, trained=False, seed=config.seed
    )
    rows = np.flatnonzero(dataset.splits.split_of == TRAIN)
    what = "there are too few training questions, or validation questions with paraphrases"
    refuse_if(not words or len(rows) <= _LIST, "teacher.lists", what, "give more pairs")
    assert words
    # A hit that is very far says how far it is, too.
    judge = dataclasses.replace(words, farthest=np.inf)
    search = index_search(Vectors.build(IndexConfig(), vectors[rows]), vectors[rows])
    nearest = rows[rank(search, np.arange(len(rows)), _LIST)]
    scores = np.empty(nearest.shape, np.float32)
    for first in range(0, len(rows), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        scores[part] = score_hits(judge, questions, vectors, rows[part], nearest[part])
    seconds = time.perf_counter() - start
    log.info("sorted %s of %d in %.0f s", counted(len(rows), "list"), _LIST, seconds)
    return SortedLists(*distributed.from_first((rows, nearest, scores / _TEMPERATURE)))
