"""Lists of questions that a judge has sorted, for a student to learn their order.

The judge is a words model of the teacher's vectors. Its order is nearly that of a cross-encoder,
and it scores a thousand times as many pairs a second.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import numpy as np

from qpr_jax.data.splits import TRAIN
from qpr_jax.errors import counted
from qpr_jax.evaluation.retrieval import index_search, rank
from qpr_jax.index.protocol import IndexConfig
from qpr_jax.index.vectors import Vectors
from qpr_jax.training import distributed
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.pair_model_job import score_hits, train_words
from qpr_jax.training.sections import refuse_if
from qpr_jax.training.train_data import SortedLists, TrainDataset

log = logging.getLogger(__name__)

LENGTH = 32  # candidates of a list
TEMPERATURE = 1.5  # of the judge's logits
CANDIDATES = 50  # hits that the judge learns from
_PART = 2000  # lists that are scored together


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
        dataset, teacher.encoder, vectors, depth=CANDIDATES, trained=False, seed=config.seed
    )
    rows = np.flatnonzero(dataset.splits.split_of == TRAIN)
    what = "there are too few training questions, or validation questions with paraphrases"
    refuse_if(not words or len(rows) <= LENGTH, "teacher.lists", what, "give more pairs")
    assert words
    # A hit that is very far says how far it is, too.
    judge = dataclasses.replace(words, farthest=np.inf)
    search = index_search(Vectors.build(IndexConfig(), vectors[rows]), vectors[rows])
    nearest = rows[rank(search, np.arange(len(rows)), LENGTH)]
    scores = np.empty(nearest.shape, np.float32)
    for first in range(0, len(rows), _PART):
        part = slice(first, first + _PART)
        scores[part] = score_hits(judge, questions, vectors, rows[part], nearest[part])
    seconds = time.perf_counter() - start
    log.info("sorted %s of %d in %.0f s", counted(len(rows), "list"), LENGTH, seconds)
    return SortedLists(*distributed.from_first((rows, nearest, scores / TEMPERATURE)))
