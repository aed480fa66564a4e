"""Translations are read alike from every format."""

import os
import pathlib

import pytest

from qpr_jax.data.parallel import Translations, read_translations
from qpr_jax.errors import UserError
from tests.made_up_language import LANGUAGE, made_up_pairs, translate, write_tsv
from tests.translation_files import (
    PAIRS,
    SOURCES,
    TARGETS,
    assert_pairs,
    compress,
    read,
    write_cells,
    write_lines,
    write_records,
)


@pytest.mark.parametrize("header", [(), ("en", "de"), ("eng", "deu"), ("source", "target")])
@pytest.mark.parametrize("name", ["p.en-de.tsv", "p.en-de.csv", "p.en-de.txt"])
def test_two_columns(tmp_path, name, header):
    rows = [header, *PAIRS] if header else PAIRS
    path = write_cells(tmp_path / name, rows, "," if name.endswith("csv") else "\t")
    found = read(path)
    assert_pairs(found)
    assert found == Translations(str(path), "de", SOURCES, TARGETS, dictionary=False, skipped=0)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet", "arrow"])
@pytest.mark.parametrize("names", [("en", "de"), ("source", "target")])
def test_records(tmp_path, ending, names):
    path = write_records(tmp_path / f"p.en-de.{ending}", names, PAIRS)
    assert_pairs(read(path))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["p.en-de.tsv", "p.jsonl", "p.parquet", "p.en-de.txt"])
def test_compressed(tmp_path, name, ending):
    if name.endswith(("tsv", "txt")):
        path = write_cells(tmp_path / name, PAIRS, "\t")
    else:
        path = write_records(tmp_path / name, ("en", "de"), PAIRS)
    assert_pairs(read(compress(path, ending)))


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_nested_translation(tmp_path, ending):
    rows = [(i, {"en": a, "de": b}) for i, (a, b) in enumerate(PAIRS)]
    assert_pairs(read(write_records(tmp_path / f"p.{ending}", ("id", "translation"), rows)))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_header_names_two_of_many_columns(tmp_path, ending):
    names = ("id", "de", "score", "en")
    rows = [(str(i), b, "0.5", a) for i, (a, b) in enumerate(PAIRS)]
    path = tmp_path / f"p.{ending}"
    if ending in ("csv", "tsv"):
        write_cells(path, [names, *rows], "," if ending == "csv" else "\t")
    else:
        write_records(path, names, rows)
    assert_pairs(read(path))
    assert_pairs(read(path, "de-en:"))
    found = read(path, "de-en:", source_language="de")
    assert (found.sources, found.targets, found.language) == (TARGETS, SOURCES, "en")


def test_prefix_chooses_among_languages(tmp_path):
    rows = [("en", "de", "fr"), *((a, b, translate(a)) for a, b in PAIRS)]
    path = write_cells(tmp_path / "p.csv", rows, ",")
    assert_pairs(read(path, "en-de:"))
    assert_pairs(read(path, "eng-fra:"), [(a, translate(a)) for a in SOURCES], "fr")
    with pytest.raises(UserError, match=r"expected columns of en and one other language, got .*fr"):
        read(path)


def test_order_of_columns(tmp_path):
    swapped = [(b, a) for a, b in PAIRS]
    assert_pairs(read(write_cells(tmp_path / "p.de-en.tsv", swapped, "\t")))
    assert_pairs(read(write_cells(tmp_path / "p.tsv", swapped, "\t"), "de-en:"))
    assert_pairs(read(write_cells(tmp_path / "q.en-de.tsv", swapped, "\t"), "DE-EN:"))
    header = write_cells(tmp_path / "r.en-de.tsv", [("de", "en"), *swapped], "\t")
    assert_pairs(read(header))  # what the file says counts
    assert_pairs(read(header, "en-de:"))


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
@pytest.mark.parametrize(
    "names",
    [
        ("id", "en-US", "de-DE"),
        ("id", "en-us", "de"),
        ("is_ok", "en", "de_AT"),
        ("de-DE", "en", "de"),  # a code alone goes before one with a region
        ("id", "eng-Latn-GB", "de-276"),
    ],
)
def test_languages_with_regions(tmp_path, names, ending):
    rows = [("-", a, b) for a, b in PAIRS]
    path = tmp_path / f"p.{ending}"
    if ending == "tsv":
        write_cells(path, [names, *rows], "\t")
    else:
        write_records(path, names, rows)
    assert_pairs(read(path))
    assert_pairs(read(path, "en-de:"))


