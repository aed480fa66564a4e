"""Sets of questions with a known relevance, from data that the configs for Quora do not train on.

A set is a few thousand questions. Each that has another one with the same label is a query, and is
searched among all others of the set. The labels of a set: the intent, the answer, or the German
translations of a sentence.
"""

from __future__ import annotations

import gzip
import itertools
import os
import pathlib
import re
from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from qpr_jax.data.beir import write_beir
from qpr_jax.distant.logs import BadRow, Logs, read_log
from qpr_jax.distant.method import UNDECIDED, distinct_questions
from qpr_jax.errors import UserError
from qpr_jax.evaluation import metrics
from qpr_jax.files import sha256_of
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.training.sources import list_digest

MOST = 10_000  # questions of a set
GENERIC = 20  # an answer of more questions says little about them: "true", "2", "france"
LOGS, PARALLEL = "qa_logs", "parallel"  # folders of the data
_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")


class Labels(NamedTuple):
    """Distinct texts, and the labels of each: two texts with a label in common are relevant."""

    texts: list[str]
    labels: list[tuple[str, ...]]


class Source(NamedTuple):
    """Where a set comes from.

    Attributes:
      file: below the folder of the data.
      relevant: what makes a question relevant, as the page says it.
      most_alike: labels of more questions are left out with their questions; 0: none are.
      whole: where there are too many questions, take half of them by label, so that labels stay
        whole; else all at random.
    """

    file: str
    relevant: str
    most_alike: int = 0
    whole: bool = True

    @property
    def kind(self) -> str:
        """LOGS or PARALLEL."""
        return self.file.partition("/")[0]


SOURCES = {
    "clinc150": Source(f"{LOGS}/clinc150.jsonl.gz", "same intent", whole=False),
    "webquestions": Source(f"{LOGS}/webquestions.jsonl.gz", "same answer"),
    "tatoeba": Source(f"{PARALLEL}/tatoeba.en-de.tsv.gz", "a German translation in common"),
    "simplequestions": Source(f"{LOGS}/simplequestions.jsonl.gz", "same answer", GENERIC),
    "opentriviaqa": Source(f"{LOGS}/opentriviaqa.jsonl.gz", "same answer", GENERIC),
}


class QuestionSet(NamedTuple):
    """Questions and which of them are relevant to which.

    Attributes:
      texts: n of them, distinct.
      relevance: bool [n, n], symmetric, without a question itself.
      sha256: of the file that it comes from.
    """

    name: str
    texts: list[str]
    relevance: csr_matrix
    sha256: str

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
        return {"ndcg@10": metrics.ndcg(relevant, counts, 10), "hits@1": metrics.hits(relevant, 1)}


def read_set(name: str, most: int = MOST) -> QuestionSet:
    """Read a set of `SOURCES`; the same questions each time. UserError where its file is missing.

    most: questions at most.
    """
    source, path = SOURCES[name], find_set(name)
    known = read_log_labels(path) if source.kind == LOGS else read_translation_labels(path)
    chosen = choose(known.labels, most, source.most_alike, whole=source.whole)
    texts, labels = [known.texts[i] for i in chosen], [known.labels[i] for i in chosen]
    return QuestionSet(name, texts, relevance_of(labels), sha256_of(path))


def find_set(name: str) -> pathlib.Path:
    """The file of a set."""
    path = pathlib.Path(os.environ.get("QPR_DATA_DIR", "."), SOURCES[name].file)
    if not path.is_file():
        raise UserError(
            f"{path}: expected the file of `{name}`, found none",
            remedy="set $QPR_DATA_DIR to the folder that contains it",
        )
    return path


def read_log_labels(path: pathlib.Path) -> Labels:
    """The questions of a log with their answers; without those of several answers."""
    rows = []
    for row in read_log(Logs((str(path),)), str(path)):
        if isinstance(row, BadRow):
            raise UserError(f"{path}, line {row.line}: {row.reason}")
        rows.append(row)
    questions = [q for q in distinct_questions(sorted(rows)) if q.answer != UNDECIDED]
    return Labels([q.text for q in questions], [(q.answer,) for q in questions])


def read_translation_labels(path: pathlib.Path) -> Labels:
    """The English sentences of lines `English TAB German`, with all their German translations."""
    german: defaultdict[str, set[str]] = defaultdict(set)
    texts: dict[str, str] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            english, _, other = line.rstrip("\n").partition("\t")
            key = normalized_text(english)
            texts.setdefault(key, english)
            german[key].add(normalized_text(other))
    return Labels([*texts.values()], [tuple(sorted(german[key])) for key in texts])


def choose(
    labels: Sequence[tuple[str, ...]], most: int, most_alike: int, *, whole: bool
) -> list[int]:
    """Choose at most `most` questions, at random but the same each time; see `Source`."""
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


def relevance_of(labels: Sequence[tuple[str, ...]]) -> csr_matrix:
    """Which questions have a label in common: bool [n, n], without a question itself."""
    number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    columns = [number[label] for own in labels for label in own]
    rows = np.repeat(np.arange(len(labels)), [len(own) for own in labels])
    shape = len(labels), len(number)
    member = csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape=shape)
    common = (member @ member.T).tocsr()
    common.setdiag(0)
    common.eliminate_zeros()
    return common.astype(bool)


def write_folder(folder: pathlib.Path, questions: QuestionSet) -> None:
    """Write a set in BEIR's format, for `qpr evaluate --beir`; queries are questions by their id.

    The ids are positions, so a question does not find itself.
    """
    ids = [*map(str, range(len(questions.texts)))]
    pairs = ((ids[i], ids[j], 1) for i, j in zip(*questions.relevance.nonzero(), strict=True))
    queries = ((ids[i], questions.texts[i]) for i in questions.queries)
    write_beir(folder, zip(ids, questions.texts, strict=True), queries, {"test": pairs})


class Training(NamedTuple):
    """What a run says about its data.

    Attributes:
      hashes: of the files that it was trained on.
      names: of the files of translations.
      on_logs: whether it was trained on logs, whose hash is one of all their files.
      on_lists: whether it was trained on lists of questions that nothing is known of.
    """

    hashes: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    on_logs: bool = False
    on_lists: bool = False

    def has_seen(self, questions: QuestionSet) -> bool:
        """Whether it was trained on the file of a set, or may have been."""
        source = SOURCES[questions.name]
        logs = self.on_lists or (self.on_logs and source.kind == LOGS)
        name = source.file.rpartition("/")[2]
        return logs or questions.sha256 in self.hashes or any(name in spec for spec in self.names)


def training_of(run: pathlib.Path, settings: dict[str, Any]) -> Training:
    """Read what a run was trained on: `run.json`, where there is one, has the hashes of its files.

    settings: those of its encoder.
    """
    path = run / "run.json"
    hashes = {*_SHA256.findall(path.read_text(encoding="utf-8"))} if path.is_file() else set()
    listed = settings.get("data.source") == "questions"
    found = {sha256 for names in _lists_of(hashes) for sha256 in names} if listed else set()
    files = settings.get("translations", {}).get("files", [])
    on_logs = settings.get("data.source") == LOGS
    return Training(frozenset(hashes | found), frozenset(files), on_logs, listed and not found)


def _lists_of(hashes: Set[str]) -> list[tuple[str, ...]]:
    """The lists of files of `SOURCES` whose hash, that of their hashes in order, is given."""
    digests = [sha256_of(find_set(name)) for name in SOURCES]
    return [
        files
        for count in range(1, len(digests) + 1)
        for files in itertools.permutations(digests, count)
        if list_digest(files) in hashes
    ]
