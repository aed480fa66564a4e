"""The settings of the data of a training."""

from __future__ import annotations

from dataclasses import dataclass

from qpr_jax.training.declaration import setting


@dataclass(slots=True, kw_only=True)
class DataConfig:
    """The questions, their pairs, and how they are split."""

    source: str = setting(
        "quora",
        "labeled pairs (quora), logs of questions and answers (qa_logs), a list (questions), or a "
        "generated log (synthetic)",
    )
    path: str = setting(
        "", "file or folder; empty: $QPR_DATA_DIR, the cache or the web", result=False
    )
    skip_bad_rows: bool = setting(False, "count and skip malformed rows")
    max_rows: int = setting(0, "rows to read of each file; 0: all", min=0)
    split_seed: int = setting(0, "seed of the splits and of generated data", min=0)
    held_out_pairs: int = setting(5000, "most pairs of validation, and of test", min=1)
    max_held_out_cluster: int = setting(20, "larger clusters are always trained on", min=1)
    synthetic_clusters: int = setting(6000, "clusters of the generated log", min=1)
    false_negatives: float = setting(
        -1.0,
        "share of generated rows with an unlabeled paraphrase in their batch; -1: a few, as in "
        "real logs",
        min=0,
        max=0.9,
        unset=-1,
    )
    question_column: str = setting("question", "column of the question, in logs and lists")
    answer_column: str = setting("answer", "column of the answer, in logs")
    coherence: str = setting(
        "pairwise", "how the clusters of logs are filtered", choices=("pairwise", "paper")
    )
    min_coherence: float = setting(
        -1.0,
        "minimum coherence of a cluster of logs; -1: 0.3 (0.1 with coherence=paper)",
        min=0,
        max=1,
        unset=-1,
    )
    pairs_per_cluster: int = setting(100, "most pairs of a cluster of logs", min=1)
    unlabeled: str = setting(
        "", "further questions for the teacher to encode: a file or a folder", result=False
    )
    spliced: int = setting(
        0, "further questions for the teacher, spliced from the training questions", min=0
    )
    parallel: tuple[str, ...] = setting(
        (),
        "translations for the teacher's student: files of sentences or words, [xx-yy:]PATH, or "
        "PATH+PATH for two files of equal lines",
        result=False,
    )
    parallel_tests: tuple[str, ...] = setting(
        (), "translations to score, like `data.parallel`; never trained with", result=False
    )
    teacher_language: str = setting("en", "the language that `data.parallel` translates")
    glossed: int = setting(
        0,
        "copies of each question with its words replaced by translations, learned from "
        "`data.parallel`",
        min=0,
    )
    held_out_translations: int = setting(
        1000, "sentences of each language to score in validation, and in test", min=1
    )
    negatives: str = setting(
        "", "hard negatives of `qpr negatives` for `batch.hard_negatives`: a file", result=False
    )
    labels: str = setting(
        "", "labeled pairs added to those of training, as of `qpr review`: a file", result=False
    )
