"""What each part of the light re-ranker is worth, on validation questions of the Quora pairs.

    python -m experiments.reranker_parts quora_sdml=runs/quora_sdml open_student=open_student

The parts: the trees, the network, the word weights, the candidates of BM25, and document
frequencies of the index that is searched, instead of those of the training questions. Three seeds
draw the halves of the validation queries (each is scored by models fitted to the other), the
pre-training and the network. A model of `open_student` is fitted to the run's own validation questions, without one
fold, and scored on Quora queries.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qpr_jax import Retriever
from qpr_jax.data.splits import TRAIN, VALIDATION
from qpr_jax.evaluation.retrieval import exact_search
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.statistics import Statistics
from qpr_jax.reranking import network as networks
from qpr_jax.reranking.features import FEATURES, WORD_WEIGHTS
from qpr_jax.reranking.trees import Forest, parse_forest, predict
from qpr_jax.reranking.word_weights import zero_weights
from qpr_jax.training.boosting import (
    Lists,
    Size,
    _fit,
    assign_folds,
    parallel,
    reciprocal_ranks,
)
from qpr_jax.training.candidates import Candidates, Finder
from qpr_jax.training.config import trains
from qpr_jax.training.cross_fitting import EPOCHS
from qpr_jax.training.overrides import load_config
from qpr_jax.training.rerank_data import add_word_weights, in_clusters
from qpr_jax.training.rerank_network import WordRows, init_network, train_network
from qpr_jax.training.sources import SOURCES
from qpr_jax.training.teacher import cached_vectors, read_teacher

SEEDS, PRETRAINED, HITS = 3, 15_000, 30  # seeds; training questions, hits of each
SIZES = (Size(7, 50), Size(7, 100), Size(15, 200))
QUERIES = 4000  # validation queries, at most


class Corpus(NamedTuple):
    """Questions with their vectors, candidates and labels."""

    config: Any
    data: Any  # SplitData
    vectors: np.ndarray
    finder: Finder
    nearest: np.ndarray | None  # the teacher's, of each question; None with clusters


def corpus(name: str, run: str, *, dense: int, lexical: int) -> Corpus:
    """Read the data of a preset, and encode it by the encoder of `run`."""
    config = load_config(name)
    source = SOURCES[config.data.source]
    data = source.read(config, source.find(config))
    retriever = Retriever.build(data.data.questions, run=run, recipe=Recipe("Flat"))
    vectors = retriever.encode(data.data.questions)
    finder = Finder(retriever, data.data.questions, vectors, dense=dense, lexical=lexical)
    nearest = None
    if config.data.source == "questions":
        taught = np.array(cached_vectors("", read_teacher(config), data.data.questions))
        found = exact_search(taught / np.linalg.norm(taught, axis=1, keepdims=True))
        rows = np.arange(len(taught))
        used = np.isin(
            rows, np.concatenate([pretraining_queries(data, False), held_out(data, False)])
        )
        nearest = np.full(len(taught), -1)
        for block in np.array_split(rows[used], 1 + used.sum() // 1024):
            two = found(block, 2)
            nearest[block] = np.where(two[:, 0] == block, two[:, 1], two[:, 0])
    return Corpus(config, data, vectors, finder, nearest)


def pretraining_queries(data: Any, clustered: bool) -> np.ndarray:
    """Draw the queries of the pre-training, rows int64 [q]."""
    rows = np.flatnonzero(data.splits.split_of == TRAIN)
    rows = rows[in_clusters(data, rows)] if clustered else rows
    return np.sort(np.random.default_rng(2).permutation(rows)[:PRETRAINED])


def held_out(data: Any, clustered: bool) -> np.ndarray:
    """Draw validation queries, rows int64 [q]."""
    rows = np.flatnonzero(data.splits.split_of == VALIDATION)
    rows = rows[in_clusters(data, rows)] if clustered else rows
    return np.sort(np.random.default_rng(3).permutation(rows)[:QUERIES])


def labels(own: Corpus, lists: Candidates) -> np.ndarray:
    """Which hits mean the same as their query, int8 [m]."""
    queries = lists.queries[lists.owners]
    if own.nearest is not None:
        return (own.nearest[queries] == lists.rows).astype(np.int8)
    return (own.data.clusters[queries] == own.data.clusters[lists.rows]).astype(np.int8)


def lists_of(own: Corpus, found: Candidates, folds: np.ndarray, words: bool) -> Lists:
    """The features and labels of candidates; without `words` these features are 0."""
    features = own.finder.features(found)
    if not words:
        features[:, [FEATURES.index(name) for name in WORD_WEIGHTS]] = 0
    hit_folds = np.full(len(own.vectors), -1)
    hit_folds[found.queries] = folds
    return Lists(features, labels(own, found), found.starts, folds, hit_folds[found.rows])


def pretrain(own: Corpus, found: Candidates, start: Any, seed: int, words: bool) -> Any:
    """As `rerank_data.pretrain`, of fewer queries."""
    lists = lists_of(own, found, np.zeros(len(found.queries), np.int64), False)
    if trains(own.config):
        unknown = [name.startswith("distance") for name in FEATURES]
        lists.features[:, unknown] = start.mean[unknown]
    rows = WordRows(*own.finder.weight_rows(found)) if words else None
    return train_network(start, lists, epochs=3, seed=seed, words=rows)


def study(name: str, run: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows: preset, BM25, words, frequencies, part, seed, MRR@20, H@1 of Quora queries."""
    clustered = name != "open_student"
    config = load_config(name)
    dense, lexical = config.rerank.candidates, config.rerank.lexical_candidates
    own = corpus(name, run, dense=dense, lexical=lexical)
    other = own if clustered else corpus("quora_sdml", run, dense=dense, lexical=lexical)
    live = other.finder._extractor._statistics
    texts = (own.data.data.questions[i] for i in np.flatnonzero(own.data.splits.split_of == TRAIN))
    frozen = Statistics.build(texts)
    queries, asked = held_out(own.data, clustered), held_out(other.data, True)
    early = pretraining_queries(own.data, clustered)
    groups = own.data.clusters[queries] if clustered else queries
    for bm25 in (True, False) if lexical else (False,):
        if not bm25:
            own.finder._bm25 = other.finder._bm25 = None
        found = own.finder.find(exact_search(own.vectors), queries)
        scored = found if clustered else other.finder.find(exact_search(other.vectors), asked)
        taught = own.finder.find(exact_search(own.vectors), early, HITS)
        taught = taught.select(own.data.splits.split_of[taught.rows] == TRAIN)
        for seed, words in itertools.product(range(SEEDS), (True, False)):
            folds = assign_folds(groups, seed) % 2 if clustered else assign_folds(groups, seed)
            use_weights(own, other, zero_weights())
            start = init_network(own.finder.features(found), seed)
            network, weights = pretrain(own, taught, start, seed, words)
            use_weights(own, other, weights)
            lists = lists_of(own, found, folds, words)
            network = add_word_weights(network, lists.features) if words else network
            of_folds = (0, 1) if clustered else (0,)
            fits = [lists.without(fold) for fold in of_folds]
            jobs = [(network, fit, seed) for fit in fits]
            nets = parallel(lambda n, f, s: train_network(n, f, epochs=EPOCHS, seed=s)[0], jobs)
            for frequencies, statistics in {"live": live, "frozen": frozen}.items():
                other.finder._extractor._statistics = statistics
                if clustered and frequencies == "frozen":
                    if words:
                        continue
                    again = lists_of(own, found, folds, words)
                    fits, nets = [again.without(fold) for fold in of_folds], []
                forests = {
                    f"trees {size.leaves}x{size.trees}": [
                        fit_trees(fit, size, seed) for fit in fits
                    ]
                    for size in SIZES
                }
                at = folds if clustered else np.zeros(len(asked), np.int64)
                test = lists_of(other, scored, at, words)
                parts = {"none": -test.features[:, 0].astype(np.float64)}
                parts |= {which: scores(predict, forest, test) for which, forest in forests.items()}
                if nets:
                    parts["network"] = scores(networks.predict, nets, test)
                    parts |= {"both " + which: parts[which] + parts["network"] for which in forests}
                for part, raw in parts.items():
                    ranks = reciprocal_ranks(raw, test.labels, test.starts)
                    yield (
                        name,
                        bm25,
                        words,
                        frequencies,
                        part,
                        seed,
                        ranks.mean(),
                        (ranks == 1).mean(),
                    )
                other.finder._extractor._statistics = live


def use_weights(own: Corpus, other: Corpus, weights: np.ndarray) -> None:
    """Set the word weights of both corpora."""
    own.finder.use_weights(weights)
    other.finder.use_weights(weights)


def fit_trees(lists: Lists, size: Size, seed: int) -> Forest:
    """Fit trees."""
    return parse_forest(_fit(lists, size, seed).dump_model()["tree_info"])


def scores(function: Any, models: list[Any], test: Lists) -> np.ndarray:
    """Raw scores by the model of each fold, float64 [m]."""
    owners = np.repeat(test.folds, np.diff(test.starts))
    found = np.zeros(len(owners))
    for fold, model in enumerate(models):
        found[owners == fold] = function(model, test.features[owners == fold])
    return found


def main() -> None:
    """Print the rows, and write them to a CSV file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", help="preset=run")
    parser.add_argument("--out", type=pathlib.Path, default="reranker_parts.csv")
    arguments = parser.parse_args()
    for given in arguments.runs:
        for row in study(*given.split("=")):
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(",".join(map(str, row)) + "\n")


if __name__ == "__main__":
    main()
