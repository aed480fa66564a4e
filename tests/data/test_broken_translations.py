"""A broken file of translations is an error of one line, with its line and the remedy."""

import gzip
import os

import pytest

from qpr_jax.errors import UserError
from tests.translation_files import (
    PAIRS,
    SOURCES,
    assert_pairs,
    read,
    write_cells,
    write_lines,
)

BROKEN = {
    "no file": ("p.en-de.tsv", None, "expected a file of translations, found none at"),
    "empty": ("p.en-de.tsv", "", "got an empty file"),
    "empty, of no languages": ("p.csv", "\n", "got an empty file"),
    "empty text": ("p.en-de.txt", " \n\n", "got an empty file"),
    "empty records": ("p.jsonl", "", "got an empty file"),
    "a header alone": ("p.tsv", "en\tde\n", "expected translations, got no row"),
    "unusable entries": ("w.de-en.txt", ":Hund:\n", "got no good row and 1 bad ones"),
    "one column": ("p.en-de.tsv", "How?\n", "expected two columns, .* got 1"),
    "one column of text": ("p.en-de.txt", "How?\n", "expected two columns .*, got neither"),
    "three columns": (
        "p.en-de.tsv",
        "1\tHow?\tWie?\n",
        "expected two columns, .* got 3.*; add a header",
    ),
    "an empty side": ("p.en-de.tsv", "How?\tWie?\nWho?\t \n", r"line 2: .* column 2, got an empty"),
    "an empty cell": ("p.tsv", "id\tde\ten\n1\tWer?\t\n", "line 2: .* in `en`, got an empty"),
    "another width": ("p.en-de.csv", "a,b\na,b,c\n", "line 2: expected 2 columns, .* got 3"),
    "ends of old": ("p.en-de.tsv", "a b\tc d\re f\tg h\r", "line 1: .* returns alone"),
    "ends of old in CSV": ("p.en-de.csv", "a b,c d\re f,g h\r", "line 1: .* returns alone"),
    "ends of old in text": ("p.en-de.txt", "a b\tc d\re f\tg h", "line 1: .* returns alone"),
    "a language twice in its name": ("two.en-en.tsv", "How?\tWie?\n", "got en twice; name the"),
    "no languages": (
        "p.tsv",
        "How?\tWie?\n",
        r"expected the name .*, or a header .*, got neither: the first row is \['How\?', 'Wie\?'\]",
    ),
    "names of languages": ("p.tsv", "English\tGerman\nHow?\tWie?\n", "row is .'English', 'German'"),
    "no languages of columns": (
        "p.tsv",
        "source\ttarget\nHow?\tWie?\n",
        "expected the name of the file to say the two languages, got none; name the",
    ),
    "an unknown code in a name": ("p.en-xq.tsv", "How?\tWie?\n", "got en and 'xq', not known"),
    "an unknown code": ("p.tsv", "xq\ten\nWie?\tHow?\n", "got en and 'xq', not known; name the"),
    "two regions": (
        "p.tsv",
        "pt-BR\ten\tpt-PT\na\tb\tc\n",
        "column of pt, got `pt-BR` and `pt-PT`",
    ),
    "one language of two regions": (
        "p.tsv",
        "en-US\ten-GB\na\tb\n",
        "of two languages, got en twice",
    ),
    "a language twice": ("p.tsv", "en\ten\nHow?\tWie?\n", "got en twice"),
    "other languages": ("p.tsv", "de\tfr\nWie?\tQui?\n", "another language, got de and fr"),
    "no other language": (
        "p.jsonl",
        '{"en": "How?", "text": "Wie?"}',
        "expected columns of en and",
    ),
    "a missing key": ("p.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"}', "line 2: .* key `de`"),
    "no text": ("p.jsonl", '{"en": "a", "de": 7}', "line 1: expected a text in `de`, got 7"),
    "null": ("p.jsonl", '{"en": null, "de": "b"}', "line 1: expected a text in `en`, got an empty"),
    "no JSON": ("p.en-de.jsonl", '{"en": "a", "de": "b"}\n{"e', "line 2: expected a JSON object"),
    "no entry": ("p.de-en.txt", ":Hund:dog\nHund dog\n", "line 2: expected :word:translation"),
    "copies": ("p.en-de.tsv", "Who is it?\tWho is it?\n" * 20, "same text on both sides in 20 of"),
}


