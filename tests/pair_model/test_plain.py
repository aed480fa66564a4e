"""The model of pairs of packaged encoders: guards, densities, reach, and its file."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpr_jax import Retriever, UserError, find_duplicates
from qpr_jax.encoders.load import PACKAGED
from qpr_jax.pair_model.guards import GUARDS, compare_words
from qpr_jax.pair_model.plain import (
    SURE,
    PlainModel,
    logit_of,
    neighbor_distances,
    probability,
    read_plain,
    save_plain,
)

MODEL = PlainModel(
    "e",
    (2.0, 3.0, -1.0, -9.0, -8.0, -8.0, -2.0, -3.0, -1.0, -0.7, -1.5),
    (7.0, *[0.0] * 8, -5.0),
    1.5,
)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("room 12", "room", ["number on one side"]),
        ("room 12", "room 21", ["numbers differ"]),
        ("from 5 to 10", "from 10 to 5", ["numbers differ"]),
        ("two keys", "2 keys", []),
        ("learn C++", "learn C#", ["numbers differ"]),
        ("it works", "it does not work", ["negation on one side"]),
        ("I can log in", "i cant log in", ["negation on one side"]),
        ("it works", "it doesnt work", ["negation on one side"]),
        ("wifi stopped working", "wifi is working", ["negation on one side"]),
        ("wifi stopped working", "wifi not working", []),
        ("the boiler is broken", "the boiler doesnt work", []),
        ("the toilet flush is broken", "the toilet does not flush", []),
        ("the oven is broken", "the oven is not broken", ["negation on one side"]),
        ("open the door", "close the door", ["opposite"]),
        ("turn on the light", "turn off the light", ["opposite"]),
        ("the Paris office", "the Rome office", ["names differ"]),
        ("the Paris office", "the office", []),
        ("dark beamer", "projector has no picture", []),
        ("is it -5 cold", "is it 5 cold", ["numbers differ"]),
        ("fix it \u2705", "fix it", []),
        ("nice bed. The shower leaks", "nice bed.", ["sentence on one side"]),
        ("Lage gut, ruhig. Bett zu hart!", "Lage gut, ruhig", ["sentence on one side"]),
        ("Hello! Reset my password. Many thanks, Ann", "reset the password", []),
        ("Where is it?", "where is it", []),
        ("turn on the hall fans", "turn off the hall fan", ["opposite"]),
        ("turn the lamps off on Monday", "turn the lamp on on Monday", ["opposite"]),
        ("is it dark by the lights", "is it bright by the light", ["opposite"]),
        ("checking in at noon", "check-out at noon", ["opposite"]),
        ("How do I sign in?", "How do I log out?", ["opposite"]),
        ("stopped trains", "starting train", ["opposite"]),
        ("a timer for 30 minutes", "a timer for 30 hours", ["opposite"]),
        ("my refundable fare", "my nonrefundable fare", ["opposite"]),
        ("he unpacked it", "he is packing it", ["opposite"]),
        ("outbound flight", "inbound flight", ["opposite"]),
        ("from Oslo to Rome", "from Rome to Oslo", ["opposite"]),
        ("convert euros to dollars", "convert dollars to euros", ["opposite"]),
        ("Is tea cheaper than milk?", "Is milk cheaper than tea?", ["opposite"]),
        ("is it sold with plugs", "do you also have one without a plug", ["opposite"]),
        ("a room with a view", "the room has no bath", []),
        ("mixer 500 shows E05", "E05 on my mixer 500", []),
        ("fly from Oslo to Rome", "fly to Rome from Oslo", []),
        ("How do I sign in?", "How do I log in?", []),
        ("what time is check-in", "When can I check in?", []),
        ("fill in the form", "fill out the form", []),
        ("put it in", "put it inside", []),
        ("smoking is not allowed", "smoking is forbidden", []),
        ("it isn't available", "it is unavailable", []),
        ("Do you sell stamps?", "Can I buy stamps?", []),
        ("Good morning, where is it?", "Good evening, where is it?", []),
        ("open an account", "create an account", ["one word differs"]),
        # Opposites count where half of the other words agree.
        ("I passed the test", "my friend failed the test", ["opposite"]),
        ("She passed the test", "my brother failed to repair a car", []),
        ("is it open on Sundays", "Until when is it open on Sundays?", []),
        ("until when is the bar open", "when does the bar close", []),
        ("the shower has no hot water", "cold water in the shower", []),
        ("is there a lamp in room A?", "Is there a lamp in room B?", ["names differ"]),
        ("Plan A", "Plan B", ["names differ"]),
        ("the gates of terminal A are far", "the gates of terminal C are far", ["names differ"]),
        ("is vitamin d healthy", "is vitamin b healthy", ["names differ"]),
        ("do you have size M", "do you have an m", []),
        ("Is plan A good?", "is plan a good", []),
        ("Have you a room?", "Have you A ROOM?", []),
        ("do you meet I or U", "do you meet u", []),
        ("second floor", "the third floor", ["opposite"]),
        ("it is in the basement, left", "it is on the ground floor, left", ["opposite"]),
        ("songs by Elvis", "songs about Elvis", ["opposite"]),
        ("salt in the sugar jar", "sugar in the salt jar", ["opposite"]),
        ("salt and the sugar", "sugar and the salt", []),
        ("a house boat", "a boat house", []),
        ("the discount of the ticket", "the count of the ticket", ["one word differs"]),
        ("is the pool heated", "is the gym heated", ["one word differs"]),
        ("is the pool heated", "is the pool open", ["one word differs"]),
        ("is the pool heated", "is our pool heated", []),
        ("is the pool heated", "are the pools heated", []),
        ("open the pool", "close the pool", ["opposite"]),
        ("pool rules", "gym rules", []),
        ("pay month to month", "pay from month to month", []),
        ("The hall light is dim. The hall blinks", "The hall light is dim", []),
        ("Can I pay by card? The machine is broken", "Can I pay by card?", []),
        ("Can I send PDFs?", "can I send a PDF", []),
        ("I lost the P60s of my staff", "I lost the P60 of my staff", []),
        ("Can I send PDFs?", "Can I send CSVs?", ["names differ"]),
        ("an X100S camera", "an X100 camera", ["names differ"]),
        ("the U.S. form of Mr O'Brien", "the US form of Mr O'Brien", []),
        ("invoice #1043 is missing", "invoice 1043 is missing", []),
        ("invoice #1043 is missing", "invoice #1044 is missing", ["numbers differ"]),
        ("learn C#", "learn C", ["numbers differ"]),
        ("pay \xa35 extra", "pay 5 pounds extra", []),
        ("pay \u20ac 1,000.50 now", "pay 1000.5 EUR now", []),
        ("pay $5 extra", "pay 5 GBP extra", ["numbers differ", "opposite"]),
        ("pay 5 dollars extra", "pay 5 extra", []),
        ("give 20% off", "give 20 percent off", []),
        ("give 20% off", "give $20 off", ["numbers differ", "opposite"]),
        ("give 20 % off", "give 20 off", ["numbers differ"]),
        ("it leaves at 5 pm", "it leaves at 5 am", ["names differ"]),
        ("it leaves at 5 p.m. today", "it leaves at 5pm today", []),
        ("The bus left at 5 pm. My tram broke", "the bus left at 5pm", ["sentence on one side"]),
        ("I am 5 or 6", "am I 5 or 6", []),
        ("pay 8,40 EUR", "pay 8.40 \u20ac", []),
        ("the bus to the airport", "the bus from the airport", ["opposite"]),
        ("from the airport to the hotel", "to the hotel from the airport", []),
    ],
)
def test_guards_are_the_same_both_ways(first, second, expected):
    found = compare_words([first, second, first], [second, first, first])
    assert [name for name, there in zip(GUARDS, found[0, :-1], strict=True) if there] == expected
    np.testing.assert_array_equal(found[0], found[1])
    assert found[2].tolist() == [0] * len(GUARDS) + [1]


WORDS = [
    "PDFs",
    "P60s",
    "IDs",
    "U.S.",
    "O'Brien",
    "iPhones",
    "#5",
    "$5",
    "5%",
    "\u20ac",
    "C#",
    "x-ray",
]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=8).map(" ".join))
def test_a_text_does_not_differ_from_itself(text):
    assert not compare_words([text], [text])[:, :-1].any()


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("the pool is heated", "is our pool heated", 1),  # 3 of 5
        ("wifi is slow", "wifi drops", 0.5),  # 1 of 4
        ("my parcel never came", "where is the package", 0),
        ("printers", "a printer", 1),  # forms of a word
        ("", "", 0),
    ],
)
def test_the_last_column_says_how_many_words_two_texts_share(first, second, share):
    assert compare_words([first, second], [second, first])[:, -1].tolist() == [share, share]


def test_of_pairs_as_near_as_each_other_those_of_other_words_score_higher():
    distances, spreads = np.full(2, 0.5), np.log(np.full(2, 0.4))
    other, same = MODEL.logits(
        ["my parcel never came", "my parcel never came"],
        ["where is the package", "my mail never came"],
        distances,
        spreads,
    )
    assert other > same


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 40])
def test_distances_of_neighbors_are_those_of_the_second_to_sixth_nearest(count):
    vectors = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)
    found = neighbor_distances(vectors)
    squares = ((vectors[:, None] - vectors[None]).astype(np.float64) ** 2).sum(axis=2)
    apart = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1) if count else vectors
    apart = apart / max(np.sqrt((apart**2).mean()), 1e-9) if count else apart
    for i in range(count):
        others = np.sort(np.delete(squares[i], i))[1:6]
        if len(others):
            assert found[i] == pytest.approx(others.mean() * apart[i], abs=1e-5)
        else:
            assert np.isnan(found[i])
    assert np.isfinite(MODEL.spreads(found)).all()


def test_equal_vectors_do_not_hide_each_other():
    vectors = np.zeros((9, 3), np.float32)
    vectors[8] = 1
    assert neighbor_distances(vectors)[:8].tolist() == [0.0] * 8
    # Its squared distance from the mean is 8 ** 2 / 81 * 3, of the others 3 / 81.
    assert neighbor_distances(vectors)[8] == pytest.approx(3 * np.sqrt(8))


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_no_pair_beyond_the_reach_has_the_score(threshold):
    spreads = np.log([0.1, 0.4, 0.8])
    reach = MODEL.reach(threshold, spreads)
    distances = np.linspace(0, 12, 997)
    for spread in spreads:
        logits = MODEL.without_words(distances, np.full(997, spread))
        assert distances[logits >= logit_of(threshold)].max(initial=0) <= reach + 1e-3
        assert (np.diff(logits) <= 0).all()
        for column in range(len(GUARDS) + 1):
            found = np.tile(np.arange(len(GUARDS) + 1) == column, (997, 1))
            guarded = MODEL.with_words(found, distances, np.full(997, spread))
            assert (guarded <= logits).all()


def test_a_model_is_read_as_it_was_saved(tmp_path):
    save_plain(tmp_path / "m", MODEL)
    assert dataclasses.asdict(read_plain(tmp_path / "m")).keys() == vars(MODEL).keys()
    assert tuple(read_plain(tmp_path / "m").pairs) == MODEL.pairs
    for wrong in ({"pairs": (1.0,)}, {"hits": ()}, {"pairs": (-1.0, *MODEL.pairs[1:])}):
        save_plain(tmp_path / "w", dataclasses.replace(MODEL, **wrong))
        with pytest.raises(UserError, match="weights of a model of pairs"):
            read_plain(tmp_path / "w")
    assert probability(np.array([99.0]))[0] == SURE


HIGH = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("Hello, how do I reset my password? Thanks", "How do I reset my password?"),
    ("Access for the intern from 1 May", "access for the intern from May 1st"),
    ("Where can I park my car?", "where do i park the car"),
]
LOW = [
    ("My account is locked", "My account is not locked"),
    ("cannot print", "can print"),
    ("scanner does not work", "scanner works"),
    ("enable roaming on my phone", "disable roaming on my phone"),
    ("Convert 5 USD to 10 EUR", "Convert 10 USD to 5 EUR"),
]


@pytest.mark.parametrize("encoder", PACKAGED)
def test_easy_pairs_of_two_rows(encoder):
    for texts in HIGH:
        (pair,) = find_duplicates([*texts], encoder=encoder).pairs
        assert 0.7 < pair.score <= SURE
    for texts in LOW:
        assert all(
            p.score < 0.3 for p in find_duplicates([*texts], encoder=encoder, threshold=0).pairs
        )
    texts = ["Router does not start", "Router does not start since 2 days"]
    assert find_duplicates(texts, encoder=encoder, threshold=0).pairs


@pytest.mark.parametrize("encoder", PACKAGED)
def test_a_row_more_takes_no_candidate_away(encoder):
    texts = ["how do i pay", "how can i pay", "where is my parcel", "where is the parcel now"]
    before = {p[:2] for p in find_duplicates(texts, encoder=encoder, threshold=0.3).pairs}
    for more in ("how to pay", "where is my parcel?!", "unrelated words of a ship"):
        found = find_duplicates([*texts, more], encoder=encoder, threshold=0.0).pairs
        assert before <= {pair[:2] for pair in found}


@pytest.mark.parametrize("encoder", PACKAGED)
def test_tables_without_pairs(encoder):
    for texts in ([], ["one"], ["one", "One.", "ONE"]):
        found = find_duplicates(texts, encoder=encoder)
        assert all(pair.score == 1 for pair in found.pairs)
        assert len(found.kept) == min(1, len(texts))


@pytest.mark.parametrize("encoder", PACKAGED)
def test_hits_are_sorted_by_score_and_explained_alike(encoder):
    texts = ["pay 3 bills", "pay 5 bills", "pay my bills", "send an invoice"]
    retriever = Retriever.build(texts, encoder=encoder)
    hits = retriever.search("pay 5 bills", 4)[0]
    assert (hits[0].question, hits[0].score) == ("pay 5 bills", 1.0)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    for hit in hits[1:]:
        assert hit.score <= SURE
        assert retriever.explain("pay 5 bills", hit.question).score == pytest.approx(
            hit.score, abs=1e-5
        )
