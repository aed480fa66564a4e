"""`find_duplicates`: what is found, however it is asked for, whatever the order of the rows."""

import numpy as np
import pandas as pd
import polars
import pytest

from qpr_jax import Retriever, UserError, find_duplicates, read_encoder
from qpr_jax.duplicates.search import _strongest_first
from qpr_jax.index.close_pairs import Pairs
from qpr_jax.pair_model.plain import general_model, probability
from tests.refused import check_refused
from tests.runs import WORDS
from tests.tables import read_table


def texts_of(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS[:12], 4)) for _ in range(count)]


def sets_of(found):
    return {frozenset(group.ids) for group in found.groups}


def probabilities(distances):
    logits = 2 * (2.0 - np.array(distances, np.float64))
    return probability(logits).tolist()


def test_all_pairs_within_a_distance_are_found(run):
    texts = sorted({*texts_of(60)})
    vectors = Retriever.build(["a"], encoder=run).encode(texts).astype(np.float64)
    squares = ((vectors[:, None] - vectors[None]) ** 2).sum(axis=2)
    expected = {*zip(*np.nonzero(np.triu(squares <= 0.5, 1)), strict=True)}
    found = find_duplicates(texts, encoder=run, max_distance=0.5)
    assert {pair[:2] for pair in found.pairs} == expected
    distances = [pair.distance for pair in found.pairs]
    assert distances == sorted(distances)
    assert [pair.score for pair in found.pairs] == pytest.approx(probabilities(distances))
    grouped = {i for group in found.groups for i in group.ids}
    assert {*found.kept} == {*range(len(texts))} - grouped | {g.kept for g in found.groups}
    for group in found.groups:  # complete: all its pairs are close
        farthest = squares[np.ix_(group.ids, group.ids)].max()
        assert group.weakest == pytest.approx(*probabilities([farthest]))


def test_ways_to_choose_agree(run):
    texts = texts_of(60)
    by_distance = find_duplicates(texts, encoder=run, max_distance=0.4)
    by_threshold = find_duplicates(texts, encoder=run, threshold=probabilities([0.4])[0])
    assert by_distance.pairs == by_threshold.pairs
    assert find_duplicates(texts, encoder=run).threshold == 0.5


def test_both_bounds_hold(run):
    texts = sorted({*texts_of(60)})
    score = probabilities([0.4])[0]
    near = {p[:2] for p in find_duplicates(texts, encoder=run, max_distance=0.4).pairs}
    likely = {p[:2] for p in find_duplicates(texts, encoder=run, threshold=score).pairs}
    for bounds in ({"max_distance": 0.2}, {"max_distance": 0.6}):
        both = find_duplicates(texts, encoder=run, threshold=score, **bounds)
        within = {p[:2] for p in find_duplicates(texts, encoder=run, **bounds).pairs}
        assert {pair[:2] for pair in both.pairs} == likely & within
    assert near == likely != set()


def test_the_threshold_moves_without_a_search(run):
    texts = texts_of(60)
    found = find_duplicates(texts, encoder=run, threshold=0.5)
    for threshold in (0.3, 0.5, 0.8, 1.0):
        again = find_duplicates(texts, encoder=run, threshold=threshold)
        moved = found.at_least(threshold)
        assert (moved.pairs, moved.groups, moved.kept) == (again.pairs, again.groups, again.kept)
        assert moved.threshold == threshold
    swept = {row["threshold"]: row for row in found.sweep()}
    assert [*swept] == [0.3, 0.5, 0.7, 0.9]
    assert swept[0.5]["pairs"] == found.facts()["pairs"]
    assert [row["kept"] for row in swept.values()] == sorted(r["kept"] for r in swept.values())
    scores = [pair.score for pair in found.around(5)]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    each = sorted((pair.score for pair in found.at_least(0.3)), key=lambda s: abs(s - 0.5))
    assert scores == sorted(each[:5], reverse=True)
    last = found.pairs[-1]
    assert last in found.at_least(last.score).pairs
    assert last in found.nearer_than(last.distance).pairs
    with pytest.raises(UserError, match=r"^`threshold`: pairs were looked for from .* 0\.3 on"):
        found.at_least(0.2)
    by_distance = find_duplicates(texts, encoder=run, max_distance=0.5)
    assert by_distance.threshold is None
    assert by_distance.around(5) == []
    nearer = find_duplicates(texts, encoder=run, max_distance=0.3)
    assert [*by_distance.nearer_than(0.3)] == [*nearer] != [*by_distance]
    with pytest.raises(UserError, match=r"^`max_distance`: .* up to a distance of 0\.3, got 0\.5"):
        nearer.nearer_than(0.5)


