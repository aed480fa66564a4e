"""Translations are read alike from every format; lexicons and questions are made of them."""

import itertools

import numpy as np
import pytest

from qpr_jax.data.generated_questions import recombine_questions
from qpr_jax.data.parallel_sentences import Translations, file_names, find_files, read_translations
from qpr_jax.errors import UserError
from qpr_jax.training.translations import Lexicon, learn_lexicon, translate_words
from tests.languages import made_up_pairs
from tests.refused import check_refused
from tests.tables import write_table

PAIRS = [
    ("How are you?", "Wie geht es dir?"),
    ("He said: “so, so”; then he left.", "Er sagte: „so, so“; dann ging er."),
    ('Read "this" book.', 'Lies „dieses" Buch.'),
    ("A street lamp is on.", "Eine Straßenlaterne ist an."),
]
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))


def write_lines(path, texts):
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8", newline="")
    return path


def read(path, prefix="en-de:", **how):
    return read_translations(f"{prefix}{path}", **how)


def assert_pairs(found, pairs=PAIRS):
    assert [*zip(found.sources, found.targets, strict=True)] == pairs
    assert (found.source_language, found.language) == ("en", "de")


NAMED = ("source", "target")
ODD = ("id", "DE", "score", "En")


TABLES = [
    ("p.tsv", ()),
    ("p.csv", ()),
    ("p.tsv", ("en", "de")),
    ("p.csv", NAMED),
    ("p.jsonl", ODD),
    ("p.json", NAMED),
]


def test_every_format_gives_the_same_pairs(tmp_path):
    for name, names in TABLES:
        rows = [(str(i), b, "0.5", a) if names == ODD else (a, b) for i, (a, b) in enumerate(PAIRS)]
        path = tmp_path / name
        names, *rows = [names, *rows] if names else rows  # else the first pair takes their place
        write_table(path, names, rows)
        spec = f"en-de:{path}"
        assert read(path) == Translations(spec, "en", "de", SOURCES, TARGETS, False, 0)
        assert file_names(spec) == path.name


def test_nested_records_and_two_files(tmp_path, monkeypatch):
    rows = [(i, {"en": a, "de": b}) for i, (a, b) in enumerate(PAIRS)]
    assert_pairs(read(write_table(tmp_path / "p.jsonl", ("id", "translation"), rows)))
    first = write_lines(tmp_path / "a.txt", [*SOURCES[:2], "", *SOURCES[2:]])
    second = write_lines(tmp_path / "other", [*TARGETS[:2], " ", *TARGETS[2:]])
    assert_pairs(read(f"{first}+{second}"))
    monkeypatch.setenv("PLACE", str(tmp_path))
    assert_pairs(read("$PLACE/a.txt + ${PLACE}/other"))
    assert file_names(f"en-de:{first}+{second}") == "a.txt+other"
    assert find_files(f"DE-eng:{first}") == (("de", "eng"), [str(first)])


def test_words_are_a_dictionary(tmp_path):
    words = [("dog", "Hund"), ("cat", "Katze"), ("bus stop", "Haltestelle")]
    assert read(write_table(tmp_path / "w.tsv", words[0], words[1:])).dictionary
    assert not read(write_table(tmp_path / "s.tsv", words[2], PAIRS)).dictionary
    (tmp_path / "w.tsv").write_text("\napril\tapril\ndog\tHund\napril\tapril\n")
    same = ("april", "april")  # the first row is no header whose names must differ
    assert_pairs(read(tmp_path / "w.tsv"), [same, words[0], same])


BROKEN = [
    ("p.tsv", None, "expected a file of translations, found none at"),
    ("p.jsonl", "\n", "expected translations, got no good row"),
    ("p.tsv", "How?\n", "expected columns en and de, got .*How"),
    ("p.tsv", "1\tHow?\tWie?\n", "expected columns en and de, got .*; name the two columns so"),
    (
        "p.tsv",
        "How?\tWie?\nWho?\t \n",
        r"line 2: expected a text and its translation, got \['Who\?', ' '\]",
    ),
    ("p.tsv", "en\ten\tde\na\tb\tc\n", "expected one column `en`, got 2; rename some"),
    ("p.tsv", "id\tde\ten\n1\tWer?\t\n", r"line 2: .* got \['', 'Wer\?'\]"),
    ("p.jsonl", '{"en": "How?", "text": "Wie?"}', "expected columns en and de, got"),
    ("p.jsonl", '{"en": "a", "de": "b"}\n{"en": "a"}', r"line 2: .* got \['a', None\]"),
    (
        "p.tsv",
        "en\tde\n" + "Who is it?\tWho is it?\n" * 20,
        "same text on both sides: 20 of 20",
    ),
]


def test_broken_files(tmp_path):
    for name, content, message in BROKEN:
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        check_refused(read, (path, str(path)), (path, message))


def test_names_are_equal_on_both_sides(tmp_path):
    for equal, others in ((20, 21), (19, 0)):
        rows = "New York City\tNew York City\n" * equal + "Who is it?\tWer ist es?\n" * others
        (tmp_path / "p.tsv").write_text("en\tde\n" + rows)
        assert len(read(tmp_path / "p.tsv").sources) == equal + others


def test_bad_rows_may_be_left_out(tmp_path, caplog):
    path = tmp_path / "p.tsv"
    path.write_bytes(b"a street\tGasse\nroad\t\xdf\nx\t\n1\t2\t3\n")
    found = read(path, skip_bad_rows=True)
    assert_pairs(found, [("a street", "Gasse")])
    assert found.skipped == 3
    assert caplog.messages[0].startswith(f"{path}: 3 bad rows left out; line 2: expected UTF-8")
    path.write_bytes(b"en\tde\nx\t\n")
    with pytest.raises(UserError, match="got no good row and 1 bad ones"):
        read(path, skip_bad_rows=True)


