"""Lists of questions that a judge has sorted, for a student to learn their order.

The judge is the teacher with a light re-ranker. Its order is nearly that of a cross-encoder, and
it scores a thousand times as many pairs a second.
"""

from __future__ import annotations

import logging
import time

import numpy as np

from qpr_jax.data.splits import TRAIN
from qpr_jax.evaluation.retrieval import index_search, rank
from qpr_jax.index.recipe import Recipe
from qpr_jax.index.vectors import Vectors
from qpr_jax.reranking.light import LightReranker
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig, override
from qpr_jax.training.dataset import SortedLists, TrainDataset
from qpr_jax.training.reranker import train_reranker
from qpr_jax.training.sections import refuse_if

log = logging.getLogger(__name__)

LENGTH = 32  # candidates of a list
TEMPERATURE = 3.0  # of the judge's scores
CANDIDATES = 50  # hits that the judge learns from
_PART = 2000  # lists that are scored together


def sort_lists(config: TrainConfig, dataset: TrainDataset) -> SortedLists:
    """Find the teacher's nearest training questions of each, and score them by the judge.

    The judge learns from the validation questions, as the re-ranker of a run does. UserError if
    they are too few.
    """
    start, teacher = time.perf_counter(), dataset.teacher
    assert teacher
    assert teacher.encoder  # else the settings were refused
    vectors = teacher.vectors(np.arange(len(dataset.data.questions)))
    # The teacher was not trained on these questions.
    judging = {"max_epochs": 0, "teacher.model": "", "rerank.candidates": CANDIDATES}
    trained = train_reranker(override(config, judging), dataset, teacher.encoder, vectors)
    rows = np.flatnonzero(dataset.splits.split_of == TRAIN)
    what = "there are too few training questions, or validation questions with paraphrases"
    refuse_if(not trained or len(rows) <= LENGTH, "teacher.lists", what, "give more pairs")
    assert trained
    judge = LightReranker(trained.model, teacher.encoder)
    known = vectors[rows]
    search = index_search(Vectors.build(Recipe(), known), known)
    nearest = rows[rank(search, np.arange(len(rows)), LENGTH)]
    scores = np.empty(nearest.shape, np.float32)
    for first in range(0, len(rows), _PART):
        own = slice(first, first + _PART)
        lists = trained.finder.collect(nearest[own], rows[own])
        scores[own] = judge.score(trained.finder.texts(lists))[1].reshape(-1, LENGTH)
    seconds = time.perf_counter() - start
    log.info("sorted %s lists of %d in %.0f s", f"{len(rows):,}", LENGTH, seconds)
    return SortedLists(*distributed.from_first((rows, nearest, scores / TEMPERATURE)))
