"""Sets of questions with a known relevance, from data that the configs for Quora do not train on.

A set is a few thousand questions. Each that has another one with the same label is a query, and is
searched among all others of the set. The labels of a set: the intent, the answer, or the German
translations of a sentence.
"""

from __future__ import annotations

import os
import pathlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.preprocessing import MultiLabelBinarizer

from qpr_jax.data.columns import BadRows
from qpr_jax.data.logs import UNDECIDED, Logs, distinct_questions, read_log
from qpr_jax.data.parallel_sentences import read_translations
from qpr_jax.errors import UserError
from qpr_jax.evaluation.scores import hits, ndcg
from qpr_jax.text.tokenizer import normalized_text

MOST = 10_000  # questions of a set
GENERIC = 20  # an answer of more questions says little about them: "true", "2", "france"
LOGS, PARALLEL = "qa_logs", "parallel"  # folders of the data


# Distinct texts, and the labels of each: two texts with a label in common are relevant.
Labeled = tuple[list[str], list[tuple[str, ...]]]


# The files of sets, below the folder of the data.
SOURCES = {
    "clinc150": f"{LOGS}/clinc150.jsonl.gz",
    "webquestions": f"{LOGS}/webquestions.jsonl.gz",
    "tatoeba": f"{PARALLEL}/tatoeba.en-de.tsv.gz",
    "simplequestions": f"{LOGS}/simplequestions.jsonl.gz",
    "opentriviaqa": f"{LOGS}/opentriviaqa.jsonl.gz",
}
# Labels of more questions than GENERIC are left out with their questions.
WITH_GENERIC = ("simplequestions", "opentriviaqa")


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
        return {"ndcg@10": ndcg(relevant, ideal, 10), "hits@1": hits(relevant, 1)}


def read_set(name: str, most: int = MOST) -> QuestionSet:
    """Read at most `most` questions of a set of `SOURCES`; UserError without its file."""
    path = pathlib.Path(os.environ.get("QPR_DATA_DIR", "."), SOURCES[name])
    if not path.is_file():
        what = f"{path}: expected the file of `{name}`, found none"
        raise UserError(what, remedy="set $QPR_DATA_DIR to the folder that contains it")
    labeled = _read_translations(path) if name == "tatoeba" else _read_log(path)
    if name in WITH_GENERIC:
        labeled = _without_generic(*labeled)
    return make_set(labeled, most, whole=name != "clinc150")


def _read_log(path: pathlib.Path) -> Labeled:
    """Read the questions of a log with their answers; without those of several answers."""
    rows = [*read_log(Logs((str(path),)), BadRows(str(path), skip=False))]
    questions = [q for q in distinct_questions(sorted(rows)) if q.answer != UNDECIDED]
    return [q.text for q in questions], [(q.answer,) for q in questions]


def _read_translations(path: pathlib.Path) -> Labeled:
    """Read the English sentences of lines `English TAB German`, with all their translations."""
    found = read_translations(f"en-de:{path}")
    german: defaultdict[str, set[str]] = defaultdict(set)
    texts: dict[str, str] = {}
    for english, other in zip(found.sources, found.targets, strict=True):
        key = normalized_text(english)
        texts.setdefault(key, english)
        german[key].add(normalized_text(other))
    return [*texts.values()], [tuple(sorted(german[key])) for key in texts]


def _without_generic(texts: list[str], labels: list[tuple[str, ...]]) -> Labeled:
    counts = Counter(label for some in labels for label in some)
    left = [i for i, some in enumerate(labels) if all(counts[label] <= GENERIC for label in some)]
    return [texts[i] for i in left], [labels[i] for i in left]


def make_set(labeled: Labeled, most: int, *, whole: bool = True) -> QuestionSet:
    """Make a set of at most `most` questions, drawn at random, but the same each time.

    whole: where there are too many, draw half of them by label, so that labels stay whole.
    """
    texts, labels = labeled
    chosen = np.random.default_rng(0).permutation(len(labels)).tolist()
    if whole and len(chosen) > most:
        chosen = _with_whole_labels(labels, chosen, most)
    chosen = sorted(chosen[:most])
    member = MultiLabelBinarizer(sparse_output=True).fit_transform([labels[i] for i in chosen])
    common = (member @ member.T).tocsr()
    common.setdiag(0)
    common.eliminate_zeros()
    return QuestionSet([texts[i] for i in chosen], common.astype(bool))


def _with_whole_labels(
    labels: Sequence[tuple[str, ...]], order: Sequence[int], most: int
) -> list[int]:
    by_label: defaultdict[str, list[int]] = defaultdict(list)
    for i, some in enumerate(labels):
        for label in some:
            by_label[label].append(i)
    chosen: dict[int, None] = {}
    for i in order:
        alike = {j for label in labels[i] for j in by_label[label]}
        if len(alike) > 1 and len(chosen) + len(alike) <= most // 2:
            chosen.update(dict.fromkeys(sorted(alike)))
    alone = [i for i in order if all(len(by_label[label]) == 1 for label in labels[i])]
    return [*chosen, *alone]
