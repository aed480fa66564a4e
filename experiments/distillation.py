"""What makes a student better, and what it costs: rows, a table, quality against speed.

    python -m experiments.distillation                       all rows, then the page
    python -m experiments.distillation --rows=base,minilm    some rows
    python -m experiments.distillation --speed               time the encoders

Needs the extras `minilm` and `lexical`. Measure speeds on a machine that does nothing else.
"""

from __future__ import annotations

import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.measuring import rates_in_turns
from experiments.distillation_texts import texts_section
from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import difference_cell, score_records, table_lines, write_scores
from experiments.trials import Trial, load, seeded
from qpr_jax.data.sources import find_quora
from qpr_jax.data.splits import HELD_OUT
from qpr_jax.evaluation.retrieval import RankFn, exact_search
from qpr_jax.files import read_json, write_json
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.presets import PRESETS
from qpr_jax.training.report import save_figure

CHANGES: dict[str, Any] = {"index.factory": "Flat"}  # every row is scored by exact search
SUMS = {
    name: PRESETS["quora_distilled_sums"][name]
    for name in (
        *("text.subwords", "text.min_count", "text.hash_bins", "batch.subword_dropout"),
        *("encoder.bag_of_words", "teacher.epochs", "early_stopping.every_steps"),
    )
}
DATA = os.environ.get("QPR_DATA_DIR", "")
LOGS = os.path.join(DATA, "qa_logs")
NO_PAIRS: dict[str, Any] = {"max_epochs": 0, "batch.token_dropout": 0.0}
# The student with one change each: name -> what the page calls it, its settings.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("`quora_distilled`, the student", {}),
    "imitation": ("no pair at all", NO_PAIRS),
    "imitation_crossed": (
        "no pair at all, and 150,000 made questions",
        NO_PAIRS | {"data.spliced": 150_000},
    ),
    "crossed": ("150,000 made questions", {"data.spliced": 150_000}),
    "unlabelled": ("the questions of the logs", {"data.unlabeled": LOGS}),
    "epochs_6": ("6 epochs of imitation", {"teacher.epochs": 6}),
    "weight_0": ("no imitation beside the pairs", {"teacher.weight": 0.0}),
    "similarities": (
        "the teacher's similarities in a batch, too",
        {"teacher.similarities": 1.0},
    ),
    "plain_words": ("random initial embeddings", {"teacher.init_embeddings": False}),
    "no_word_dropout": ("all words seen", {"batch.token_dropout": 0.0}),
    "char_ngrams": (
        "rare words as runs of 3 characters",
        {"text.char_ngrams": 3, "text.min_count": 3, "text.hash_bins": 20_000},
    ),
    "sums": ("`quora_distilled_sums`", SUMS),
    "filters_600": ("600 filters of each window", {"encoder.filters": 600}),
    "windows_3_5": (
        "windows of 3 and 5 words, 450 filters",
        {"encoder.kernel_sizes": (3, 5), "encoder.filters": 450},
    ),
    "window_5": (
        "one window of 5 words, 900 filters",
        {"encoder.kernel_sizes": (5,), "encoder.filters": 900},
    ),
    "no_decay": ("a rate that does not decay", {"optimizer.learning_rate_decay": "none"}),
    "ema": ("an average of weights over 100 steps", {"optimizer.ema_steps": 100}),
    "output_128": ("vectors of 128 numbers", {"encoder.output_dim": 128}),
}
# `quora_distilled_sums` without a pair, on ever more texts, in about as many steps: name -> what
# the page calls it, its settings. The texts are those of Quora and the open ones, then made ones.
OPEN_TEXTS = f"en-de:{os.path.join(DATA, 'parallel', 'tatoeba.en-de.tsv.gz')},{LOGS}"
_OPEN = SUMS | NO_PAIRS | {"data.unlabeled": OPEN_TEXTS}
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "texts_quora": ("Quora, 4 epochs", SUMS | NO_PAIRS),
    "texts_open": (
        "and the logs and the English of Tatoeba, 2 epochs",
        _OPEN | {"teacher.epochs": 2},
    ),
    "texts_crossed": (
        "and 300,000 made questions, 1 epoch",
        _OPEN | {"data.spliced": 300_000, "teacher.epochs": 1},
    ),
    "texts_million": (
        "and 700,000 made questions, 1 epoch",
        _OPEN | {"data.spliced": 700_000, "teacher.epochs": 1},
    ),
}
# A student without a teacher, and the transformer trained further, for as long as 2 cores allow:
# name -> what the page calls it, the config, its changes.
OTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pairs": ("`quora_best`, 4 epochs", "quora_best", {"max_epochs": 4}),
    "minilm_triplet": (
        "`quora_minilm_triplet`, 8,000 triplets at most",
        "quora_minilm_triplet",
        {"max_steps": 500, "optimizer.warmup_steps": 50},
    ),
    "minilm_sdml": (
        "`quora_minilm_sdml`, 10,240 pairs",
        "quora_minilm_sdml",
        {"max_steps": 40, "optimizer.warmup_steps": 4},
    ),
}
UNTRAINED = {
    "bm25": "BM25",
    "tfidf": "TF-IDF, cosine",
    "minilm": "all-MiniLM-L6-v2, the teacher",
}
Speeds = dict[str, float]  # name -> questions a second, from strings to vectors
_TIMED, _TIMED_TRANSFORMER, _ROUNDS = 20_000, 1000, 5  # questions; rounds
TITLES = UNTRAINED | {name: row[0] for name, row in OTHERS.items()} | {"base": ROWS["base"][0]}
SPEEDS = "speeds.json"
_CUTOFF_TABLES = {
    "Recall and precision": [f"{m}@{k}" for m in ("recall", "precision") for k in (1, 3, 5, 10)],
    "MAP, NDCG and MRR": [*(f"{m}@{k}" for m in ("map", "ndcg") for k in (1, 3, 5, 10)), "mrr@20"],
}
_TRANSFORMERS = ("tfidf", "minilm", "minilm_triplet", "minilm_sdml", "base")