def test_files_that_do_not_fit_each_other(tmp_path):
    first = write_lines(tmp_path / "a", ["one two", "three four"])
    second = write_lines(tmp_path / "b", ["eins zwei", "drei vier", "fünf"])
    with pytest.raises(UserError, match=r"expected as many lines in .*/a as in .*/b, got more in"):
        read(f"{first}+{second}")
    (tmp_path / "b").write_bytes(b"eins\n\xff\n")
    check_refused(read, (f"{first}+{second}", "line 2: .*/b: expected UTF-8"))


def test_specifications_that_cannot_be_read(tmp_path):
    write_table(tmp_path / "p.tsv", PAIRS[0], PAIRS[1:])
    write_table(tmp_path / "h.tsv", ("en", "de"), PAIRS)
    expected = "expected two languages, and a file or two"
    check_refused(
        lambda spec: read_translations(spec.format(tmp_path)),
        ("{}/p.tsv", "expected the two languages before the path; write them as in en-de:"),
        ("en-en:{}/p.tsv", expected),
        ("en-de:{}/p.tsv+", "found none at"),
        ("en-de:{0}/p.tsv+{0}/p.tsv", expected),
        ("en-de:-", "found none at -"),
        ("en-de:{}", r"cannot be read \(Is a directory\)"),
        ("en-fr:{}/h.tsv", "expected columns en and fr, got"),
        ("en-de:$QPR_NOT_SET/p.tsv", r"found none at \$QPR_NOT_SET/p.tsv"),
    )


@pytest.fixture(scope="module")
def pairs():
    return made_up_pairs(800)


@pytest.fixture(scope="module")
def lexicon(pairs):
    return learn_lexicon(*zip(*pairs, strict=True))


def test_model_1_by_hand():
    """Two iterations' worth of evidence decide which of two words is which."""
    found = learn_lexicon(["house", "the house", "the"], ["Haus", "das Haus", "das"])
    assert (found.likely("house"), found.likely("the")) == ("haus", "das")
    assert found.targets == ["haus", "das"]
    places, probabilities = found.of["house"]
    assert probabilities[places.tolist().index(0)] > 0.9
    text = " ".join(f"w{i}" for i in range(1000))
    # Of equal sentences each word is as likely as the others: none is likely.
    assert learn_lexicon([text] * 3, [text] * 3).of == {}


def test_likely_translations_are_at_least_half_as_likely_as_the_first():
    for shares, words in (([2, 7, 1], "y"), ([3, 5, 2], "y x"), ([1, 1, 1], "x y")):
        lexicon = Lexicon(["x", "y", "z"], {"w": (np.arange(3), np.array(shares) / sum(shares))})
        assert lexicon.likely("w") == words
    for sources, targets in (([], []), ([""], ["a"]), (["a"], ["?!"])):
        found = learn_lexicon(sources, targets)
        assert found == Lexicon([], {})
        assert translate_words("any text", found, np.random.default_rng(0)) == ("any text", 0)


def test_translated_words_follow_the_probabilities_and_other_words_stay(pairs, lexicon):
    def translations(seed):
        rng = np.random.default_rng(seed)
        return [translate_words(text, lexicon, rng) for text, _ in pairs[:200]]

    assert translations(1) == translations(1) != translations(2)
    two = Lexicon(["x", "y"], {"w": (np.array([1, 0]), np.array([0.75, 0.25]))})
    rng = np.random.default_rng(0)
    words = [translate_words("W", two, rng)[0] for _ in range(2000)]
    assert words.count("y") / 2000 == pytest.approx(0.75, abs=0.04)
    assert {*words} == {"x", "y"}
    house = Lexicon(["haus"], {"house": (np.array([0]), np.array([1.0]))})
    assert translate_words("Paul's HOUSE, Bonn!", house, rng) == ("paul s haus bonn", 1)


def _runs(question):
    words = question.lower().split()
    return set(itertools.pairwise(words)) | set(zip(words, words[1:], words[2:], strict=False))


def test_runs_of_three_words_and_both_ends_are_those_of_real_questions():
    frames = ("How do I {} {} at home?", "why would you {} {} in the Summer")
    verbs, things = ("bake", "buy", "slice", "store"), ("bread", "rye bread", "a cake", "cheese")
    real = [frame.format(*words) for frame in frames for words in itertools.product(verbs, things)]
    real += ["", "one", "two words"]
    joined, again = (
        recombine_questions(real, 20, accept=lambda t: t not in real) for _ in range(2)
    )
    assert joined == again
    assert len(joined) == len(set(joined)) == 20
    known = set().union(*map(_runs, real))
    for question in joined:
        assert question not in real
        assert _runs(question) <= known
        assert any(q.split()[:2] == question.split()[:2] for q in real if q)
        assert any(q.split()[-1:] == question.split()[-1:] for q in real if q)


def test_fewer_are_made_where_no_more_can_be_made():
    joined = recombine_questions(["a B c d", "x b C e"], 5, accept=lambda text: True)
    assert sorted(joined) == ["a B c e", "x b C d"]
    joined = recombine_questions(["a b c d", "x b c e"], 5, accept=lambda text: "x" not in text)
    assert joined == ["a b c e"]
    for none in ([], [""], ["a b c d"], ["a b c", "d e f"]):
        assert recombine_questions(none, 5, accept=lambda text: True) == []
