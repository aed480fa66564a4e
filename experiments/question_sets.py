"""Sets of questions with a known relevance, from data that the configs for Quora do not train on.

A set is a few thousand questions. Each that has another one with the same label is a query, and is
searched among all others of the set. The labels of a set: the intent, the answer, or the German
translations of a sentence.
"""

from __future__ import annotations

import os
import pathlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.preprocessing import MultiLabelBinarizer

from qpr_jax.data.translations import read_translations
from qpr_jax.distant.logs import UNDECIDED, Logs, distinct_questions, read_log
from qpr_jax.errors import UserError
from qpr_jax.evaluation import metrics
from qpr_jax.text.tokenizer import normalized_text

MOST = 10_000  # questions of a set
GENERIC = 20  # an answer of more questions says little about them: "true", "2", "france"
LOGS, PARALLEL = "qa_logs", "parallel"  # folders of the data


# Distinct texts, and the labels of each: two texts with a label in common are relevant.
Labeled = tuple[list[str], list[tuple[str, ...]]]


class Source(NamedTuple):
    """Where a set comes from."""

    file: str  # below the folder of the data
    most_alike: int = 0  # labels of more questions are left out with their questions; 0: none are
    # Where there are too many questions, take half of them by label, so that labels stay whole;
    # else all at random.
    whole: bool = True


SOURCES = {
    "clinc150": Source(f"{LOGS}/clinc150.jsonl.gz", whole=False),
    "webquestions": Source(f"{LOGS}/webquestions.jsonl.gz"),
    "tatoeba": Source(f"{PARALLEL}/tatoeba.en-de.tsv.gz"),
    "simplequestions": Source(f"{LOGS}/simplequestions.jsonl.gz", GENERIC),
    "opentriviaqa": Source(f"{LOGS}/opentriviaqa.jsonl.gz", GENERIC),
}


class QuestionSet(NamedTuple):
    """Questions and which of them are relevant to which."""

    texts: list[str]  # n distinct questions
    relevance: csr_matrix  # bool [n, n], symmetric, without a question itself

    @property
    def queries(self) -> np.ndarray:
        """The questions that have a relevant one, int64 [q]."""
        return np.flatnonzero(np.diff(self.relevance.indptr))

    @property
    def clusters(self) -> np.ndarray:
        """A number for each query, equal where queries depend on each other: int [q]."""
        numbers: np.ndarray = connected_components(self.relevance, directed=False)[1]
        return numbers[self.queries]

    def scores(self, found: np.ndarray) -> dict[str, np.ndarray]:
        """nDCG@10 and H@1 of each query, float64 [q]; `found`: int64 [q, 10], -1 for none."""
        queries = np.repeat(self.queries, found.shape[1])
        relevant = np.asarray(self.relevance[queries, found.ravel()]).reshape(found.shape)
        relevant &= found >= 0
        counts = np.diff(self.relevance.indptr)[self.queries]
        ideal = np.arange(10) < counts[:, None]
        return {"ndcg@10": metrics.ndcg(relevant, ideal, 10), "hits@1": metrics.hits(relevant, 1)}


def read_set(name: str, most: int = MOST) -> QuestionSet:
    """Read a set of `SOURCES`; the same questions each time. UserError where its file is missing.

    most: questions at most.
    """
    source = SOURCES[name]
    path = pathlib.Path(os.environ.get("QPR_DATA_DIR", "."), source.file)
    if not path.is_file():
        what = f"{path}: expected the file of `{name}`, found none"
        raise UserError(what, remedy="set $QPR_DATA_DIR to the folder that contains it")
    labeled = (_read_log if source.file.startswith(LOGS) else _read_translations)(path)
    return make_set(labeled, most, source.most_alike, whole=source.whole)


def _read_log(path: pathlib.Path) -> Labeled:
    """The questions of a log with their answers; without those of several answers."""
    rows = [row for row in read_log(Logs((str(path),)), str(path)) if row]
    questions = [q for q in distinct_questions(sorted(rows)) if q.answer != UNDECIDED]
    return [q.text for q in questions], [(q.answer,) for q in questions]


def _read_translations(path: pathlib.Path) -> Labeled:
    """The English sentences of lines `English TAB German`, with all their German translations."""
    found = read_translations(f"en-de:{path}")
    german: defaultdict[str, set[str]] = defaultdict(set)
    texts: dict[str, str] = {}
    for english, other in zip(found.sources, found.targets, strict=True):
        key = normalized_text(english)
        texts.setdefault(key, english)
        german[key].add(normalized_text(other))
    return [*texts.values()], [tuple(sorted(german[key])) for key in texts]


def make_set(
    labeled: Labeled, most: int, most_alike: int = 0, *, whole: bool = True
) -> QuestionSet:
    """Make a set of at most `most` questions; the other arguments are as of `Source`."""
    texts, labels = labeled
    chosen = _choose(labels, most, most_alike, whole)
    member = MultiLabelBinarizer(sparse_output=True).fit_transform([labels[i] for i in chosen])
    common = (member @ member.T).tocsr()
    common.setdiag(0)
    common.eliminate_zeros()
    return QuestionSet([texts[i] for i in chosen], common.astype(bool))


def _choose(
    labels: Sequence[tuple[str, ...]], most: int, most_alike: int, whole: bool
) -> list[int]:
    """Choose questions at random, but the same each time."""
    by_label: defaultdict[str, list[int]] = defaultdict(list)
    for i, own in enumerate(labels):
        for label in own:
            by_label[label].append(i)
    generic = {label for label, rows in by_label.items() if 0 < most_alike < len(rows)}
    left = [i for i, own in enumerate(labels) if not generic.intersection(own)]
    order = np.random.default_rng(0).permutation(left).tolist()
    if not whole or len(order) <= most:
        return sorted(order[:most])
    chosen: dict[int, None] = {}
    for i in order:  # its labels, whole
        alike = {j for label in labels[i] for j in by_label[label]}
        if len(alike) > 1 and len(chosen) + len(alike) <= most // 2:
            chosen.update(dict.fromkeys(sorted(alike)))
    alone = [i for i in order if all(len(by_label[label]) == 1 for label in labels[i])]
    return sorted([*chosen, *alone[: most - len(chosen)]])