def test_prefix_and_header(tmp_path):
    made_up = [("xx", "en"), *((b, a) for a, b in PAIRS)]
    assert_pairs(read(write_cells(tmp_path / "p.tsv", made_up, "\t"), "en-xx:"), language="xx")
    swapped = [("source", "target"), *((b, a) for a, b in PAIRS)]
    assert_pairs(read(write_cells(tmp_path / "q.tsv", swapped, "\t"), "de-en:"))
    header = write_cells(tmp_path / "r.tsv", [("en", "de"), *PAIRS], "\t")
    with pytest.raises(UserError, match=r"expected columns of en and fr, got .*de"):
        read(header, "en-fr:")


def test_lines_of_two_files(tmp_path):
    write_lines(tmp_path / "p.en.txt", SOURCES)
    write_lines(tmp_path / "p.de", TARGETS, "\r\n")
    spec = f"{tmp_path}/p.en.txt+{tmp_path}/p.de"
    assert_pairs(read(spec))
    assert read(spec).name == spec
    assert_pairs(read(f"{tmp_path}/p.de + {tmp_path}/p.en.txt"))
    assert_pairs(read(spec, "en-xx:"), language="xx")
    compress(tmp_path / "p.de", ".gz")
    assert_pairs(read(f"{tmp_path}/p.en.txt+{tmp_path}/p.de.gz"))


def test_lines_blank_in_both_files_are_no_rows(tmp_path):
    write_lines(tmp_path / "p.en", [SOURCES[0], "", *SOURCES[1:], " "])
    write_lines(tmp_path / "p.de", [TARGETS[0], " ", *TARGETS[1:], ""])
    found = read(f"{tmp_path}/p.en+{tmp_path}/p.de")
    assert_pairs(found)
    assert found.skipped == 0


def test_plus_in_a_name(tmp_path):
    assert_pairs(read(write_cells(tmp_path / "a+b.en-de.tsv", PAIRS, "\t")))
    write_lines(tmp_path / "a+b.en", SOURCES)
    write_lines(tmp_path / "c+d.de", TARGETS)
    assert_pairs(read(f"{tmp_path}/a+b.en+{tmp_path}/c+d.de"))


