"""Entries of Wiktionary's dictionaries, with what their scripts left of the markup."""

import gzip
import itertools
import os
import pathlib

import pytest

from experiments.wiktionary import convert, make_missing, parse_entry
from qpr_jax.data.translations import read_translations

ENTRIES = (
    (":Hund:(m) dog (animal)", "Hund", ["dog"]),
    (":gehen:walk (move on foot), go (to move)", "gehen", ["walk", "go"]),
    (":braun:brown (colour), brown (of this colour)", "braun", ["brown"]),  # once
    (":Kanal:(m) canal (a way (for ships), made), sewer (x)", "Kanal", ["canal", "sewer"]),
    (
        ":Vater und Sohn:(m) like father, like son (x), so (y)",
        "Vater und Sohn",
        ["like father, like son", "so"],
    ),
    (":Hund:(m) dog, hound", "Hund", ["dog", "hound"]),  # no gloss: each comma ends one
    (":grau:gray (the [[ash]] of an ''ember''), grey ()", "grau", ["gray", "grey"]),
    (":und/oder:and/or (either)", "und/oder", ["and/or"]),
    (":11. September:(m) 9/11 (the attack)", "11. September", ["9/11"]),
    (":in der Nähe, nah:near (close)", "in der Nähe, nah", ["near"]),
    # The word was cut out of links and templates.
    (":Turm]]:({m}) tower (building)", "Turm", ["tower"]),
    (":zwei]] [[Wochen:fortnight (time)", "zwei Wochen", ["fortnight"]),
    (":[[langue]]s [[mort]]es:dead languages (x)", "langues mortes", ["dead languages"]),
    (":[[zu#German|zu]] Fuß:on foot (x)", "zu Fuß", ["on foot"]),
    (":um]] [[zu#German:to (purpose)", "um zu", ["to"]),
    (":voler}},:([[volai]]) stole (x)", "voler", ["stole"]),
    (":Wer]] ist da?:who is there (x)", "Wer ist da?", ["who is there"]),
    (":Bär]] {{m}}:bear (x)", "Bär", ["bear"]),
    (":ja]]<!--check-->:yes (x)", "ja", ["yes"]),
    (":Prä\xadfix\u200e:(n) pre\xadfix (x)", "Präfix", ["prefix"]),
    (":qui&nbsp;?:who (x)", "qui ?", ["who"]),
    # Brackets that do not fit.
    (":Haus:(n}})) house (building)", "Haus", ["house"]),
    (":ob:if (whether)), whether (x)", "ob", ["if", "whether"]),
    (":Chef:(m) manager (job (female: see [[x), boss (y)", "Chef", ["manager"]),
    # Entries of which nothing can be used.
    ("::book (paper), raven (bird)", "", []),
    (":de:abroad (x)", "", []),  # the code of the language
    (":m}}:third (x)", "", []),  # a gender
    (":2):forgive (x)", "", []),
    (":se casser}}, se:blow (x)", "", []),
    (":''any verb'':would (x)", "", []),
    (":früher + infinitive:used to (x)", "", []),
    (":rot]] / [[rötlich:red (x)", "", []),
    (":???:what (x)", "", []),
    (":Tier:({n})  (animal)", "Tier", []),
    (":Tier:", "Tier", []),
    (":Ditto:Appendix:Monsters/Ditto (x), ditto (y)", "Ditto", ["ditto"]),
    (":mit:([[etwas]]) [[prunke) flaunt (x), with (y)", "mit", ["with"]),
    (":sich:(bien) compte d) notice (x)", "sich", []),
)


def test_entries():
    for line, word, translations in ENTRIES:
        assert parse_entry(line, "de") == (word, translations)
    # The code of another language is a word.
    assert parse_entry(":en:in (x)", "de") == ("en", ["in"])
    for line in ("", "A dictionary.", "word: translation", ":word", ": word"):
        assert parse_entry(line) == ("", [])


def write_dictionary(path):
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"A preface.\n:Hund:(m) dog (animal), hound (x)\n:Tier:\n"))


def test_a_dictionary_is_converted_once(tmp_path, monkeypatch):
    source = tmp_path / "parallel" / "wiktionary.de-en.txt.gz"
    write_dictionary(source)
    monkeypatch.setenv("QPR_DATA_DIR", str(tmp_path))
    target = tmp_path / "runs" / "wiktionary.en-de.tsv.gz"
    spec = f"en-de:{target}"
    make_missing(["en-de:other.tsv", spec])
    found = read_translations(spec)
    assert (found.sources, found.targets) == (["dog", "hound"], ["Hund", "Hund"])
    assert found.dictionary
    data = target.read_bytes()
    source.unlink()
    make_missing([spec])
    assert target.read_bytes() == data


def test_a_part_of_a_real_dictionary(tmp_path):
    source = pathlib.Path(os.environ.get("QPR_DATA_DIR", ""), "parallel/wiktionary.de-en.txt.gz")
    if not source.is_file():
        pytest.skip("needs $QPR_DATA_DIR/parallel")
    with gzip.open(source, "rb") as file:
        part = b"".join(itertools.islice(file, 4000))
    (tmp_path / "part.gz").write_bytes(gzip.compress(part))
    convert(tmp_path / "part.gz", tmp_path / "w.tsv.gz", "de")
    found = read_translations(f"en-de:{tmp_path / 'w.tsv.gz'}")
    assert len(found.sources) == 5064
    assert found.dictionary
