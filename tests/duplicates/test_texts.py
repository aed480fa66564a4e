"""What counts as one text, and what never makes two rows duplicates."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from qpr_jax import find_duplicates
from qpr_jax.duplicates.rows import LINKAGES
from qpr_jax.text.cleaning import folded, number_key, shared_sentences, without_html, without_shared

SIGNS = ["C", "C++", "C#", "-5", "5", "+5", "<", ">", "5%", "$5", "a/b", "a-b", "&&", "??"]
SIGNS += [".NET", "net", "1.5", "15", "\u2705", "\u274c"]
WORDS = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=3).filter(lambda w: w[-1] != "??")


@given(WORDS, WORDS, st.sampled_from(["", "?", " ?!", "...", "\t"]))
def test_signs_make_another_text_and_case_blanks_and_punctuation_do_not(words, others, end):
    text = " ".join(words)
    assert folded(folded(text + end)) == folded(text + end)
    assert folded(text.upper() + end) == folded(" " + "  ".join(words))
    assert (folded(text) == folded(" ".join(others))) == (words == others)
    for text in ("Hello, world! Is it \u201creal\u201d?", "HELLO:  world is it real"):
        assert folded(text) == "hello world is it real"


def test_copies_and_templates_are_compared_once(run):
    cases = itertools.product(*({letter, letter.upper()} for letter in "how to cook rice"))
    spellings = [f"{''.join(case)}{end}" for case in cases for end in ("", "?", "!!")][:3000]
    orders = [f"Order {i} has not arrived" for i in range(10_000)]
    for texts, how, kept in (
        (["how to cook rice"] * 20_000, {}, 1),
        (spellings, {}, 1),
        (orders, {}, 10_000),
        (orders, {"ignore_numbers": True}, 1),
    ):
        found = find_duplicates(texts, encoder=run, max_distance=4, **how)
        assert (len(found.kept), len(found.pairs)) == (kept, len(texts) - kept)


WORDED = st.lists(st.sampled_from(["cook", "rice", "Rice", "C++", "C", "2", "two", "3", "-3"]))
TEXTS = st.lists(st.tuples(WORDED, st.sampled_from(["", "?", "!"])), max_size=9)


def sets_of(groups, texts):
    """The texts of each group."""
    return {frozenset(texts[i] for i in group.ids) for group in groups}


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.randoms(use_true_random=False))
def test_rules_that_hold_for_any_table(run, table, random):
    texts = [" ".join(["learn", *words]) + end for words, end in table]
    classes = {}
    for text in texts:
        classes.setdefault(folded(text), []).append(text)
    copies = {frozenset(members) for members in classes.values() if len(members) > 1}
    assert sets_of(find_duplicates(texts, encoder=run, threshold=1).groups, texts) == copies
    found = find_duplicates(texts, encoder=run, max_distance=1, groups="closure")
    for group in found.groups:
        assert len({number_key(folded(text)) for text in group.questions} - {""}) <= 1
    shuffled = random.sample(texts, len(texts))
    again = find_duplicates(shuffled, encoder=run, max_distance=1, groups="closure")
    assert sets_of(again.groups, shuffled) == sets_of(found.groups, texts)


def test_rows_with_other_numbers_are_in_no_group(run):
    texts = ["cook 2 rice", "cook two rice", "cook -2 rice", "cook rice", "a new car"]
    for groups in LINKAGES:
        how = {"encoder": run, "max_distance": 1e6, "groups": groups}
        found = find_duplicates(texts, **how)
        # Nearest first; a text without numbers may join those of one number.
        (first, *_) = found.groups
        assert {0, 1} <= {*first.ids}
        assert all(2 not in group.ids or {0, 1}.isdisjoint(group.ids) for group in found.groups)
        assert 2 in find_duplicates(texts, **how, ignore_numbers=True).groups[0].ids


def test_texts_with_equal_vectors_are_pairs_like_others(run):
    texts = ["learn <python>", "learn python", "learn [python]", "Learn Python!", "cook rice"]
    found = find_duplicates(texts, encoder=run, max_distance=0)
    assert [pair[:2] for pair in found.pairs] == [(1, 3), (1, 2), (0, 2), (0, 1)]
    assert (found.pairs[0].score, found.kept) == (1.0, [0, 4])
    assert max(pair.score for pair in found.pairs[1:]) <= 0.999
    # A sign that the encoder does not read is no reason to drop a text; brackets are no sign.
    found = find_duplicates(texts, encoder=run, threshold=0.5)
    assert {pair[:2] for pair in found.pairs} == {(1, 3), (1, 2)}
    across = find_duplicates(texts[1:2], encoder=run, threshold=0.5, against=texts[2:])
    assert ({pair[:3] for pair in across.pairs} > {(0, 1, 1.0)}, across.kept) == (True, [])


CARTS = [
    f"{start} my {thing}"
    for start in ("where is", "Where's", "\xbfwhere is")
    for thing in ("car", "c\xe1r?")
]
CARTS += ["where is my car? :)", "where is my <car>", "is 5 my car", "where is \u672c my car\u3002"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(CARTS), min_size=2, max_size=6), st.sampled_from(CARTS))
def test_a_row_takes_no_pair_away_and_only_copies_are_certain(run, texts, more):
    def pairs_of(given):
        found = find_duplicates(given, encoder=run, max_distance=1.5, groups="closure")
        texts = [{folded(pair.question1), folded(pair.question2)} for pair in found.pairs]
        for pair, both in zip(found.pairs, texts, strict=True):
            assert (pair.score == 1) == (len(both) == 1)
            assert pair.score == 1 or pair.score <= 0.999
        return {frozenset(both) for both in texts}

    assert pairs_of(texts) <= pairs_of([*texts, more])


MARKUP = [
    ("<section>", "</section>"),
    ('<button class="a">', "</button>"),
    ("<o:p>", "</o:p>"),
    ("<my-card id=1>", "</my-card>"),
    ("<anything>", "</ANYTHING >"),
    ("<!DOCTYPE html><main>", "</main>"),
    ("<?xml version='1.0'?><q>", "</q>"),
    ("<![CDATA[", "]]>"),
    ("<!-- note -->", ""),
    ("", "<!-- <b> -->"),
    ("<p>", "<o:p></o:p><!--[if mso]> z <![endif]--></p>"),
]


def test_html_and_shared_sentences_are_left_out(run):
    assert without_html("<div><p>Hi<br>x &lt; y&nbsp;</p></div>").split() == ["Hi", "x", "<", "y"]
    for start, end in MARKUP:
        assert without_html(f"{start}x & y{end}").strip() == "x & y", start
    others = ["is <em> bold?", "nest <table> in <tr>", "Set<u>", "x <p and q> z", "is &nbsp; it"]
    others += [
        "is &copy; it",
        "std::map<std::string, int>",
        "write <!-- a --> in it",
        "a <-- b -->",
    ]
    others += ["<T>(x: T) => T", "<https://a.b>"]
    for text in ("x < y", "is x <a b & c", "List<String>", "a &b", *others):
        assert without_html(text) == text
    things = ["cook rice", "learn python", "what is rust", "a new car", "mend a bike"]
    texts = [f"Hi there,\n{thing}\n-- \nSent from my phone" for thing in things] + ["thanks"] * 9
    shared = shared_sentences(texts)
    assert {*shared} == {"hi there", "sent from my phone"}
    ends = [f"end {letter}" for letter in "dbace"]
    equal = [f"question {i}.\n" + "\n".join(ends) for i in range(9)]
    assert [*shared_sentences(equal)] == ends  # in every process
    assert [without_shared(text, shared) for text in texts[:5]] == things
    assert without_shared("Hi there,\nSent from my phone", shared) == "Hi there,"
    how = {"encoder": run, "max_distance": 0, "against": texts}
    assert len(find_duplicates(things, **how, clean=False).pairs) == 0
    clean = find_duplicates(things, **how)
    assert {pair.question2 for pair in clean.pairs} == {*texts[:5]}


def test_copies_are_written_in_many_ways(run):
    texts = [
        "Reset my pass\u00adword\u3002",
        "\ufeffreset my password?",
        "\xab reset my password \xbb",
    ]
    texts += ["is 10\u2076 large", "is 106 large"]
    texts += ["2 for 30", "30 for 2", "learn a\u2011z", "learn a-z!"]
    for how in ({"max_distance": 0}, {"threshold": 0.9}):
        found = find_duplicates(texts, encoder=run, **how)
        assert {(*group.ids,) for group in found.groups} == {(0, 1, 2), (7, 8)}
    assert {pair.score for pair in found.pairs} == {1.0}


def test_what_cleaning_leaves_out_makes_no_copies(run):
    things = ["cook rice", "learn python", "what is rust", "a new car", "mend a bike", "fly a kite"]
    for texts in (
        [f"{place}: {thing}" for thing in things for place in ("Peru", "Chile", "Cuba")],
        [f"{thing}? {answer}" for thing in things for answer in ("Yes.", "No.", "Both.")],
        ["is <em> bold", "is <strong> bold", "is <em>it</em> bold", "is <strong>it</strong> bold"],
        ["see <img src=rye.png> it", "see <img src=rice.png> it"],
        ["10<sup>6</sup> cars", "106 cars", "10<sub>6</sub> cars"],
    ):
        for clean in (True, False):
            assert find_duplicates(texts, encoder=run, threshold=1, clean=clean).kept == [
                *range(len(texts))
            ]
    wrapped = ["<p>cook rice</p>", "<div><b>cook rice</b></div>", "cook rice", "cook <b>rice</b>"]
    found = find_duplicates(wrapped, encoder=run, threshold=0.5)
    assert len(found.kept) == 1
    assert max(pair.score for pair in found.pairs) <= 0.999
    letters = [f"Hi there,\n{thing}\nBye now" for thing in things]
    found = find_duplicates([*letters, *things], encoder=run, threshold=0.5)
    assert len(found.kept) == len(things)
    assert {pair.score == 1 for pair in found.pairs} == {False}
