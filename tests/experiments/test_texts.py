"""The texts that the packaged encoder learns from, and entries of Wiktionary's dictionaries."""

import gzip

import pytest

from experiments.open_texts import read_wordnet
from experiments.wiktionary import convert, parse_entry
from qpr_jax.data.parallel_sentences import read_translations
from qpr_jax.errors import UserError

LICENCE = "  1 This software and database is provided under this licence\n"
WORDNET = {
    "noun": (
        "00001740 09 n 02 login 0 log_in 0 000 | the act of beginning (a session); "
        '"his login failed twice today"\n'
        "00002000 05 n 01 house_cat 0 000 | any domesticated member of the genus Felis\n"
    ),
    "verb": "00003000 30 v 01 restart 0 000 01 + 02 00 | start again after a pause\n",
    "adj": "",
    "adv": "",
}


def test_wordnet_gives_definitions_examples_and_phrases(tmp_path):
    with pytest.raises(UserError, match=r"data\.noun"):
        read_wordnet(tmp_path)
    for name, text in WORDNET.items():
        (tmp_path / f"data.{name}").write_text(LICENCE + text)
    definitions, examples, phrases = read_wordnet(tmp_path)
    assert definitions == ["the act of beginning", "start again after a pause"]  # no animals
    assert examples == ["his login failed twice today"]
    assert phrases == ["log in"]


ENTRIES = (
    (":braun:brown (colour), brown (of this colour)", "braun", ["brown"]),  # once
    (":Kanal:(m) canal (a way (for ships), made), sewer (x)", "Kanal", ["canal", "sewer"]),
    (":wie:like father, like son (x), so (y)", "wie", ["like father, like son", "so"]),
    (":Hund:(m) dog, hound", "Hund", ["dog", "hound"]),  # no gloss: each comma ends one
    # The word was cut out of links and templates.
    (":Turm]]:({m}) tower (building)", "Turm", ["tower"]),
    (":zwei]] [[Wochen:fortnight (time)", "zwei Wochen", ["fortnight"]),
    (":[[langue]]s [[mort]]es:dead languages (x)", "langues mortes", ["dead languages"]),
    (":voler}},:([[volai]]) stole (x)", "voler", ["stole"]),
    (":Prä\xadfix\u200e:(n) pre\xadfix (x)", "Präfix", ["prefix"]),
    # Brackets that do not fit.
    (":Haus:(n}})) house (building)", "Haus", ["house"]),
    (":ob:if (whether)), whether (x)", "ob", ["if", "whether"]),
    # Entries of which nothing can be used.
    ("::book (paper), raven (bird)", "", []),
    (":de:abroad (x)", "", []),  # the code of the language
    (":se casser}}, se:blow (x)", "", []),
    (":''any verb'':would (x)", "", []),
    (":Ditto:Appendix:Monsters/Ditto (x), ditto (y)", "Ditto", ["ditto"]),
    (":sich:(bien) compte d) notice (x)", "sich", []),
)


def test_entries():
    for line, word, translations in ENTRIES:
        assert parse_entry(line, "de") == (word, translations)
    # The code of another language is a word.
    assert parse_entry(":en:in (x)", "de") == ("en", ["in"])
    for line in ("", "A dictionary.", "word: translation", ":word", ": word"):
        assert parse_entry(line) == ("", [])


def test_a_dictionary_is_converted(tmp_path):
    source, target = tmp_path / "wiktionary.de-en.txt.gz", tmp_path / "wiktionary.en-de.tsv.gz"
    source.write_bytes(gzip.compress(b"A preface.\n:Hund:(m) dog (animal), hound (x)\n:Tier:\n"))
    convert(source, target, "de")
    found = read_translations(f"en-de:{target}")
    assert (found.sources, found.targets) == (["dog", "hound"], ["Hund", "Hund"])
    assert found.dictionary
