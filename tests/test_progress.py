import io
import re
import sys
import time

import pytest

from qpr_jax import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch, term="xterm"):
    """Make standard error a terminal, for one test; pytest undoes this between fixture and test."""
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    return terminal


def wait_for_line(caplog) -> str:
    for _ in range(500):
        if caplog.messages:
            return caplog.messages[-1]
        time.sleep(0.01)
    raise AssertionError("no line came")


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (100, r"step 20 of 100, loss 1, [\d,.]+ a second, [\d.]+ s left"),
        (0, r"step 20, loss 1, [\d,.]+ a second"),
    ],
)
def test_without_a_terminal_progress_is_lines_with_rate_and_time_left(caplog, total, expected):
    caplog.set_level("INFO", logger="qpr_jax")
    with progress.bar("step", total, start=10, interval=0.02) as show:
        show(20, "loss 1")
        assert re.fullmatch(expected, wait_for_line(caplog))


def test_a_phase_that_is_not_counted_is_not_silent(caplog):
    caplog.set_level("INFO", logger="qpr_jax")
    with progress.bar("clustering", interval=0.02):
        assert re.fullmatch(r"clustering: 0\.\d s so far", wait_for_line(caplog))


def test_what_is_counted_comes_through_and_short_work_is_silent(caplog):
    caplog.set_level("INFO", logger="qpr_jax")
    assert list(progress.count("abc", "read")) == ["a", "b", "c"]
    assert not caplog.messages


def test_a_terminal_shows_bars(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    caplog.set_level("INFO", logger="qpr_jax")
    assert list(progress.count("abc", "read")) == ["a", "b", "c"]
    with progress.bar("step", 100, start=10) as show:
        show(20, "loss 1")
    for text in ("read", "step", "20/100", "loss 1"):
        assert text in terminal.getvalue()
    assert not caplog.messages


def test_a_terminal_that_draws_nothing_gets_lines(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch, "dumb")
    caplog.set_level("INFO", logger="qpr_jax")
    with progress.bar("step", 100, interval=0.02) as show:
        show(20, "loss 1")
        wait_for_line(caplog)
    assert "20/100" not in terminal.getvalue()  # a log handler of other tests may write the line


def test_nothing_is_shown_where_another_process_shows_it(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with progress.bar("step", 100, shown=False) as show:
        show(20, "loss 1")
    assert not terminal.getvalue()


def test_durations_and_rates():
    seconds = (0, 4.24, 40.2, 171, 12_000)
    texts = ["0.1 s", "4.2 s", "40 s", "2 min 51 s", "3 h 20 min"]
    assert [*map(progress.duration, seconds)] == texts
    assert [*map(progress.rounded, (1.52, 15.6, 16_432))] == ["1.5", "16", "16,000"]
