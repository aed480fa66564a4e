"""Languages are found in the names of files and columns."""

import pytest

from qpr_jax.data.languages import (
    language_code,
    language_of_file,
    language_with_region,
    languages_of_file,
)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("de", "de"),
        ("DE", "de"),
        ("deu", "de"),
        ("ger", "de"),
        (" fra ", "fr"),
        ("fre", "fr"),
        ("ces", "cs"),
        ("zul", "zu"),
        ("aar", "aa"),
        ("cmn", "zh"),
        ("english", ""),
        ("xx", ""),
        ("", ""),
    ],
)
def test_codes(name, code):
    assert language_code(name) == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("en-US", "en"),
        ("pt_BR", "pt"),
        (" de-at ", "de"),
        ("zh-Hans-CN", "zh"),
        ("es-419", "es"),
        ("is_ok", ""),
        ("en_text", ""),
        ("xx-US", ""),
        ("en", ""),
    ],
)
def test_codes_with_regions(name, code):
    assert language_with_region(name) == code


@pytest.mark.parametrize(
    ("path", "languages"),
    [
        ("tatoeba.en-de.tsv.gz", ("en", "de")),
        ("/is/it-en/wiktionary.de-en.txt.gz", ("de", "en")),
        ("TED2020-en-de-train.tsv.gz", ("en", "de")),
        ("opus_eng_fra.csv", ("en", "fr")),
        ("Tatoeba.EN-DE.tsv.zst", ("en", "de")),
        ("my.en-de.tsv", ("en", "de")),  # `my` is Burmese
        ("my-en-de.tsv", None),  # my-en or en-de
        ("ted.en-US-de-DE.tsv.GZ", ("en", "de")),
        ("en-zh_Hans_CN.tsv", ("en", "zh")),
        ("en-DE.tsv", ("en", "de")),
        ("pt_BR-en.tsv", None),  # Portuguese or Breton
        ("en-US-en-GB.tsv", ("en", "en")),
        ("train.de-fr.tsv", None),  # without the source language
        ("en-en.tsv", ("en", "en")),
        ("en-en.de-en.tsv", ("de", "en")),
        ("pairs.tsv", None),
        ("en.de.tsv", None),  # two parts of the name
    ],
)
def test_languages_of_two_columns(path, languages):
    assert languages_of_file(path, "en") == languages


def test_another_source_language():
    assert languages_of_file("train.de-fr.tsv", "fr") == ("de", "fr")
    assert languages_of_file("train.en-de.tsv", "fr") is None


@pytest.mark.parametrize(
    ("path", "language"),
    [
        ("multi30k.train.de.gz", "de"),
        ("ntrex.eng.gz", "en"),
        ("tatoeba_test.deu-eng.deu.gz", "de"),
        ("tatoeba_test.deu-eng.eng.gz", "en"),
        ("train.de.txt", "de"),
        ("train_de.txt", "de"),
        ("de.txt.zst", "de"),
        ("train.pt_BR.txt", "pt"),
        ("train.es-419.gz", "es"),
        ("train_zh-Hans.txt", "zh"),
        ("/en/sentences.txt", ""),
    ],
)
def test_language_of_lines(path, language):
    assert language_of_file(path) == language
