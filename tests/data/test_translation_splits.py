"""What trains a student shares no text with what is held out or stands in a test."""

import itertools
import random

import pytest

from qpr_jax.data.parallel_sentences import Translations, split_translations
from qpr_jax.errors import UserError
from qpr_jax.text.tokenizer import normalized_text
from tests.languages import made_up_pairs, translate


def translations(pairs, language="xx", *, name="f", dictionary=False, skipped=0):
    sources, targets = map(list, zip(*pairs, strict=True))
    return Translations(name, "en", language, sources, targets, dictionary, skipped)


def pairs_of(parts, language=None):
    return [
        pair
        for part in parts
        if language in (None, part.language)
        for pair in zip(part.sources, part.targets, strict=True)
    ]


def texts_of(parts):
    return {normalized_text(text) for pair in pairs_of(parts) for text in pair}


def tangled(count, seed, letters="ab"):
    """Sentences of which many have several translations, and the other way round."""
    rng = random.Random(seed)
    sentences = [f"Sentence {i} is here" for i in range(count)]
    pairs = []
    for i, text in enumerate(sentences):
        for _ in range(rng.choice((1, 1, 2))):
            target = f"{rng.choice(letters)} xx {rng.choice(sentences[i:][:2])}."
            pairs.append((text + rng.choice(("?", ".", "", " !")), target))
    return [*pairs, *rng.sample(pairs, count // 20)]


@pytest.mark.parametrize("seed", range(2))
def test_training_shares_no_text_with_what_is_scored_and_has_all_else(seed):
    shared = tangled(300, seed)
    files = [
        translations(shared),
        translations([(a, "y " + b) for a, b in shared[:200]], "yy"),
        translations(tangled(200, seed + 9, "c"), name="g"),
        translations([("sentence 7 is here", "word"), ("cat", "png")], dictionary=True),
    ]
    tests = [translations([("SENTENCE, 3: is here!", "z"), ("q", "a xx sentence 9 is here")], "zz")]
    found = split_translations(files, tests, held_out=15)
    scored = [*found.held_out.values(), tests]
    for part, others in itertools.combinations([found.train, *scored], 2):
        assert not texts_of(part) & texts_of(others)
    for part in found.held_out.values():
        assert [entry.language for entry in part] == ["xx", "yy"]
        for entry in part:
            assert not entry.dictionary
            for side in (entry.sources, entry.targets):
                assert len(side) == len({*map(normalized_text, side)}) == 15
    banned = set().union(*map(texts_of, scored))
    for language in ("xx", "yy"):
        given = {*pairs_of(files, language)}
        assert {*pairs_of([*found.train, *itertools.chain(*scored[:2])], language)} <= given
        left = [pair for pair in given if not {*map(normalized_text, pair)} & banned]
        assert sorted(pairs_of(found.train, language)) == sorted(left)
    assert found.tests == tests
    assert split_translations(files, tests, held_out=15) == found


def test_report_accounts_for_all_rows():
    pairs = made_up_pairs(400)
    words = [("car", "pnb"), ("how", "uög"), ("bus", "oec"), ("bus", "oec")]
    files = [
        translations([*pairs, pairs[0], pairs[1]], skipped=2),
        translations(words, dictionary=True, skipped=3),
    ]
    tests = [translations([pairs[5], ("How!", "...")])]
    found = split_translations(files, tests, held_out=20)
    counts = {"sentences": 402, "dictionary_entries": 4, "skipped_rows": 5, "repetitions": 3}
    counts |= {"trained_sentences": 359, "trained_dictionary_entries": 2, "in_tests": 2}
    assert found.report == {"xx": counts | {"held_out": {"validation": 20, "test": 20}}}
    assert [len(part.sources) for part in found.train] == [359, 2]
    assert [part.dictionary for part in found.train] == [False, True]


def statements(count):
    return [(f"This is fact {i}.", f"Das ist Punkt {i}.") for i in range(count)]


def questions(count):
    return [(f"What is {i}?", f"Was ist {i}?") for i in range(count)]


def test_questions_are_held_out_where_there_are_enough():
    pairs = [*statements(600), *questions(70), *((f"What {i}?", f"{i} \uff1f") for i in range(10))]
    pairs += [(f"Is it {i}?", f"Es ist {i}!") for i in range(10)]  # a question on one side only
    found = split_translations([translations(pairs)], [], held_out=20)
    for part in found.held_out.values():
        assert len(part[0].sources) == 20
        assert all(text.endswith(("?", "\uff1f")) for pair in pairs_of(part) for text in pair)
    found = split_translations([translations(pairs[:-11])], [], held_out=20)
    kinds = {text.endswith("?") for text, _ in pairs_of(found.held_out["test"])}
    assert kinds == {False, True}


def test_at_most_a_tenth_is_held_out():
    found = split_translations([translations(statements(57))], [], held_out=1000)
    assert [len(part[0].sources) for part in found.held_out.values()] == [5, 5]
    found = split_translations([translations(statements(9))], [])
    assert found.held_out == {"validation": [], "test": []}
    # A common text is not held out.
    pairs = [("Yes.", f"Ja {i}.") for i in range(150)] + statements(50)
    found = split_translations([translations(pairs)], [], held_out=20)
    held = pairs_of([*found.held_out["validation"], *found.held_out["test"]])
    assert len(held) == 40
    assert "Yes." not in dict(held)


def test_languages_hold_out_the_same_sentences():
    english = [text for text, _ in made_up_pairs(300)]
    files = [
        translations([(text, code + translate(text)) for text in english], code)
        for code in ("aa", "bb", "cc")
    ]
    for held_out in (0, 5):
        found = split_translations(files, [], held_out=held_out)
        for part in found.held_out.values():
            assert len(part) == (3 if held_out else 0)
            assert len({tuple(entry.sources) for entry in part}) <= 1
        assert [len(part.sources) for part in found.train] == [300 - 2 * held_out] * 3


def test_one_row_of_a_group_is_scored():
    pairs = [(f"Fact {i // 4}.", f"Punkt {i}.") for i in range(400)]
    found = split_translations([translations(pairs)], [], held_out=10)
    for part in found.held_out.values():
        assert len({*part[0].sources}) == len(part[0].sources) == 10
    assert found.report["xx"]["near_held_out"] == 60
    # Not always the first of a group.
    ends = {int(text[6:-1]) % 4 for _, text in pairs_of(found.held_out["test"])}
    assert len(ends) > 1


def test_files_of_which_nothing_is_left_are_no_files():
    files = [translations(statements(3), name="a"), translations(questions(3), name="b")]
    found = split_translations(files, [translations(statements(3))])
    assert [file.name for file in found.train] == ["b"]
    with pytest.raises(UserError, match="a, b: all rows are held out or in"):
        split_translations(files, files)