@pytest.mark.parametrize(("name", "content", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_files(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


LATIN = "Straße".encode("latin-1")
ENCODINGS = {
    "p.en-de.tsv": (b"street\tGasse\nroad\t" + LATIN + b"\n", 2),
    "q.en-de.tsv": (b"road\t" + LATIN + b"\nstreet\tGasse\n", 1),
    "p.en-de.csv": (b"street,Gasse\nroad," + LATIN + b"\n", 2),
    "p.de-en.txt": (b":Gasse:street (x)\n:" + LATIN + b":road (x)\n", 2),
    "p.jsonl": (b'{"en": "street", "de": "Gasse"}\n{"de": "' + LATIN + b'"}', 2),
    "utf16.de-en.txt": (":Gasse:street\n:Hund:dog\n".encode("utf-16"), 1),
    "utf16be.de-en.txt": (":Gasse:street\n:Hund:dog\n".encode("utf-16-be"), 1),
    "utf16le.de-en.txt": (":Gasse:street\n:Hund:dog\n".encode("utf-16-le"), 1),
    "utf16tab.en-de.txt": ("road\tGasse\n".encode("utf-16-le"), 1),
    "p.en-de.txt": (LATIN + b"\nstreet\tGasse\n", 1),
    "utf16.en-de.tsv": ("road\tGasse\n".encode("utf-16"), 1),
    "utf16le.en-de.tsv": ("road\tGasse\n".encode("utf-16-le"), 1),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_other_encodings(tmp_path, name):
    content, line = ENCODINGS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"line {line}: .*expected UTF-8; save the file as UTF-8"):
        read(tmp_path / name)
    if name.startswith("utf16"):
        with pytest.raises(UserError, match=r"got no good row and . bad ones|line 1: expected UTF"):
            read(tmp_path / name, skip_bad_rows=True)
    else:
        found = read(tmp_path / name, skip_bad_rows=True)
        assert_pairs(found, [("street", "Gasse")])
        assert found.skipped == 1


def test_bad_rows_are_counted(tmp_path):
    path = tmp_path / "p.en-de.tsv"
    path.write_text("How?\tWie?\nWho?\t\n\tWer?\na\tb\tc\nWhy not?\tWarum nicht?\n")
    found = read(path, skip_bad_rows=True)
    assert_pairs(found, [("How?", "Wie?"), ("Why not?", "Warum nicht?")])
    assert found.skipped == 3
    with pytest.raises(UserError, match=r"`data.skip_bad_rows=True`"):
        read(path)


def test_bad_lines_of_two_files(tmp_path):
    write_lines(tmp_path / "p.en", ["How?", "Who?", "", "Why?"])
    (tmp_path / "p.de").write_bytes(b"Wie?\n" + LATIN + b"\nWas?\nWarum?\n")
    spec = f"{tmp_path}/p.en+{tmp_path}/p.de"
    with pytest.raises(UserError, match=r"line 2: p\.de: expected UTF-8"):
        read(spec)
    found = read(spec, skip_bad_rows=True)
    assert_pairs(found, [("How?", "Wie?"), ("Why?", "Warum?")])
    assert found.skipped == 2
    write_lines(tmp_path / "p.de", ["Wie?", "Wer?", "Was?", "Warum?"])
    with pytest.raises(UserError, match=r"line 3: expected a text in p\.en, got an empty one"):
        read(spec)


@pytest.mark.parametrize("skip_bad_rows", [False, True])
def test_unequal_numbers_of_lines(tmp_path, skip_bad_rows):
    write_lines(tmp_path / "p.en", ["a", "b", "c", "d", "e"])
    write_lines(tmp_path / "p.de", ["a", "b", "c"])
    with pytest.raises(UserError, match=r"as many lines in .*p\.en as in .*p\.de, got 5 and 3"):
        read(f"{tmp_path}/p.en+{tmp_path}/p.de", skip_bad_rows=skip_bad_rows)
    with pytest.raises(UserError, match=r"got 3 and 5"):
        read(f"{tmp_path}/p.de+{tmp_path}/p.en", skip_bad_rows=skip_bad_rows)


@pytest.mark.parametrize("broken", [0, 1])
def test_the_broken_one_of_two_gzip_files_is_named(tmp_path, broken):
    paths = [tmp_path / "p.en", tmp_path / "p.de"]
    for path in paths:
        write_lines(path, ["a line of text"] * 1000)
    half = gzip.compress(os.urandom(1 << 16))[: 1 << 15]
    paths[broken].write_bytes(half)
    with pytest.raises(UserError, match=rf"^{paths[broken]}: not whole gzip .*; fetch it again"):
        read(f"{paths[0]}+{paths[1]}", skip_bad_rows=True)


def test_wrong_languages(tmp_path):
    path = write_cells(tmp_path / "p.tsv", PAIRS, "\t")
    for prefix, message in {
        "en-en:": "expected two languages, got en twice",
        "eng-en:": "expected two languages, got en twice",
        "de-fr:": "expected en and another language, got de and fr",
    }.items():
        with pytest.raises(UserError, match=message):
            read(path, prefix)
    with pytest.raises(UserError, match="expected de and another language, got en and fr"):
        read(path, "en-fr:", source_language="de")
    with pytest.raises(UserError, match=r"expected two files, one a language, got .*p\.tsv twice"):
        read(f"en-de:{path}+{path}")
    write_lines(tmp_path / "a.en", SOURCES)
    write_lines(tmp_path / "b.en", SOURCES)
    with pytest.raises(UserError, match="expected two languages, got en twice"):
        read(f"{tmp_path}/a.en+{tmp_path}/b.en")
    with pytest.raises(UserError, match="say the two languages, got en and none"):
        read(f"{tmp_path}/a.en+{path}")


def test_one_of_two_files_is_missing(tmp_path):
    path = write_lines(tmp_path / "a.en", SOURCES)
    with pytest.raises(UserError, match=r"found none at .*/a\.de; name a file, or two as"):
        read(f"{path}+{tmp_path}/a.de")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "expected a file of translations, got an empty path; name a file"),
        (" ", "got an empty path"),
        ("en-de:", "got an empty path"),
        ("a+", r"^a\+: expected a path before and after \+, got an empty one; name two files"),
        ("en-de:+a", "got an empty one"),
        ("+", "got an empty one"),
    ],
)
def test_empty_paths(spec, message):
    with pytest.raises(UserError, match=message):
        read(spec)


@pytest.mark.parametrize("prefix", ["english-german", "en_de", "en-pt-BR", "german"])
def test_what_is_no_prefix_before_a_colon_is_said(tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    message = f"expected two codes of languages before the colon, got '{prefix}'; write .* en-de:"
    with pytest.raises(UserError, match=message):
        read("p.tsv", f"{prefix}:")
    rows = [("en", "de"), *PAIRS]
    assert_pairs(read(write_cells(tmp_path / f"{prefix}:p.tsv", rows, "\t").name))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError, match=rf"^{tmp_path}: expected a file, got a folder; name a"):
        read(tmp_path)


def test_standard_input_is_refused():
    with pytest.raises(UserError, match="expected a file of translations, got standard input"):
        read("en-de:-")