def test_paths_are_expanded(tmp_path, monkeypatch):
    write_lines(tmp_path / "p.en", SOURCES)
    write_lines(tmp_path / "p.de", TARGETS)
    monkeypatch.setenv("PARALLEL_TEXTS", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert_pairs(read("$PARALLEL_TEXTS/p.en+${PARALLEL_TEXTS}/p.de"))
    assert_pairs(read("en-de:~/p.en+~/p.de"))
    monkeypatch.delenv("PARALLEL_TEXTS")
    with pytest.raises(
        UserError, match=r"expected \$PARALLEL_TEXTS to be set .*; set the variable"
    ):
        read("$PARALLEL_TEXTS/p.en+~/p.de")


def test_byte_order_mark_and_blanks(tmp_path):
    path = tmp_path / "p.en-de.tsv"
    path.write_bytes(b"\xef\xbb\xbf How? \tWie?\xc2\xa0\r\n\r\nWho is it?\tWer ist es?\r\n")
    assert_pairs(read(path), [("How?", "Wie?"), ("Who is it?", "Wer ist es?")])


def test_quoted_cells(tmp_path):
    path = tmp_path / "p.en-de.tsv"
    path.write_text('"Say ""ah"", now."\tSag „Ah!“\n"No!" he said.\tEr sagte: "Nein"\n')
    expected = [('Say "ah", now.', "Sag „Ah!“"), ('"No!" he said.', 'Er sagte: "Nein"')]
    assert_pairs(read(path), expected)


def test_surrogates_of_json(tmp_path):
    path = write_lines(tmp_path / "p.jsonl", [r'{"en": "a \ud83d b", "de": "ein B"}'])
    assert_pairs(read(path), [("a ? b", "ein B")])


def test_made_up_language(tmp_path):
    pairs = made_up_pairs(50)
    assert_pairs(read_translations(write_tsv(tmp_path / "p.tsv", pairs)), pairs, LANGUAGE)
    assert len({target for _, target in pairs}) == 50
    assert pairs[:20] == made_up_pairs(50)[:20]
    assert translate("My car, you: Zoo?") == "Zipnb, iöe: Jöö?"


@pytest.mark.parametrize(
    ("rows", "is_dictionary"),
    [
        ([("dog", "Hund"), ("to go", "gehen"), ("cat", "Katze")], True),
        ([("street lamp", "Laterne"), ("to go", "gehen"), ("cat", "Katze")], False),
        ([("How are you?", "你好吗"), ("Who is it?", "是谁")], False),  # no blanks
        (PAIRS, False),
    ],
)
def test_words_with_translations_are_a_dictionary(tmp_path, rows, is_dictionary):
    found = read(write_cells(tmp_path / "p.tsv", rows, "\t"), "en-de:")
    assert found.dictionary is is_dictionary
    assert_pairs(found, rows)


WIKTIONARY = """A dictionary that translates German to English: see https://example.org
All content is free.

::book (paper), raven (bird)
:Hund:(m) dog (animal), hound (dog)
:Turm]]:({m}) tower (building)
:Tier:({n})  (animal)
:gehen:walk (move)
"""


def test_dictionary_of_wiktionary(tmp_path):
    pairs = [("dog", "Hund"), ("hound", "Hund"), ("tower", "Turm"), ("walk", "gehen")]
    path = tmp_path / "w.de-en.txt"
    path.write_text(WIKTIONARY)
    found = read(compress(path, ".gz"))
    assert_pairs(found, pairs)
    assert found.dictionary
    assert found.skipped == 2  # without a word, or a translation
    other = path.rename(tmp_path / "words")
    assert_pairs(read(other, "de-en:"), pairs)
    assert_pairs(read(other, "fr-en:"), pairs, "fr")
    swapped = read(other, "en-de:")
    assert_pairs(swapped, [(b, a) for a, b in pairs])


def real(spec):
    folder = os.environ.get("QPR_DATA_DIR", "")
    if not folder or not pathlib.Path(folder, "parallel").is_dir():
        pytest.skip("needs $QPR_DATA_DIR/parallel")
    return "+".join(f"$QPR_DATA_DIR/parallel/{name}" for name in spec.split("+"))


@pytest.mark.parametrize(
    ("spec", "language", "count"),
    [
        ("tatoeba.en-de.tsv.gz", "de", 50001),
        ("multi30k.val.en.gz+multi30k.val.cs.gz", "cs", 1014),
        ("ntrex.spa.gz+ntrex.eng.gz", "es", 1997),
        ("tatoeba_test.deu-eng.deu.gz+tatoeba_test.deu-eng.eng.gz", "de", 1000),
    ],
)
def test_real_sentences(spec, language, count):
    found = read_translations(real(spec))
    assert (found.language, found.dictionary, found.skipped) == (language, False, 0)
    assert len(found.sources) == len(found.targets) == count
    for texts in (found.sources, found.targets):
        assert all(text == text.strip() != "" and "\t" not in text for text in texts)
    english = sum(" the " in text for text in found.sources)
    assert english > 10 * sum(" the " in text for text in found.targets)


@pytest.mark.parametrize(
    ("language", "least", "known"),
    [
        (
            "de",
            55000,
            {("request", "Bitte"), ("fortnight", "zwei Wochen"), ("9/11", "11. September")},
        ),
        ("fr", 50000, {("last year", "l'année dernière"), ("pollution", "pollution")}),
    ],
)
def test_real_dictionaries(language, least, known):
    found = read_translations(real(f"wiktionary.{language}-en.txt.gz"))
    pairs = {*zip(found.sources, found.targets, strict=True)}
    assert found.language == language
    assert found.dictionary
    assert known <= pairs
    assert len(pairs) > least
    assert found.skipped < 500
    assert not any({*"[]{}<>|"} & {*"".join(pair)} for pair in pairs)
    assert not any(text.startswith((" ", ",", ";", "(")) or not text for p in pairs for text in p)
