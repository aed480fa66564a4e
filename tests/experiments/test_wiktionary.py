"""Entries of Wiktionary's dictionaries."""

import gzip

from experiments.wiktionary import convert, parse_entry
from qpr_jax.data.parallel_sentences import read_translations

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
