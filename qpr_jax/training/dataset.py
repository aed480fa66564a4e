"""From settings to all that training and evaluation read: pairs, splits, word ids."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpr_jax.data.clusters import cluster_report, transitive_clusters
from qpr_jax.data.questions import read_questions
from qpr_jax.data.quora import QuestionPairs, read_quora
from qpr_jax.data.spliced import splice_questions
from qpr_jax.data.splits import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    Splits,
    other_candidates,
    split_by_cluster,
    split_by_text,
)
from qpr_jax.data.synthetic import synthetic_pairs
from qpr_jax.data.synthetic_noise import generate_noisy_log
from qpr_jax.distant.folder import ClusterData, read_clusters
from qpr_jax.distant.logs import log_files
from qpr_jax.encoders.base import Encoder
from qpr_jax.encoders.transformer_encoder import TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from qpr_jax.text.vocabulary import Vocabulary, build_vocabulary
from qpr_jax.text.word_pieces import WordPieces
from qpr_jax.training.batch_layout import lengths_of
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.teacher import Teacher, make_teacher

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainDataset:
    """The data of a run: Q questions, their splits, and U others that only a teacher speaks of.

    clusters: int32 [Q + U], -1 for none. words: ids, int32 [Q + U, L]. others: for each held-out
    split, int [P], a question of another cluster for each pair: the negatives of ROC AUC.
    unlabeled: the U others. pretrained: what training starts from, if not from nothing. teacher:
    None where none was asked for, and until `with_teacher`.
    """

    data: QuestionPairs
    clusters: np.ndarray
    splits: Splits
    others: dict[str, np.ndarray]
    vocabulary: Vocabulary | WordPieces
    words: np.ndarray
    unlabeled: list[str]
    report: dict[str, Any]
    pretrained: TransformerEncoder | None = None
    teacher: Teacher | None = None

    @property
    def own_words(self) -> np.ndarray:
        """Word ids of the Q questions."""
        return self.words[: len(self.data.questions)]

    @property
    def shown(self) -> np.ndarray:
        """Rows that a student may see: the training questions and the U others, int [S]."""
        first = len(self.data.questions)
        more = np.arange(first, first + len(self.unlabeled))
        return np.concatenate([np.flatnonzero(self.splits.split_of == TRAIN), more])


def load_dataset(
    config: TrainConfig, path: pathlib.Path | None, pretrained: TransformerEncoder | None = None
) -> TrainDataset:
    """Read, cluster, split and tokenise the data at `path`.

    That is the pair file; of logs of questions and answers, a folder that `qpr clusters` made; a
    list of questions; None for a generated log.
    """
    data, clusters, splits = _read(config, path)
    others = {
        split: other_candidates(splits.pairs[split], clusters, seed=0)
        for split in HELD_OUT
        if len(splits.pairs[split])
    }
    given, made = _unlabeled(config, data.questions, splits)
    unlabeled = given + made
    everything = data.questions + unlabeled
    vocabulary: Vocabulary | WordPieces
    if pretrained:
        vocabulary = pretrained.tokenizer
    else:
        seen = np.flatnonzero(splits.split_of == TRAIN)
        vocabulary = build_vocabulary(
            itertools.chain((data.questions[i] for i in seen), given),
            size=config.text.vocabulary_size,
            bins=config.text.hash_bins,
            min_count=config.text.min_count,
            char_ngrams=config.text.char_ngrams,
        )
    longest = min(config.text.max_tokens, pretrained.max_tokens if pretrained else 1 << 30)
    words, cut = vocabulary.token_ids(everything, longest)
    clusters = np.concatenate([clusters, np.full(len(unlabeled), -1, clusters.dtype)])
    report: dict[str, Any] = {
        "questions": len(data.questions),
        **data.report,
        **cluster_report(clusters[: len(data.questions)], data.pairs, data.is_duplicate),
        "questions_cut": cut,
        "words_per_question": float(lengths_of(words).mean()),
        "vocabulary": vocabulary.first_bin - 1,
        "hashed_words": float((words >= vocabulary.first_bin).sum() / max(1, (words > 0).sum())),
        "unlabelled": len(unlabeled),
        "splits": {
            name: {
                "questions": int((splits.split_of == i).sum()),
                "clusters": len(np.setdiff1d(clusters[np.flatnonzero(splits.split_of == i)], -1)),
                "pairs": len(splits.pairs[name]),
                "queries": len(np.unique(splits.pairs[name][:, 0])),
                "non_duplicates": len(splits.non_duplicates[name]),
            }
            for i, name in enumerate(SPLITS)
        },
    }
    _log_report(report)
    return TrainDataset(
        data, clusters, splits, others, vocabulary, words, unlabeled, report, pretrained
    )


def with_teacher(
    config: TrainConfig, dataset: TrainDataset, encoder: Encoder | None
) -> TrainDataset:
    """The same with the teacher that the settings name, if they do; see `teacher.make_teacher`."""
    if not (encoder or config.teacher.vectors):
        return dataset
    questions = (dataset.data.questions, dataset.unlabeled)
    pretrained = dataset.pretrained
    wanted = pretrained.dimension if pretrained else config.encoder.output_dim
    teacher = make_teacher(config, encoder, questions, dataset.shown, wanted)
    return dataclasses.replace(dataset, teacher=teacher)


def _unlabeled(
    config: TrainConfig, questions: list[str], splits: Splits
) -> tuple[list[str], list[str]]:
    """The questions of `data.unlabeled`, and those made by crossing, each once.

    None that a held-out one says too.
    """
    found: list[str] = []
    made: list[str] = []
    if not (config.data.unlabeled or config.data.spliced):
        return found, made
    held_out = {normalized_text(questions[i]) for i in np.flatnonzero(splits.split_of != TRAIN)}
    known = set(questions)

    def is_new(question: str) -> bool:
        return question not in known and normalized_text(question) not in held_out

    for file in unlabeled_files(config):
        for question in _questions_of(config, file):
            if is_new(question):
                known.add(question)
                found.append(question)
    if config.data.unlabeled:
        log.info("data: %s unlabeled questions", f"{len(found):,}")
    if config.data.spliced:
        real = [questions[i] for i in np.flatnonzero(splits.split_of == TRAIN)] + found
        made = splice_questions(
            real, config.data.spliced, accept=is_new, seed=config.data.split_seed
        )
        log.info("data: %s questions made by crossing", f"{len(made):,}")
    return found, made


def unlabeled_files(config: TrainConfig) -> list[pathlib.Path]:
    """The files of `data.unlabeled`; UserError where there is none, though it names one."""
    if not config.data.unlabeled:
        return []
    path = pathlib.Path(config.data.unlabeled).expanduser()
    if not path.exists():
        raise UserError(
            f"expected a file of questions or a folder of them, found none at {path}",
            setting="data.unlabeled",
        )
    return [pathlib.Path(name) for name in log_files([str(path)])]


def _read(
    config: TrainConfig, path: pathlib.Path | None
) -> tuple[QuestionPairs, np.ndarray, Splits]:
    if config.data.source == "qa_logs" and path is not None:
        return _supervised(read_clusters(path))
    if config.data.source == "questions" and path is not None:
        return _listed(config, path)
    if path is None and config.data.false_negatives != -1:
        made = generate_noisy_log(
            config.data.false_negatives,
            pairs=config.data.synthetic_clusters,
            batch_size=config.batch_size,
            seed=config.data.split_seed,
        )
        return made.data, made.clusters, made.splits
    if path is None:
        data = synthetic_pairs(seed=config.data.split_seed, clusters=config.data.synthetic_clusters)
    else:
        data = read_quora(
            path, skip_bad_rows=config.data.skip_bad_rows, max_rows=config.data.max_rows
        )
    clusters = transitive_clusters(len(data.questions), data.pairs[data.is_duplicate])
    splits = split_by_cluster(
        data,
        clusters,
        seed=config.data.split_seed,
        held_out_pairs=config.data.held_out_pairs,
        max_held_out_cluster=config.data.max_held_out_cluster,
    )
    return data, clusters, splits


def _supervised(made: ClusterData) -> tuple[QuestionPairs, np.ndarray, Splits]:
    """Clusters of logs as if of labelled pairs, all of them duplicates."""
    pairs = np.concatenate([made.pairs[split] for split in SPLITS])
    for split in SPLITS:
        if not len(made.pairs[split]):
            raise UserError(
                f"expected pairs in each split, got none for {split}; give more logs, or lower "
                "`data.min_coherence`"
            )
    none = np.zeros((0, 2), np.int32)
    report = {"skipped_rows": made.report["bad_rows"], "distant_supervision": made.report}
    data = QuestionPairs(
        made.questions,
        np.arange(len(made.questions)),
        pairs,
        np.ones(len(pairs), np.bool_),
        report,
    )
    splits = Splits(made.split_of, made.pairs, dict.fromkeys(SPLITS, none))
    return data, made.clusters, splits


def _listed(config: TrainConfig, path: pathlib.Path) -> tuple[QuestionPairs, np.ndarray, Splits]:
    """A list of questions, of which nothing else is known, as pairs of which there are none."""
    questions = list(itertools.islice(_questions_of(config, path), config.data.max_rows or None))
    none = np.zeros((0, 2), np.int32)
    data = QuestionPairs(
        questions,
        np.arange(len(questions)),
        none,
        np.zeros(0, np.bool_),
        {"skipped_rows": 0},
    )
    split_of = split_by_text(
        questions, seed=config.data.split_seed, most=config.data.held_out_pairs
    )
    pairs = dict.fromkeys(SPLITS, none)
    return data, np.full(len(questions), -1, np.int32), Splits(split_of, pairs, pairs)


def _questions_of(config: TrainConfig, path: pathlib.Path) -> Iterator[str]:
    for entry in read_questions(
        str(path),
        column=config.data.question_column,
        skip_bad_rows=config.data.skip_bad_rows,
        log=log.warning,
    ):
        yield entry.question


def _log_report(report: dict[str, Any]) -> None:
    log.info(
        "data: %s questions, %s clusters, largest %s, %s non-duplicates inside a cluster",
        *(
            f"{report[name]:,}"
            for name in (
                "questions",
                "clusters",
                "largest_cluster",
                "non_duplicates_inside_clusters",
            )
        ),
    )
    if report["skipped_rows"]:
        log.warning("data: %s malformed rows skipped", f"{report['skipped_rows']:,}")
    if report["questions_cut"]:
        log.info("data: %s questions cut to `max_words`", f"{report['questions_cut']:,}")
    for name, split in report["splits"].items():
        log.info("data: %s: %s", name, ", ".join(f"{v:,} {k}" for k, v in split.items()))
