"""What a review says at its end: a threshold that keeps its promise, and a command that works."""

import re

import numpy as np
import pytest

from qpr_jax.cli.judging import ending
from qpr_jax.duplicates.output import INFO
from qpr_jax.duplicates.review import LABELS_FILE, open_review
from qpr_jax.files import write_json
from tests.duplicates.test_review import pair_rows, write_found


def judged(folder, label, count=60, precision=0.9, **info):
    """The lines at the end of a review of `count` pairs, and the review."""
    pairs = str(write_found(folder / "pairs.csv"))
    write_json(folder / INFO, {"files": ["pairs.csv"], **info})
    with open_review(pairs, folder / LABELS_FILE, precision=precision) as review:
        for _ in range(count):
            assert review.judge(review.current, bool(label(review.found.pairs[review.current])))
        return [*ending(review, pairs)], review


@pytest.mark.parametrize(
    ("count", "label"),
    [
        (3, lambda pair: pair.score > 0.5),
        (19, lambda pair: pair.score > 0.5),
        (40, lambda pair: pair.score > 0.9),
        (60, lambda pair: pair.score > 0.9),
        (60, lambda pair: pair.score < 0.5),
        (60, lambda pair: int(pair.id2) % 2),
        (40, lambda pair: True),
        (40, lambda pair: False),
    ],
)
def test_calibrate_is_advised_where_it_takes_the_labels(qpr, tmp_path, count, label):
    *_, step = judged(tmp_path, label, count, encoder="open_student")[0]
    status, _, said = qpr("calibrate", "open_student", LABELS_FILE, "--out", "calibrated")
    if status == 0:
        assert re.match(r"next: `qpr calibrate open_student \S+ --out \S+` fits", step)
    else:
        reason = step.split("`qpr calibrate` would refuse now: ")[1]
        assert f"error: {reason}" in said


def test_calibrate_is_not_advised_without_its_encoder(tmp_path):
    for info in ({}, {"encoder": "no/such/folder"}):
        (tmp_path / LABELS_FILE).unlink(missing_ok=True)
        assert "fits" not in judged(tmp_path, lambda pair: pair.score > 0.9, **info)[0][-1]


@pytest.mark.parametrize("precision", [0.05, 0.5, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("first_hits", [False, True])
def test_the_lowest_bound_with_the_precision_is_recommended(tmp_path, precision, first_hits):
    chance = np.random.default_rng(1).random(60)
    right = {str(i): row["score"] > chance[i] for i, row in enumerate(pair_rows())}
    info = {"first_hits": first_hits}
    lines, review = judged(tmp_path, lambda pair: right[pair.id2], 60, precision, **info)
    *_, said, _ = lines
    rows = [row.split() for row in lines[1:-2]]
    precise = [float(bound) for bound, _, _, share, *_ in rows if float(share) >= precision]
    none = re.search(rf"(?:at no threshold|from no score on) are {precision:g} of the ", said)
    assert bool(none) == (not precise)
    bounds = [float(b) for b in re.findall(r"`--(?:threshold|min-score) (\S+)`", said)] or [0.0]
    found = [(pair.score, right[pair.id2]) for pair in review.found.pairs.values()]

    def kept(bound):
        return [same for score, same in found if score >= bound]

    def f1(bound):
        return 2 * sum(kept(bound)) / (len(kept(bound)) + sum(right.values()))

    if not none:
        assert len(kept(bounds[0])) >= len(kept(min(precise)))
        assert np.mean(kept(bounds[0])) >= precision
    if none or not first_hits:  # the last one has the best F1
        assert f1(bounds[-1]) == pytest.approx(max(f1(score) for score, _ in found), abs=0.03)