def test_groups_change_without_a_search(run, tmp_path):
    found = find_duplicates(TABLE, encoder=run, max_distance=1.0, id_column="key")
    for groups, keep in (("closure", "longest"), ("complete", "max:votes")):
        options = {"groups": groups, "keep": keep, "id_column": "key"}
        expected = find_duplicates(TABLE, encoder=run, max_distance=1.0, **options)
        changed = found.cluster(groups).keep(keep)
        assert (changed.groups, changed.kept) == (expected.groups, expected.kept)
        changed.write(tmp_path, "jsonl")
        for name in ("pairs", "groups", "deduplicated"):
            assert read_table(tmp_path / f"{name}.jsonl") == changed.to_dicts(name)
    check_refused(
        lambda method, value: getattr(found, method)(value),
        ("cluster", "average", "^`groups`: expected one of complete, closure"),
        ("keep", "max:gone", "^`keep`: expected a column `gone`"),
        ("keep", "last", "^`keep`: expected first, longest, central or max:COLUMN"),
    )


@pytest.mark.parametrize(
    "how",
    [
        {"threshold": 0.3, "groups": "closure", "keep": "longest"},
        {"threshold": 0.8, "keep": "central"},
        {"max_distance": 0.5, "ignore_numbers": True, "clean": True},
    ],
)
def test_the_order_of_rows_does_not_matter(reranked_run, how):
    texts = [f"{text}{end}" for text in texts_of(30) for end in ("", "?", " 2", " 3")]
    ids = [f"q{i}" for i in range(len(texts))]
    expected = find_duplicates(texts, ids, encoder=reranked_run, **how)
    order = np.random.default_rng(3).permutation(len(texts))
    shuffled = ([values[i] for i in order] for values in (texts, ids))
    found = find_duplicates(*shuffled, encoder=reranked_run, **how)
    assert found.pairs == expected.pairs
    assert [(g.ids, g.weakest, g.link) for g in found.groups] == [
        (g.ids, g.weakest, g.link) for g in expected.groups
    ]
    assert ({*found.kept} == {*expected.kept}) or "keep" not in how


def test_a_pair_has_the_score_of_a_hit_whatever_else_there_is(reranked_run):
    texts = sorted({*texts_of(60)})
    found = find_duplicates(texts, encoder=reranked_run, threshold=0)
    scores = {pair[:2]: pair.score for pair in found.pairs}
    for bounds in ({"max_distance": 0.4}, {"threshold": 0.6}):
        some = find_duplicates(texts, encoder=reranked_run, **bounds).pairs
        assert [scores[pair[:2]] for pair in some] == pytest.approx([p.score for p in some])
    retriever = Retriever.build(texts, encoder=reranked_run)
    by_distance = probabilities([pair.distance for pair in found.pairs])
    assert [*scores.values()] != pytest.approx(by_distance, abs=0.01)
    for (one, other), score in [*scores.items()][:20]:
        assert retriever.explain(texts[other], texts[one]).score == pytest.approx(score)
        alone = Retriever.build([texts[one]], encoder=reranked_run)
        for rerank in (None, False):
            (hit,) = alone.search(texts[other], rerank=rerank, min_score=0)[0]
            assert hit.score == pytest.approx(score)


TABLE = pd.DataFrame(
    {
        "key": ["a", "7", "c", "d", "e"],
        "question": ["learn python", "LEARN PYTHON", "learn python", "cook rice", "Learn Python"],
        "product": ["x", "x", "y", "y", None],
        "votes": [3, 20, 5, 1, 9],
        "note": ["", "n/a", "10", "9", None],
    }
)


def test_the_row_that_stays(run):
    table = TABLE.set_index("key")
    kept_by = {"first": "a", "longest": "7", "max:votes": "7", "max:note": "c"}
    for keep, kept in kept_by.items():
        found = find_duplicates(TABLE, encoder=run, threshold=0.9, id_column="key", keep=keep)
        (group,) = found.groups
        assert (group.ids, group.kept) == (["7", "a", "c", "e"], kept)
        assert {*found.kept} == {kept, "d"}
        row = found.to_pandas("deduplicated").set_index("key").loc[kept]
        assert (row["votes"], row["rows"]) == (table.loc[kept, "votes"], 4)
        assert found.to_pandas("groups")["kept"].sum() == 1


def test_tables_keep_their_columns(run):
    """Names, order, types, and the index of pandas; columns that are added come last."""
    days = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    texts = ["learn python", "Learn python?", "cook rice"]
    columns = {"day": days, "Betreff Text": texts, "rows": pd.Categorical(["a", "b", "a"])}
    table = pd.DataFrame(columns | {"date": days.date}, index=["x", "y", "z"])
    how = {"encoder": run, "threshold": 0.9, "text_column": "Betreff Text"}
    found = find_duplicates(table, **how)
    kept = found.to_pandas("deduplicated")
    assert kept[[*table]].equals(table.iloc[[0, 2]])
    assert kept[[*kept][4:]].to_dict("list") == {"id": ["x", "z"], "qpr_rows": [2, 1]}
    assert found.to_pandas("groups")[[*table]].equals(table.iloc[[0, 1]])
    table = polars.from_pandas(table)
    kept = polars.from_arrow(find_duplicates(table, **how).to_arrow("deduplicated"))
    assert kept[table.columns].equals(table[[0, 2]])
    assert kept[table.columns].schema == table.schema


