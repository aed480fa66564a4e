import pytest

from qpr_jax.data.verdicts import read_verdicts
from qpr_jax.errors import UserError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_scores_and_weights_are_optional(tmp_path):
    path = write(
        tmp_path / "v.csv",
        "id1,id2,question1,question2,is_duplicate,score,weight\n1,2,a,b,1,0.75,2\n2,3,b,c,0,0.25,\n",
    )
    found = read_verdicts(path)
    assert found.labeled.questions == ["a", "b", "c"]
    assert found.labeled.pairs.tolist() == [[0, 1], [1, 2]]
    assert found.labeled.is_duplicate.tolist() == [True, False]
    assert found.scores.tolist() == [0.75, 0.25]
    assert found.weights.tolist() == [2, 1]
    lines = '{"question1": "a", "question2": "b", "is_duplicate": 1}\n'
    found = read_verdicts(write(tmp_path / "v.jsonl", lines))
    assert found.scores is None
    assert found.weights.tolist() == [1]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,b,2,0.5,1", "line 2: expected `is_duplicate` 0 or 1, got '2'"),
        ("a,b,1,1.5,1", "line 2: expected `score`, a probability, got '1.5'"),
        ("a,b,1,0.5,0", "line 2: expected `weight`, a number above 0, got '0'"),
        ("a,b,1,0.5,x", "line 2: expected `weight`, a number above 0, got 'x'"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, said):
    path = write(tmp_path / "v.csv", f"question1,question2,is_duplicate,score,weight\n{row}\n")
    with pytest.raises(UserError, match=said):
        read_verdicts(path)


def test_scores_are_of_one_calibration(tmp_path):
    path, names = tmp_path / "v.csv", "question1,question2,is_duplicate,score,calibration\n"
    found = read_verdicts(write(path, f"{names}a,b,1,0.5,0af3\nb,c,0,0.5,0af3\n"))
    assert found.scored_by == "0af3"
    with pytest.raises(UserError, match="expected scores of one `calibration`, got"):
        read_verdicts(write(path, f"{names}a,b,1,0.5,0af3\nb,c,0,0.5,\n"))


def test_other_columns_are_refused(tmp_path):
    with pytest.raises(UserError, match="expected a column `is_duplicate`"):
        read_verdicts(write(tmp_path / "v.csv", "question1,question2\na,b\n"))
    empty = write(tmp_path / "e.csv", "question1,question2,is_duplicate\n")
    with pytest.raises(UserError, match="expected verdicts, got none"):
        read_verdicts(empty)
