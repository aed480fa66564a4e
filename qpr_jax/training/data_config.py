"""The settings of the data and the text of a training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from qpr_jax.training.sections import MayChange, Section, Several


class DataConfig(Section):
    """The questions, their pairs, and how they are split."""

    source: str = Field(default="quora", description="Kind of data: a name in SOURCES.")
    path: MayChange[str] = Field(
        default="", description="File or folder; empty: $QPR_DATA_DIR, the cache or the web."
    )
    skip_bad_rows: bool = Field(default=False, description="Count and skip malformed rows.")
    max_rows: int = Field(
        default=0, ge=0, description="Rows to read of each file, or clusters to generate; 0: all."
    )
    held_out_pairs: int = Field(
        default=0,
        ge=0,
        description="Most pairs of the validation split, and of the test split; 0: a tenth of all "
        "pairs, at most 5,000.",
    )
    false_negatives: float = Field(
        default=-1.0,
        ge=-1,
        le=0.9,
        description="Share of generated rows with an unlabeled paraphrase in their batch; below 0: "
        "a few, as in real logs.",
    )
    question_column: str = Field(default="question", description="Column of the question.")
    answer_column: str = Field(default="answer", description="Column of the answer, in logs.")
    coherence: Literal["pairwise", "paper"] = Field(
        default="pairwise", description="How to filter the clusters of logs."
    )
    unlabeled: MayChange[str] = Field(
        default="", description="Further questions for the teacher to encode: a file or a folder."
    )
    spliced: int = Field(
        default=0,
        ge=0,
        description="Further questions for the teacher, spliced from training questions.",
    )
    parallel: MayChange[Several[str]] = Field(
        default=(),
        description="Translations that the student of a teacher learns, such as `en-de:PATH`.",
    )
    parallel_tests: MayChange[Several[str]] = Field(
        default=(), description="Translations to score, like `data.parallel`; never trained on."
    )
    glossed: int = Field(
        default=0,
        ge=0,
        description="Copies of each question with its words replaced by translations.",
    )
    negatives: MayChange[str] = Field(
        default="", description="File of `qpr negatives` for `batch.hard_negatives`."
    )
    labels: MayChange[str] = Field(
        default="",
        description="Labeled pairs added to training, such as the verdicts of `qpr review`.",
    )


class TextConfig(Section):
    """From a question to token ids."""

    vocabulary_size: int = Field(
        default=50_000, ge=1, description="Most frequent words of the training questions."
    )
    min_count: int = Field(
        default=1,
        ge=1,
        description="Minimum count of a word in the vocabulary among training questions.",
    )
    hash_bins: int = Field(
        default=5_000, ge=1, description="Embeddings that all other words share, by hash."
    )
    subwords: bool = Field(
        default=False, description="An unknown word is the sum of its 3- to 5-grams in `hash_bins`."
    )
    max_tokens: int = Field(default=64, ge=1, description="Tokens of a question that are read.")
    added_words: int = Field(
        default=0,
        ge=0,
        description="Words of `data.parallel` to add to `encoder.pretrained`, which stays as it is "
        "otherwise; 0: train all.",
    )
