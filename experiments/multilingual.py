"""Students of an English teacher that know other languages: how well, and at what cost in English.

    python -m experiments.multilingual                     all rows, then the page
    python -m experiments.multilingual --rows=NAME,NAME    some rows

Needs the extra `transformer`, the files of
`$QPR_DATA_DIR/parallel`, and those that `python -m experiments.wiktionary` makes of them.
"""

from __future__ import annotations

import pathlib
from typing import Any

from experiments.pages import Column, difference, number, score_table, section
from experiments.scores import Measured, Scores, retrieval
from experiments.study import Study, Trial, titles
from qpr_jax.files import read_json

PRESET = "multilingual_distilled"
ENGLISH = "multilingual_english"
FOLDER = "$QPR_DATA_DIR/parallel"
LANGUAGES = {"de": "German", "fr": "French", "cs": "Czech"}
TESTS = ("Tatoeba test", "Multi30k test", "NTREX")  # in the order of `data.parallel_tests`


def aligned(code: str, english: str, other: str) -> str:
    """Return the entry of two aligned files."""
    return f"en-{code}:{FOLDER}/{english}.gz+{FOLDER}/{other}.gz"


def language_changes(code: str, long_code: str, *dictionaries: str) -> dict[str, Any]:
    """Return the files of a language: captions and dictionaries to train with, and the tests."""
    tatoeba = f"tatoeba_test.{long_code}-eng"
    captions = aligned(code, "multi30k.train.en", f"multi30k.train.{code}")
    tests = (
        aligned(code, f"{tatoeba}.eng", f"{tatoeba}.{long_code}"),
        aligned(code, "multi30k.test.en", f"multi30k.test.{code}"),
        aligned(code, "ntrex.eng", f"ntrex.{long_code}"),
    )
    return {"data.parallel": (captions, *dictionaries), "data.parallel_tests": tests}


# The table of embeddings gets as many rows, about 100,000: the Quora questions have 23,653 words
# that occur twice, so n-grams get the others. Distillation takes about as many steps.
ENGLISH_CHANGES: dict[str, Any] = {
    "data.parallel": (),
    "data.parallel_tests": (),
    "text.hash_bins": 76_000,
    "teacher.epochs": 10,
}
FRENCH_WORDS = "en-fr:runs/wiktionary.en-fr.tsv.gz"  # of `python -m experiments.wiktionary`
ROWS = [
    Trial(PRESET, PRESET, {}, "student, English and German", minus=(ENGLISH,)),
    Trial(ENGLISH, PRESET, ENGLISH_CHANGES, "student, English alone"),
    Trial(
        "multilingual_french",
        PRESET,
        language_changes("fr", "fra", FRENCH_WORDS),
        "student, English and French",
        minus=(ENGLISH,),
    ),
    Trial(
        "multilingual_czech",
        PRESET,
        language_changes("cs", "ces"),
        "student, English and Czech",
        minus=(ENGLISH,),
    ),
]
# Measured at commit 6293563540; the programs are gone.
EARLIER = {"tfidf": "TF-IDF of characters", "ridge": "linear map to the teacher"}


def measure(run: pathlib.Path) -> dict[str, Measured]:
    """Read English retrieval, and the translations that the run scored itself on."""
    scores: dict[str, Any] = dict(retrieval(run)[""])
    sets = read_json(run / "report.json").get("translations", {}).get("sets", [])
    tests = iter(TESTS)
    for texts in sets:
        if texts["name"] == "validation":
            continue
        name = "held out" if texts["name"] == "test" else next(tests)
        start = f"{texts['language']} {name}"
        scores |= {f"{start}, accuracy {k}": texts[k] for k in ("to_source", "to_target")}
        if found := texts.get("retrieval"):
            scores |= {f"{start}, {k}": found[k] for k in ("hits@1", "mrr@20")}
    return {"": scores}


def page(scores: Scores, folder: pathlib.Path) -> list[str]:
    """Format a table for each language, and English retrieval."""
    about = (
        "The share of sentences whose nearest sentence of the other language is the translation,",
        "to English / from English. H@1: held-out sentences search the Quora questions and their",
        "own English sides.",
    )
    lines: list[str] = []
    for code, language in LANGUAGES.items():
        rows = {}
        for name, title in (titles(ROWS) | EARLIER).items():
            cells = [_both(scores, name, f"{code} {test}") for test in ("held out", *TESTS)]
            if any(cells):
                rows[name] = " | ".join([title, *cells])
        head = " | ".join([language, "held out", *TESTS])
        columns = [Column("held out H@1", f"{code} held out, hits@1", number)]
        lines += score_table(scores, rows, columns, head)
    columns = []
    for name in ("H@1", "MRR"):
        metric = f"test {name} per query, exact"
        columns += [Column(name, metric, number), Column("difference", metric, difference)]
    english = (
        "Held-out Quora questions (test, per query) among all, by exact search. Differences are to",
        "the student of English alone. All students have the same encoder and as many embeddings.",
    )
    table = score_table(scores, titles(ROWS), columns)
    return [*section("Translations", lines, *about), *section("English", table, *english)]


def _both(scores: Scores, row: str, metric: str) -> str:
    found = [scores.get(row, f"{metric}, accuracy {key}") for key in ("to_source", "to_target")]
    return " / ".join(number(record) for record in found if record)


STUDY = Study(
    name="multilingual",
    trials=ROWS,
    measure=measure,
    page=page,
    smoke=(ENGLISH, "multilingual_czech"),
)

if __name__ == "__main__":
    STUDY.main()