def test_columns_that_are_added_have_names_of_their_own(run):
    table = pd.DataFrame({"question": ["a", "a"], "rows": [1, 2], "qpr_rows": [3, 4]})
    (kept,) = find_duplicates(table, encoder=run, threshold=0.9).to_dicts("deduplicated")
    assert kept == {"question": "a", "rows": 1, "qpr_rows": 3, "id": 0, "qpr_qpr_rows": 2}


def test_the_central_row_is_nearest_to_the_mean(run):
    texts = texts_of(12)
    found = find_duplicates(texts, encoder=run, threshold=0, keep="central", groups="closure")
    vectors = Retriever.build(["a"], encoder=run).encode(texts).astype(np.float64)
    distances = ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1)
    assert found.groups[0].kept == distances.argmin()


def test_only_rows_of_one_block_are_compared(run):
    how = {"encoder": run, "threshold": 0.9, "id_column": "key", "block_on": "product"}
    assert sets_of(find_duplicates(TABLE, **how)) == {frozenset({"a", "7"})}
    assert sets_of(find_duplicates(TABLE, payload=["product"], **how)) == {frozenset({"a", "7"})}
    with pytest.raises(UserError, match="`block_on`: expected a column `product` that is kept"):
        find_duplicates(TABLE, payload=False, **how)


def test_values_that_print_alike_are_one_block(run):
    values = [1, "1", 1.0, None, "", float("nan"), " ", "1.5", 1.5, True, "1.0", "01"]
    table = [{"id": i, "text": "learn python", "shop": v} for i, v in enumerate(values)]
    how = {"encoder": run, "threshold": 0.9, "block_on": "shop"}
    found = find_duplicates(table, **how)
    assert sets_of(found) == {frozenset({0, 1, 2, 10}), frozenset({7, 8})}
    assert len(found.pairs) == 4
    assert len(find_duplicates(table[:6], against=table[5:9], **how).pairs) == 0
    across = find_duplicates(table[:6], against=table[1:], **how)
    assert {p[:2] for p in across.pairs} == {(i, 1) for i in range(3)}


def test_wrong_arguments(run):
    check_refused(
        lambda questions, how: find_duplicates([*questions], encoder=run, **how),
        ("ab", {"threshold": 1.5}, "^`threshold`: expected a score, 0 to 1, got 1.5"),
        ("ab", {"threshold": np.True_}, "^`threshold`: expected a score"),
        ("ab", {"max_distance": -1}, "^`max_distance`: expected a squared distance of 0 or more"),
        ("ab", {"groups": "average"}, "^`groups`: expected one of complete, closure, got 'averag"),
        (["a", 3], {}, "^`questions`: .*position 1"),
    )
    for texts in ([], ["one"], ["one", "another python"]):
        found = find_duplicates(texts, encoder=run, max_distance=0)
        assert (len(found.pairs), len(found.groups), found.kept) == (0, 0, [*range(len(texts))])
        for name in ("pairs", "groups", "deduplicated"):
            count = len(found.to_dicts(name))
            assert len(found.to_pandas(name)) == found.to_arrow(name).num_rows == count
        with pytest.raises(UserError, match="expected one of pairs, groups, dedup"):
            found.to_dicts("rows")


def test_an_encoder_is_an_object_or_a_folder(run):
    texts = texts_of(20)
    alone = find_duplicates(texts, encoder=read_encoder(run), max_distance=0.5)
    found = find_duplicates(texts, encoder=run, max_distance=0.5)
    ends = [sorted(pair[:2] for pair in pairs) for pairs in (alone, found)]
    assert ends[0] == ends[1] != []
    assert alone.model == general_model(read_encoder(run)) != found.model  # the folder has one


def test_it_prints(run):
    texts = ["learn python", "Learn\x1b Python\u202e", "cook rice"]
    found = find_duplicates([*texts, "LEARN python"], encoder=run, max_distance=0.5)
    assert repr(found).splitlines()[0] == "<Pairs: 2 pairs and 1 group in 4 rows>"
    assert not {"\x1b", "\u202e"} & {*repr(found)}


def test_of_equal_scores_the_nearest_pair_is_the_strongest():
    first, second = np.arange(3), np.arange(3, 6)
    pairs = Pairs(first, second, np.array([0.3, 0.1, 0.2], np.float32))
    assert _strongest_first(pairs, np.array([0.5, 0.5, 0.9])).tolist() == [2, 1, 0]
