"""What the words model learns from: pairs of questions, their labels and features; contrasts.

A contrast is a question that means something else, as vectors hardly tell: with another number, a
negation or an opposite. It is written for English.

Nothing is learned from pairs with a test question.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qpr_jax.data.question_pairs import in_one_cluster
from qpr_jax.data.splits import SPLITS, TEST, TRAIN, VALIDATION
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.evaluation.retrieval import RankFn, exact_search, rank
from qpr_jax.index.close_pairs import pair_distances
from qpr_jax.pair_model.features import MOST, FeatureExtractor
from qpr_jax.pair_model.guards import ALTERNATIVES, LISTED
from qpr_jax.pair_model.words import WORD_WEIGHTS, pair_features
from qpr_jax.text.differences import base, with_ending
from qpr_jax.training.evaluator import sample_questions
from qpr_jax.training.train_data import TrainDataset

MIN_LABELED = 100  # of each label; fewer are too few to fit
UNLABELED = 0.1  # the weight of a near pair or a contrast; that of a labeled pair is 1 in the mean
SHARE = 34 / 300  # of duplicates among the hits of a search: results/judged_hits.csv
_NEAREST = 20  # hits that are near pairs
_MOST = 5000  # questions of a split whose hits, or contrasts, are looked at
_TAUGHT, _TAUGHT_HITS = 80_000, 10  # training questions, and hits of each
_NEGATED = re.compile(
    r"\b(?:(can)(?:not|'t| not)"
    r"|(do|does|did|is|are|was|were|should|would|could|has|have)(?:n't| not))\b",
    re.IGNORECASE,
)
_AFFIRMED = re.compile(
    r"\b(?:can|could|should|would|will|do|does|did|is|are|was|were|has|have)"
    r"(?: (?:i|you|we|they|he|she|it|people|someone|there|this|that))?\b",
    re.IGNORECASE,
)
# "Is it not free?" asks the same as "Is it free?"; "Can I not log in?" does not.
_YES_OR_NO = re.compile(
    r"\W*(?:is|are|was|were|do|does|did|has|have|will|would|should|could)(?:n't)?\b", re.IGNORECASE
)
_NEGATION = re.compile(r"\b(?:not?|never|cannot|without)\b|n't\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[1-9]\d{0,5}(?![\w.,]*\d|[a-z])")
_WORD = re.compile(r"[^\W\d_]+")
_ENDING = re.compile("(?:s|ed|ing)$")


class Examples(NamedTuple):
    """Pairs to learn from; as lists, those of a query are contiguous."""

    pairs: np.ndarray  # int64 [P, 2], rows of questions; in lists the query comes first
    labels: np.ndarray  # bool [P]
    weights: np.ndarray  # float32 [P], how often a pair counts
    features: np.ndarray  # float32 [P, FEATURES]
    words: np.ndarray  # int32 [P, MOST], rows of the weights of words, -1 for none

    @property
    def starts(self) -> np.ndarray:
        """Where the hits of each query begin, and the end, int64 [q + 1]."""
        queries = self.pairs[:, 0]
        firsts = np.flatnonzero(np.diff(queries, prepend=-1))
        return np.append(firsts, len(queries))

    def select(self, kept: np.ndarray) -> Examples:
        """Take some pairs: a mask bool [P], or rows int."""
        return Examples(*(values[kept] for values in self))

    def without(self, left_out: np.ndarray) -> Examples:
        """Leave out pairs with one of some questions, a mask bool [Q]."""
        return self.select(~left_out[self.pairs].any(axis=1))

    def joined(self, others: Examples) -> Examples:
        """Add others; the pairs of a query stay contiguous if they are sorted by it."""
        joined = Examples(*map(np.concatenate, zip(self, others, strict=True)))
        return joined.select(np.argsort(joined.pairs[:, 0], kind="stable"))

    def with_words(self, weights: np.ndarray) -> Examples:
        """Set the feature of the weights of words, float32 [2 ** BITS]."""
        features = self.features.copy()
        found = np.where(self.words >= 0, weights[np.maximum(self.words, 0)], 0)
        features[:, WORD_WEIGHTS] = found.sum(axis=1)
        return self._replace(features=features)


def pairs_of(queries: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Pair queries, int [q], with their hits, a ranking int64 [q, k], -1 for none: int64 [P, 2]."""
    return np.stack([np.repeat(queries, found.shape[1]), found.ravel()], axis=1)[found.ravel() >= 0]


def read_pairs(
    texts: Sequence[str],
    vectors: np.ndarray,
    extractor: FeatureExtractor,
    pairs: np.ndarray,
    labels: np.ndarray,
) -> Examples:
    """Make examples of pairs, rows int [P, 2] of texts and their vectors float32 [T, d]."""
    first, second = ([texts[i] for i in rows.tolist()] for rows in pairs.T)
    words, distances = np.empty((len(pairs), MOST), np.int32), pair_distances(vectors, *pairs.T)
    found = extractor.compute(first, second, words)
    weights = np.ones(len(pairs), np.float32)
    return Examples(pairs, labels, weights, pair_features(distances, found), words)


def find_hits(
    dataset: TrainDataset, vectors: np.ndarray, queries: np.ndarray, depth: int
) -> np.ndarray:
    """Pair queries with the nearest questions but those of the test, int64 [P, 2]."""
    hits = pairs_of(queries, rank(exact_search(vectors), queries, depth))
    return hits[dataset.splits.split_of[hits[:, 1]] != TEST]