def row_config(name: str, seed: int = 0) -> TrainConfig:
    """The settings of a row that is trained."""
    students = ROWS | TEXTS
    config, changes = (
        ("quora_distilled", students[name][1]) if name in students else OTHERS[name][1:]
    )
    return load(config, CHANGES | changes | {"seed": seed})


def trials(flags: Flags) -> list[Trial]:
    """The rows that the flags ask for; the encoders of seed 0 stay in the work directory."""
    names = flags.rows or (*UNTRAINED, *OTHERS, *ROWS, *TEXTS)
    return [
        Trial(name, row_config("base"), search=_SEARCHES[name])
        if name in UNTRAINED
        else Trial(seeded(name, seed), row_config(name, seed), keep="scores" if seed else "encoder")
        for seed in range(flags.seeds)
        for name in names
        if not (seed and name in UNTRAINED)
    ]


def time_encoders(flags: Flags) -> list[str]:
    """Measure the speeds and write them to speeds.json, beside those measured before."""
    path = flags.results / SPEEDS
    known = read_json(path) if path.exists() else {}
    names = flags.rows or (*UNTRAINED, *OTHERS, *ROWS)
    write_json(path, known | measure_speeds(names, flags.workdir, find_quora()))
    return []


def measure_speeds(names: Iterable[str], workdir: pathlib.Path, data: pathlib.Path) -> Speeds:
    """Questions a second from strings to vectors, of the rows whose encoder is in `workdir`."""
    from qpr_jax.data.pairs import read_question_pairs
    from qpr_jax.encoders.load import read_encoder

    questions = read_question_pairs(data).questions
    encoders = {}
    for name in names:
        folder = workdir / name / "export"
        if name == "minilm" or folder.exists():
            encoder = read_encoder("minilm" if name == "minilm" else folder)
            # A transformer, which has no words of its own, takes a hundred times as long.
            count = _TIMED if encoder.summary().words else _TIMED_TRANSFORMER
            encoders[name] = encoder, questions[:: max(1, len(questions) // count)]
    return rates_in_turns(encoders, _ROUNDS)


def _lexical(make: str) -> Callable[[list[str]], tuple[RankFn, dict[str, Any]]]:
    def search(questions: list[str]) -> tuple[RankFn, dict[str, Any]]:
        from experiments import lexical

        start = time.perf_counter()
        found = getattr(lexical, make)(questions)
        return found, {"questions_per_second": len(questions) / (time.perf_counter() - start)}

    return search


def _minilm(questions: list[str]) -> tuple[RankFn, dict[str, Any]]:
    from qpr_jax.encoders.load import read_encoder
    from qpr_jax.training.teacher import cached_vectors

    encoder = read_encoder("minilm")
    return exact_search(np.asarray(cached_vectors("", encoder, questions))), {}


_SEARCHES = {
    "bm25": _lexical("bm25_search"),
    "tfidf": _lexical("tfidf_search"),
    "minilm": _minilm,
}


def page(done: Trials) -> list[str]:
    """The tables of rows, and the plots."""
    reports = {name: report for name, report in done.read("report.json").items() if name in done}
    speeds = speeds_of(done.results, reports)
    _plot_speed(done, speeds)
    write_scores(
        done,
        "python -m experiments.distillation",
        score_records(done, "query", "exact", minus=lambda row: "base" if row in ROWS else None),
    )
    lines = [
        "![quality against speed](quality_against_speed.png)",
        "",
        *_table(TITLES, done, reports, speeds),
    ]
    if "base" in done:
        titles = {name: text for name, (text, _) in ROWS.items()}
        lines += [
            "## One change at a time",
            "",
            "Of the first row, the student. The last column: the difference of MRR per query",
            "on test to it, with its 95 % interval from 2,000 resamples of clusters.",
            "",
            *_table(titles, done, reports, speeds, base="base"),
        ]
    texts = {name: text for name, (text, _) in TEXTS.items() if name in done}
    if texts:
        lines += texts_section(texts, done, reports)
    return [*lines, *_cutoffs(reports)]


def _table(
    titles: dict[str, str], done: Trials, reports: dict[str, Any], speeds: Speeds, base: str = ""
) -> list[str]:
    """Scores and speeds of the finished rows of `titles`, and their gain over `base`."""
    head = [
        "",
        "validation, pairs",
        "queries",
        "test, pairs",
        "queries",
        "agreement",
        "questions/s",
    ]
    rows = []
    for name in (name for name in titles if name in done):
        cells = [titles[name]]
        for split in HELD_OUT:
            for over in ("pair", "query"):
                hits, _, mrr = done.scores(split, over, "exact").mean(name)
                cells.append(f"{hits:.3f} / {mrr:.3f}")
        agreement = reports[name]["test"].get("agreement")
        cells.append(f"{agreement:.3f}" if agreement else "")
        cells.append(f"{speeds[name]:,.0f}" if name in speeds else "")
        if base:
            scores = done.scores("test", "query", "exact")
            gain = scores.mean(name)[2] - scores.mean(base)[2]
            interval = scores.interval(name, minus=base)[:, 2]
            cells.append("" if name == base else difference_cell(gain, *interval))
        rows.append(cells)
    return table_lines([*head, "against base"] if base else head, rows)


def speeds_of(results: pathlib.Path, reports: dict[str, Any]) -> Speeds:
    """Questions a second, from strings to vectors, where they were measured."""
    path = results / SPEEDS
    found: Speeds = read_json(path) if path.exists() else {}
    for name, report in reports.items():
        if "questions_per_second" in report:  # of BM25 and TF-IDF, into their index
            found[name] = report["questions_per_second"]
    return {name: rate for name, rate in found.items() if name in reports}


def _plot_speed(done: Trials, speeds: Speeds) -> None:
    """Plot MRR per query on test against questions a second, with the names of `TITLES`."""
    from matplotlib.figure import Figure

    scores = done.scores("test", "query", "exact")
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axis = figure.subplots()
    for name, x in speeds.items():
        y = scores.mean(name)[2]
        if name in TITLES:
            axis.plot(x, y, "o", color="C3" if name == "minilm" else "C0")
            text = TITLES[name].replace("`", "").partition(",")[0]
            axis.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=9)
        else:
            axis.plot(x, y, ".", color="0.6")
    axis.set(xscale="log", xlabel="questions a second, from strings to vectors", ylabel="MRR, test")
    axis.grid(alpha=0.3)
    axis.margins(x=0.2)
    save_figure(figure, done.results / "quality_against_speed.png")


def _cutoffs(reports: dict[str, Any]) -> list[str]:
    """Recall, precision, MAP and NDCG at cut-offs, per query on test, of the transformers."""
    lines = []
    for title, columns in _CUTOFF_TABLES.items():
        head = [re.sub("^(map|ndcg|mrr)", lambda name: name[0].upper(), c) for c in columns]
        rows = []
        for name in (name for name in _TRANSFORMERS if name in reports):
            test = reports[name]["test"]  # through an index and "exact", or exact alone
            found = test.get("exact", test)["per_query"]
            rows.append([TITLES[name], *(f"{found[column]:.3f}" for column in columns)])
        lines += [f"## {title}: test, per query", "", *table_lines(["", *head], rows)]
    return lines


STUDY = Study(
    name="distillation",
    results="distillation",
    trials=trials,
    page=page,
    flags={
        "rows": Flag((), "Only these rows.", (*UNTRAINED, *OTHERS, *ROWS, *TEXTS)),
        "seeds": Flag(1, "Trainings of each row."),
        "speed": Flag(False, "Time the encoders; train nothing."),
    },
    actions={"speed": time_encoders},
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
