"""Clusters of questions with the same answer in logs (the paper's section 4.1.1), in a folder.

They depend only on the content of the questions and on the seed, not on their order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpr_jax.data.columns import read_values, write_tsv
from qpr_jax.data.decoding import table_files
from qpr_jax.data.logs import (
    NAME_COLUMNS,
    UNDECIDED,
    LogQuestions,
    Logs,
    Question,
    read_questions,
    read_questions_on_spark,
)
from qpr_jax.data.question_pairs import QuestionPairs
from qpr_jax.data.spark import open_session
from qpr_jax.data.splits import HELD_OUT, SPLITS, SplitData, Splits
from qpr_jax.data.typed_rows import write_json_lines
from qpr_jax.errors import UserError, counted
from qpr_jax.files import (
    StrPath,
    read_json,
    refuse_existing,
    replace_folder,
    require_file,
    sha256_of,
    write_json,
)
from qpr_jax.text.tokenizer import normalized_text

CLUSTERS, QUESTIONS, REPORT = "clusters.jsonl", "questions.jsonl", "report.json"
PAIR_COLUMNS = ("question1", "question2")
_REMEDY = "make the folder again with `qpr clusters`"
SAMPLE = 200  # clusters in the sample for labels, as in the paper's spot check
SAMPLE_COLUMNS = ("label", "answer", "size", "coherence", "questions")
_SHOWN = 10  # questions of a cluster
# The default least coherence of a cluster, by measure.
LEAST = {"pairwise": 0.3, "paper": 0.1}


def is_made(folder: StrPath) -> bool:
    """Return whether `write_clusters` wrote a folder."""
    return pathlib.Path(folder, CLUSTERS).is_file()


def cluster_files(folder: StrPath) -> list[pathlib.Path]:
    """Return the files that `read_clusters` reads; UserError if one is missing."""
    names = (CLUSTERS, QUESTIONS, *map(_pairs_of, SPLITS))
    return [require_file(pathlib.Path(folder, name), remedy=_REMEDY) for name in names]


def content_hash(path: StrPath) -> str:
    """Return a hash of the files at `path`, of any name and order, or of those of `make_folder`."""
    files = cluster_files(path) if is_made(path) else table_files([path], format="lines")
    digests = sorted(map(sha256_of, files))
    combined = hashlib.sha256("".join(digests).encode()).hexdigest()
    return digests[0] if len(digests) == 1 else combined


def make_folder(
    folder: StrPath, logs: Logs, method: Method, *, skip_bad_rows: bool = False, spark: str = ""
) -> dict[str, Any]:
    """Make the clusters of logs in a new folder (see `write_clusters`) and return the report.

    UserError if none is left. spark: the master of a Spark cluster that reads the logs; "": none.
    """
    refuse_existing(folder)
    if not spark:
        return write_clusters(folder, read_questions(logs, skip_bad_rows=skip_bad_rows), method)
    with open_session(spark, "qpr clusters") as session:
        questions = read_questions_on_spark(session, logs, skip_bad_rows=skip_bad_rows)
    return write_clusters(folder, questions, method)


def write_clusters(folder: StrPath, log: LogQuestions, method: Method) -> dict[str, Any]:
    """Write the clusters of logs to a new folder, whole or not at all, and return the report.

    The folder has clusters.jsonl, an object for each cluster (`cluster` (0, 1, ...), `answer`,
    `coherence`, `split`, `questions`); pairs_{train,validation,test}.tsv, a header, then two
    questions a line; questions.jsonl, all distinct questions, for the index; report.json, what was
    kept and removed; sample.tsv, a random sample of clusters for labels.
    """
    found = find_clusters(log.questions, method)
    kept = _coherent(found, log, method)
    split_of = split_clusters(kept, method)
    apart = [*remove_overlap(kept, split_of)]
    clusters = [cluster for cluster in apart if len(cluster.questions) > 1]
    clustered, clustered_kept, left = (
        sum(len(cluster.questions) for cluster in some) for some in (found, kept, apart)
    )
    rows, overlap = [], clustered_kept - left
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    splits = {split: Counter(clusters=0, questions=0, pairs=0) for split in SPLITS}
    for number, (answer, questions, coherence) in enumerate(clusters):
        split = split_of[answer]
        row = {"cluster": number, "answer": answer, "coherence": coherence, "split": split}
        rows.append(row | {"questions": questions})
        sample = [*sample_pairs(questions, answer, method)]
        pairs[split] += sample
        splits[split].update(clusters=1, questions=len(questions), pairs=len(sample))
    if empty := [split for split in SPLITS if not splits[split]["clusters"]]:
        what = f"expected clusters in each split, got none for {empty[0]} without the {overlap:,} "
        remedy = "give more logs, lower `min_coherence`, or try another `seed`"
        raise UserError(f"{what}questions that are also in train", remedy=remedy)
    texts = sorted(question.text for question in log.questions)
    undecided = sum(question.answer == UNDECIDED for question in log.questions)
    report = {
        "rows": log.rows,
        "bad_rows": log.bad_rows,
        "questions": len(texts),
        "questions_of_several_answers": sum(q.answers > 1 for q in log.questions),
        "undecided_questions": undecided,
        "questions_alone": len(texts) - undecided - clustered,
        "overlapping_questions": overlap,
        "repeated_rows": log.rows - len(texts),
        "clusters": len(found),
        "clustered_questions": clustered,
        "clusters_removed": len(found) - len(kept),
        "questions_removed": clustered - clustered_kept,
        "clusters_kept": len(kept),
        "questions_kept": clustered_kept,
        "clusters_lost_to_overlap": len(kept) - len(clusters),
        "splits": splits,
        "method": dataclasses.asdict(method),
    }
    with replace_folder(folder) as part:
        write_json_lines(part / CLUSTERS, rows)
        write_json_lines(part / QUESTIONS, ({"question": text} for text in texts))
        for split in SPLITS:
            write_tsv(part / _pairs_of(split), PAIR_COLUMNS, pairs[split])
        order = sorted(kept, key=lambda cluster: draw("sample", method.seed, cluster.answer))
        write_sample(part / "sample.tsv", order[:SAMPLE])
        write_json(part / REPORT, report)
    return report


def _pairs_of(split: str) -> str:
    return f"pairs_{split}.tsv"


def _coherent(found: Sequence[Cluster], log: LogQuestions, method: Method) -> list[Cluster]:
    """Return the clusters that are coherent enough; UserError if there are none."""
    if not found:
        got = f"got none in {counted(log.rows, 'row')} ({log.bad_rows:,} more are bad)"
        what = f"expected answers with two questions or more, {got}"
        raise UserError(what, remedy=NAME_COLUMNS)
    kept = [cluster for cluster in found if cluster.coherence >= method.min_coherence]
    if not kept:
        most = max(cluster.coherence for cluster in found)
        what = f"expected clusters of a coherence of {method.min_coherence:g} or more, got none: "
        what += f"the most coherent of {len(found):,} has {most:.3g}"
        remedy = 'lower `min_coherence`, or use `coherence="pairwise"` if it is paper'
        raise UserError(what, remedy=remedy)
    return kept


def read_clusters(folder: StrPath) -> SplitData:
    """Read a folder of `write_clusters`; UserError if a file is missing or inconsistent."""
    path = pathlib.Path(folder)
    cluster_files(path)
    try:
        questions = [row["question"] for row in _objects(path / QUESTIONS)]
        row_of = {text: i for i, text in enumerate(questions)}
        clusters = np.full(len(questions), -1, np.int32)
        split_of = np.full(len(questions), -1, np.int8)
        for number, row in enumerate(_objects(path / CLUSTERS)):
            members = [row_of[text] for text in row["questions"]]
            clusters[members] = number
            split_of[members] = SPLITS.index(row["split"])
        pairs = {}
        for split in SPLITS:
            file = str(path / _pairs_of(split))
            found = read_values(
                file, PAIR_COLUMNS, lambda *pair: [row_of[text] for text in pair], expected="a pair"
            )
            pairs[split] = np.array([*found], np.int32).reshape(-1, 2)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{path}: expected clusters of the questions in {QUESTIONS}, got others ({error!r})"
        raise UserError(what, remedy=_REMEDY) from None
    report = read_report(path)
    facts = {"skipped_rows": report["bad_rows"], "distant_supervision": report}
    data = QuestionPairs.of_duplicates(questions, np.concatenate([*pairs.values()]), **facts)
    return SplitData(data, clusters, Splits(split_of, pairs))


def _objects(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def read_report(folder: StrPath) -> dict[str, Any]:
    """Read report.json of `write_clusters`."""
    path = pathlib.Path(folder, REPORT)
    report = read_json(path)
    if not isinstance(report, dict) or not {"bad_rows", "method"} <= report.keys():
        raise UserError(f"{path}: expected a report of `qpr clusters`", remedy=_REMEDY)
    return report


def write_sample(path: pathlib.Path, sample: Iterable[Cluster]) -> None:
    """Write clusters as TSV with an empty column `label`, for 1 or yes, 0 or no."""
    rows = (
        ("", answer, len(some), f"{coherence:.4f}", " | ".join(some[:: -(-len(some) // _SHOWN)]))
        for answer, some, coherence in sample
    )
    write_tsv(path, SAMPLE_COLUMNS, rows)


@dataclasses.dataclass(frozen=True)
class Method:
    """The settings of distant supervision.

    Attributes:
      coherence: "pairwise" or "paper", see `pairwise_coherence` and `paper_coherence`.
      min_coherence: clusters with less coherence are removed.
      pairs: the largest number of pairs of a cluster.
      seed: of the split and of the sampled pairs.
    """

    coherence: str = "pairwise"
    min_coherence: float = LEAST["pairwise"]
    pairs: int = 100
    seed: int = 0


class Cluster(NamedTuple):
    """The questions with the same answer, at least two, sorted."""

    answer: str
    questions: list[str]
    coherence: float


def words_of(text: str) -> list[str]:
    """Return the distinct words of a question, at least one."""
    return list(dict.fromkeys(normalized_text(text).split()))


def paper_coherence(words: Sequence[Sequence[str]]) -> float:
    """Equations (5) and (6) of the paper: the mean share of the cluster's words in a question.

    `words` are the distinct ones of each question. The coherence is at least 1 / n for n questions,
    even if they are unrelated, and small for many questions, even if they are alike.
    """
    uses = Counter(itertools.chain.from_iterable(words))
    return uses.total() / (len(words) * len(uses))


def pairwise_coherence(words: Sequence[Sequence[str]], weights: dict[str, float]) -> float:
    """Return the weighted share of a question's words that another question of the cluster has.

    For n questions, of which u_w have the word w with its inverse frequency as weight,

        sum_w weight_w u_w (u_w - 1) / ((n - 1) sum_w weight_w u_w).

    This is the probability that a word of a question, sampled by weight, is also in another
    question. It is 1 if all questions have the same words and 0 if no two share one, for every n;
    a random part of a cluster has about the coherence of the whole.
    """
    uses = Counter(itertools.chain.from_iterable(words))
    # `fsum` rounds once, so the order of the words does not matter.
    whole = math.fsum(weights[word] * used for word, used in uses.items())
    shared = math.fsum(weights[word] * used * (used - 1) for word, used in uses.items())
    return shared / ((len(words) - 1) * whole)


def find_clusters(questions: Collection[Question], method: Method) -> list[Cluster]:
    """Return all clusters, whatever their coherence, sorted by answer."""
    uses = Counter(word for question in questions for word in words_of(question.text))
    weights = {word: math.log1p(len(questions) / used) for word, used in uses.items()}
    texts: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        if question.answer != UNDECIDED:
            texts[question.answer].append(question.text)
    clusters = []
    for answer in sorted(texts):
        if len(texts[answer]) > 1:
            words = [words_of(text) for text in texts[answer]]
            paper = method.coherence == "paper"
            coherence = paper_coherence(words) if paper else pairwise_coherence(words, weights)
            clusters.append(Cluster(answer, sorted(texts[answer]), coherence))
    return clusters


def draw(use: str, seed: int, answer: str) -> int:
    """Return a uniform number from 0 to 2^63 - 1 that depends only on the arguments."""
    digest = hashlib.blake2b(f"{use} {seed} {answer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def split_clusters(clusters: Sequence[Cluster], method: Method) -> dict[str, str]:
    """Return the split of each cluster, by its answer: a tenth each is held out."""
    if len(clusters) < len(SPLITS):
        into = f"{len(SPLITS)} clusters or more, to split into {', '.join(SPLITS)}"
        what = f"expected {into}, got {len(clusters)}"
        raise UserError(what, remedy="lower `min_coherence`, or give more logs")
    answers = sorted((draw("split", method.seed, c.answer), c.answer) for c in clusters)
    tenth = max(1, round(len(clusters) / 10))
    names = itertools.chain.from_iterable([name] * tenth for name in HELD_OUT)
    filled = itertools.chain(names, itertools.repeat(SPLITS[0]))
    return {answer: name for (_, answer), name in zip(answers, filled, strict=False)}


def remove_overlap(clusters: Sequence[Cluster], split_of: dict[str, str]) -> Iterator[Cluster]:
    """Yield clusters without held-out questions that have the words of a training question."""

    def words(text: str) -> tuple[str, ...]:
        return tuple(sorted(words_of(text)))

    train = [cluster for cluster in clusters if split_of[cluster.answer] not in HELD_OUT]
    trained = {words(text) for cluster in train for text in cluster.questions}
    for cluster in clusters:
        if split_of[cluster.answer] in HELD_OUT:
            left = [text for text in cluster.questions if words(text) not in trained]
            cluster = cluster._replace(questions=left)
        yield cluster


def sample_pairs(
    questions: Sequence[str], answer: str, method: Method
) -> Iterator[tuple[str, str]]:
    """Yield all pairs of a cluster's questions, or a random sample, each in random order."""
    rng = random.Random(draw("pairs", method.seed, answer))
    count = len(questions) * (len(questions) - 1) // 2
    some = range(count) if count <= method.pairs else rng.sample(range(count), method.pairs)
    for number in sorted(some):
        # The number of the pair (i, j), i < j, is j (j - 1) / 2 + i.
        j = (1 + math.isqrt(1 + 8 * number)) // 2
        pair = questions[number - j * (j - 1) // 2], questions[j]
        yield pair if rng.random() < 0.5 else pair[::-1]
