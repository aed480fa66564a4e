"""Hard negatives in a training: read from a file of `qpr negatives`, drawn for each batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from qpr_jax.data.clusters import in_one_cluster
from qpr_jax.data.splits import TRAIN, Splits
from qpr_jax.data.tables import read_rows
from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.random_streams import CANDIDATES, random_of
from qpr_jax.training.sections import refuse_if
from qpr_jax.training.sources import named_file

log = logging.getLogger(__name__)

COLUMNS = ("query", "negative")


def read_negatives(
    config: TrainConfig, questions: Sequence[str], clusters: np.ndarray, splits: Splits
) -> np.ndarray:
    """Read `data.negatives`: pairs of a training query and its negative, int32 [M, 2].

    Leaves out pairs with a held-out question, and paraphrases by the labels; logs their numbers. A
    question that the data do not have is a UserError with its line, or, with `data.skip_bad_rows`,
    left out and counted. Whitespace does not count.
    """
    path = str(named_file(config, "data.negatives", "qpr negatives"))
    row_of: dict[str, int] = {}
    for row, question in enumerate(questions):
        row_of.setdefault(_words(question), row)
    pairs, unknown = [], 0
    for line, fields in read_rows(path, COLUMNS, remedy="make it with `qpr negatives`"):
        texts = [] if isinstance(fields, str) else [_words(str(fields[name])) for name in COLUMNS]
        rows = [row_of[text] for text in texts if text in row_of]
        if len(rows) == 2:
            pairs.append(rows)
        elif config.data.skip_bad_rows:
            unknown += 1
        else:
            raise UserError(
                f"{path}, line {line}: expected two questions of the data, "
                f"got {texts or fields!r:.80}",
                setting="data.negatives",
                remedy="make the file from these pairs, or set `data.skip_bad_rows=True`",
            )
    found = np.array(pairs, np.int32).reshape(-1, 2)
    trained = (splits.split_of[found] == TRAIN).all(axis=1)
    others = ~in_one_cluster(clusters, found) & (found[:, 0] != found[:, 1])
    kept = found[trained & others]
    log.info(
        "data: %s hard negatives; left out: %s with a held-out question, %s paraphrases by the "
        "labels, %s of unknown questions",
        f"{len(kept):,}",
        f"{(~trained).sum():,}",
        f"{(trained & ~others).sum():,}",
        f"{unknown:,}",
    )
    refuse_if(
        not len(kept),
        "data.negatives",
        f"{path}: expected negatives of training questions, got none",
        "make the file of the training questions with `qpr negatives`",
    )
    return kept


def _words(text: str) -> str:
    return " ".join(text.split())


def hard_negatives(
    pairs: np.ndarray, questions: int, count: int, *, seed: int
) -> Callable[[int, np.ndarray], np.ndarray]:
    """Make a function from a step and its pairs to `count` negatives, int32 [count].

    They are a negative of each query of the batch, then of each candidate, up to `count`, then
    random ones.

    pairs: int32 [N, 2], questions and their negatives, of this number of questions.
    """
    refuse_if(
        count and not len(pairs),
        "batch.hard_negatives",
        f"got {count}, but no training pair is labeled as a non-duplicate",
        "set `batch.hard_negatives=0`",
    )
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    sizes = np.bincount(pairs[:, 0], minlength=questions)
    starts = np.cumsum(sizes) - sizes

    def at(step: int, batch: np.ndarray) -> np.ndarray:
        rng = random_of(seed, CANDIDATES, step)
        given = batch.T.ravel()
        known = given[sizes[given] > 0][:count]
        own = pairs[starts[known] + rng.integers(0, sizes[known]), 1]
        others = pairs[rng.integers(0, max(len(pairs), 1), count - len(own)), 1]
        return np.concatenate([own, others]).astype(np.int32)

    return at