def labeled_pairs(
    dataset: TrainDataset, vectors: np.ndarray, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs with a question of a held-out split, int [P, 2], and their labels.

    Data without labels of both kinds lend the nearest hits of the questions of the split;
    duplicates are those of one cluster.
    """
    data, split_of = dataset.data, dataset.splits.split_of
    kept = (split_of[data.pairs] == SPLITS.index(split)).any(axis=1)
    pairs, labels = data.pairs[kept], data.is_duplicate[kept]
    if np.bincount(labels, minlength=2).min() < MIN_LABELED:
        return near_pairs(dataset, vectors, split)
    return _learnable(dataset, pairs, labels, split)


def near_pairs(
    dataset: TrainDataset, vectors: np.ndarray, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the questions of a split with their nearest hits, as `labeled_pairs`."""
    queries = sample_questions(dataset, split, _MOST)
    hits = rank(exact_search(vectors), queries, min(_NEAREST, len(vectors) - 1))
    pairs = pairs_of(queries, hits)
    return _learnable(dataset, pairs, in_one_cluster(dataset.clusters, pairs), split)


def _learnable(
    dataset: TrainDataset, pairs: np.ndarray, labels: np.ndarray, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Leave out pairs with a test question, unless they are for the test."""
    kept = (split == "test") | (dataset.splits.split_of[pairs] != TEST).all(axis=1)
    return pairs[kept], labels[kept]


def share_weights(labels: np.ndarray) -> np.ndarray:
    """Weights of pairs, of mean 1, such that the share of duplicates is SHARE: float32 [P]."""
    rate = labels.mean()
    return np.where(labels, SHARE / rate, (1 - SHARE) / (1 - rate)).astype(np.float32)


def read_contrasts(
    dataset: TrainDataset, encoder: Encoder, extractor: FeatureExtractor
) -> Examples:
    """Make examples of validation questions and their contrasts; `pairs` has the question twice."""
    rng, texts, owners = random.Random(0), list[str](), list[int]()
    for row in sample_questions(dataset, "validation", _MOST).tolist():
        question = dataset.data.questions[row]
        for contrast in contrasts(question, rng):
            texts += [question, contrast]
            owners.append(row)
    pairs = np.arange(len(texts)).reshape(-1, 2)
    vectors = encoder.encode(texts) if texts else np.zeros((0, 1), np.float32)
    examples = read_pairs(texts, vectors, extractor, pairs, np.zeros(len(pairs), bool))
    return examples._replace(pairs=np.repeat(np.array(owners, np.int64), 2).reshape(-1, 2))


def read_taught(
    dataset: TrainDataset,
    vectors: np.ndarray,
    extractor: FeatureExtractor,
    search: RankFn,
    seed: int,
) -> Examples:
    """Make lists of training questions and their hits that are such questions."""
    is_train = dataset.splits.split_of == TRAIN
    queries = np.flatnonzero(is_train & (dataset.clusters[: len(is_train)] >= 0))
    chosen = np.sort(np.random.default_rng([seed, 2]).permutation(queries)[:_TAUGHT])
    hits = pairs_of(chosen, rank(search, chosen, _TAUGHT_HITS))
    hits = hits[is_train[hits[:, 1]]]
    labels = in_one_cluster(dataset.clusters, hits)
    return read_pairs(dataset.data.questions, vectors, extractor, hits, labels)


def assign_folds(dataset: TrainDataset, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Assign the members of the validation clusters to folds; a cluster is in one fold.

    Returns these queries, int64 [q], and the fold of each question, int64 [Q], -1 for others.
    """
    held_out = np.flatnonzero(dataset.splits.split_of == VALIDATION)
    queries = held_out[dataset.clusters[held_out] >= 0]
    distinct, at = np.unique(dataset.clusters[queries], return_inverse=True)
    folds = np.full(len(dataset.data.questions), -1)
    folds[queries] = np.random.default_rng([seed, 1]).permutation(len(distinct))[at] % count
    return queries, folds


def contrasts(text: str, rng: random.Random) -> list[str]:
    """Return at most three contrasts: negated or affirmed, another number, an opposite."""
    return [*filter(None, (negated(text), other_number(text, rng), opposite(text, rng)))]


def negated(text: str) -> str:
    """Add "not" after the first auxiliary and its pronoun, or take a negation away; "" if none."""
    text = text.replace("\u2019", "'")
    if (match := _NEGATED.search(text)) and not _YES_OR_NO.match(text):
        return text[: match.start()] + (match[1] or match[2]) + text[match.end() :]
    if _YES_OR_NO.match(text) or _NEGATION.search(text):
        return ""
    if match := _AFFIRMED.search(text):
        return f"{text[: match.end()]} not{text[match.end() :]}"
    return ""


def other_number(text: str, rng: random.Random) -> str:
    """Raise one number by at least 1, at most a third of it (or 2) and 30; "" without a number."""
    matches = [*_NUMBER.finditer(text)]
    if not matches:
        return ""
    match = rng.choice(matches)
    number = int(match[0])
    other = number + rng.randint(1, max(2, min(number // 3, 30)))
    return text[: match.start()] + str(other) + text[match.end() :]


def opposite(text: str, rng: random.Random) -> str:
    """Replace one word by an opposite, or another day, month, color or count; "" for none."""
    matches = [match for match in _WORD.finditer(text) if base(match[0].lower()) in ALTERNATIVES]
    if not matches:
        return ""
    match = rng.choice(matches)
    word = match[0].lower()
    other = rng.choice(ALTERNATIVES[base(word)])
    if word not in LISTED and (ending := _ENDING.search(word)):
        other = with_ending(other, ending[0])
    if match[0][0].isupper():
        other = other.capitalize()
    return text[: match.start()] + other + text[match.end() :]
