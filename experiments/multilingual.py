"""Students of an English teacher that know other languages: how well, and at what cost in English.

    python -m experiments.multilingual                     all rows, then the page
    python -m experiments.multilingual --rows=NAME,NAME    some rows

The encoders stay in the work directory. Needs the extra `transformer` and the files of
`$QPR_DATA_DIR/parallel`.
"""

from __future__ import annotations

import gzip
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.pages import Column, difference, number, score_table
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Options, Study, Trial
from qpr_jax.evaluation.translation import score_translations
from qpr_jax.files import read_json, write_json
from qpr_jax.index.run import run_encoder

PRESET = "multilingual_distilled"
ENGLISH = "multilingual_english"
FOLDER = "$QPR_DATA_DIR/parallel"
TEST_SCORES = "translations.json"
# Smaller test sets say nothing; `--smoke` scores the first sentences alone.
_SMALL = 100


class Language(NamedTuple):
    """A language: its name, its code of three letters, and what trains a student."""

    name: str
    long_code: str
    parallel: tuple[str, ...]


def _aligned(code: str, stem: str) -> str:
    return f"en-{code}:{FOLDER}/{stem}.en.gz+{FOLDER}/{stem}.{code}.gz"


LANGUAGES = {
    "de": Language("German", "deu", ()),  # as in the preset
    "fr": Language("French", "fra", (_aligned("fr", "multi30k.train"),)),
    "cs": Language("Czech", "ces", (_aligned("cs", "multi30k.train"),)),
}
TESTS = ("Tatoeba test", "Multi30k test", "NTREX")

# The table of embeddings gets as many rows, about 100,000: the Quora questions have 23,653 words
# that occur twice, so n-grams get the others. Imitation takes about as many steps.
ENGLISH_CHANGES: dict[str, Any] = {
    "data.parallel": (),
    "data.parallel_tests": (),
    "data.glossed": 0,
    "batch.translations": 0.0,
    "text.hash_bins": 76_000,
    "teacher.epochs": 10,
}
# Row -> what the page calls it, the languages that it is scored on.
ROWS = {
    PRESET: ("student, English and German", ("de",)),
    ENGLISH: ("student, English alone", tuple(LANGUAGES)),
    "multilingual_french": ("student, English and French", ("fr",)),
    "multilingual_czech": ("student, English and Czech", ("cs",)),
}
# Measured at commit 6293563540; the programs are gone.
EARLIER = {"tfidf": "TF-IDF of characters", "ridge": "linear map to the teacher"}


def language_tests(code: str) -> dict[str, tuple[str, str]]:
    """The test files of a language: the English side and the other one."""
    long = LANGUAGES[code].long_code
    tatoeba = f"tatoeba_test.{long}-eng"
    files = (
        (f"{tatoeba}.eng", f"{tatoeba}.{long}"),
        ("multi30k.test.en", f"multi30k.test.{code}"),
        ("ntrex.eng", f"ntrex.{long}"),
    )
    return dict(zip(TESTS, files, strict=True))


def row_changes(name: str) -> dict[str, Any]:
    """The changes of a row to the preset."""
    codes = ROWS[name][1]
    if name == ENGLISH:
        return ENGLISH_CHANGES
    if name == PRESET:
        return {}
    code = codes[0]
    tests = (
        f"en-{code}:{FOLDER}/{english}.gz+{FOLDER}/{other}.gz"
        for english, other in language_tests(code).values()
    )
    return {"data.parallel": LANGUAGES[code].parallel, "data.parallel_tests": tuple(tests)}


def trials(options: Options) -> list[Trial]:
    """The students; each is scored on the test files of its languages."""

    def make(codes: Sequence[str], run: pathlib.Path) -> None:
        write_json(run / TEST_SCORES, score_tests(run, codes, _SMALL if options.smoke else 0))

    quick: dict[str, Any] = {"teacher.epochs": 1} if options.smoke else {}
    return [
        Trial(
            name,
            PRESET,
            row_changes(name) | quick,
            make=lambda run, codes=codes: make(codes, run),  # type: ignore[misc]
            keep=True,
        )
        for name, (_, codes) in ROWS.items()
    ]


def score_tests(run: pathlib.Path, codes: Sequence[str], most: int = 0) -> dict[str, float]:
    """Score the encoder of a run on the test files of languages.

    most: sentences of a file; 0: all.

    Returns:
      How often the nearest sentence of the other language is the translation, by metric.
    """
    encoder = run_encoder(run)
    found = {}
    for code in codes:
        for test, files in language_tests(code).items():
            sources, targets = (read_lines(name)[: most or None] for name in files)
            vectors = encoder.encode(sources), encoder.encode(targets)
            scores = score_translations(*vectors, None, sources, targets)
            for key in ("to_source", "to_target"):
                found[f"{code} {test}, accuracy {key}"] = scores[key]
    return found


def read_lines(name: str) -> list[str]:
    """The lines of a file of `FOLDER`, without `.gz`."""
    path = pathlib.Path(os.path.expandvars(FOLDER)) / f"{name}.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def measure(run: pathlib.Path) -> dict[str, Measured]:
    """English retrieval on test, the test files, and held-out sentences of the run."""
    scores: dict[str, Any] = dict(
        retrieval(run, searches={"exact": "exact"}, splits=("test",), names=("H@1", "MRR"))
    )
    scores |= read_json(run / TEST_SCORES)
    for texts in read_json(run / "report.json").get("translations", {}).get("sets", []):
        if texts["name"] == "test":
            start = f"{texts['language']} held out"
            scores |= {f"{start}, accuracy {k}": texts[k] for k in ("to_source", "to_target")}
            scores |= {f"{start}, {k}": texts["retrieval"][k] for k in ("hits@1", "mrr@20")}
    return {"": scores}


def compare(row: str) -> Sequence[str]:
    """The student of English alone."""
    return [ENGLISH] if row in ROWS and row != ENGLISH else []


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """A table for each language, and English retrieval."""
    titles = {name: title for name, (title, _) in ROWS.items()} | EARLIER
    lines = [
        "## Translations",
        "",
        "The share of sentences whose nearest sentence of the other language is the translation,",
        "to English / from English. H@1: held-out sentences search the Quora questions and their",
        "own English sides.",
        "",
    ]
    for code, language in LANGUAGES.items():
        metrics = [f"{code} {name}" for name in ("held out", *TESTS)]
        rows = {}
        for name, title in titles.items():
            cells = [_both(scores, name, metric) for metric in metrics]
            if any(cells):
                rows[name] = " | ".join([title, *cells])
        head = " | ".join([language.name, "held out", *TESTS])
        columns = [Column("held out H@1", f"{code} held out, hits@1", number)]
        lines += score_table(scores, rows, columns, head)
    columns = []
    for name in ("H@1", "MRR"):
        metric = f"test {name} per query, exact"
        columns += [Column(name, metric, number), Column("difference", metric, difference)]
    return [
        *lines,
        "## English",
        "",
        "Held-out Quora questions (test, per query) among all, by exact search. Differences are to",
        "the student of English alone. All students have the same encoder and as many embeddings.",
        "",
        *score_table(scores, {name: title for name, (title, _) in ROWS.items()}, columns),
    ]


def _both(scores: Scores, row: str, metric: str) -> str:
    found = [scores.get(row, f"{metric}, accuracy {key}") for key in ("to_source", "to_target")]
    return " / ".join(number(record) for record in found if record)


STUDY = Study(
    name="multilingual",
    results="multilingual",
    trials=trials,
    measure=measure,
    compare=compare,
    page=page,
    smoke=(ENGLISH, "multilingual_czech"),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
