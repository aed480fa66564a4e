import re

import pytest

from qpr_jax.amounts import duration, rounded, size
from qpr_jax.costs import estimate
from qpr_jax.costs.estimate import Estimate, Stopwatch, disk_of, fits, free_disk, refuse
from qpr_jax.errors import UserError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.04, "0.1 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 0 s")),
        *((171, "2 min 51 s"), (599.7, "10 min"), (3580, "1 h 0 min"), (12_000, "3 h 20 min")),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sizes_and_rates():
    assert [size(n) for n in (0, 3e3, 41e6, 949e6, 951e6, 1.24e9)] == [
        *("0 KB", "3 KB", "41 MB", "949 MB", "1.0 GB", "1.2 GB")
    ]
    assert [rounded(n) for n in (0.12, 9.94, 41, 162, 16_400)] == [
        *("0.1", "9.9", "41", "160", "16,000")
    ]


def test_the_line_of_an_estimate():
    found = Estimate(171, 1_200_000_000, 700_000_000, 2_000_000, rate=16_100.0, exact=False)
    assert found.line() == (
        "about 2 min 51 s, 1.2 GB memory, 0.7 GB disk; about 2,000,000 questions, 16,000 a second"
    ).replace("0.7 GB", "700 MB")


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "held_memory", lambda: 10**9)
    monkeypatch.setattr(estimate, "available_memory", lambda: 2 * 10**9)
    monkeypatch.setattr(estimate, "free_disk", lambda path: 10**9)
    assert fits(Estimate(1, 3 * 10**9, 10**9), tmp_path)
    for memory, disk, kind in ((4, 0, "3.0 GB of free memory, got 2.0"), (3, 2, "2.0 GB of free")):
        found = Estimate(1, memory * 10**9, disk * 10**9, 1000)
        assert not fits(found, tmp_path)
        with pytest.raises(UserError, match=f"1,000 questions: expected {kind}"):
            refuse(found, tmp_path, remedy="give fewer {questions}")


def test_the_disk_of_a_path_that_is_not_there_yet(tmp_path):
    assert free_disk(tmp_path / "a" / "b") == pytest.approx(free_disk(tmp_path), rel=0.01)
    assert disk_of(tmp_path / "a") == 0


def test_what_a_command_took(tmp_path):
    (tmp_path / "old").write_bytes(bytes(3_000_000))
    watch = Stopwatch(tmp_path)
    (tmp_path / "new").write_bytes(bytes(7_000_000))
    assert re.fullmatch(r"took [\d.]+ s, [\d.]+ [MG]B memory, 7 MB disk", watch.line())
