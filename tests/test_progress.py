import io
import re
import sys
import time

import pytest

from qpr_jax import running


def next_line(caplog):
    """Wait for the next line that is logged."""
    count = len(caplog.messages)
    while len(caplog.messages) == count:
        time.sleep(0.001)
    return caplog.messages[-1]


def on_terminal(monkeypatch, term="xterm"):
    """Make standard error a terminal, for one test; pytest undoes this between fixture and test."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (100, r"step 20 of 100, loss 1, [\d,.]+ a second, [\d.]+ s left"),
        (0, r"step 20, loss 1, [\d,.]+ a second"),
    ],
)
@pytest.mark.parametrize("dumb", [False, True])
def test_without_a_terminal_progress_is_lines(monkeypatch, caplog, dumb, total, expected):
    """With rate and time left. A terminal that draws nothing gets lines, too."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    if dumb:
        on_terminal(monkeypatch, "dumb")
    caplog.set_level("INFO", logger="qpr_jax")
    assert list(running.with_progress("abc", "read")) == ["a", "b", "c"]
    assert not caplog.messages  # short work is silent
    monkeypatch.setattr(running, "LINE_INTERVAL", 0.01)
    with running.progress("step", total, start=10) as show:
        line = next_line(caplog)
        assert re.fullmatch(r"step, [\d.]+ s", line)  # also where nothing can be counted
        show(20, "loss 1")
        while "loss" not in line:
            line = next_line(caplog)
    assert re.fullmatch(expected, line)
    time.sleep(0.05)
    count = len(caplog.messages)
    time.sleep(0.05)
    assert len(caplog.messages) == count  # the end is silent


@pytest.mark.parametrize("shown", [True, False])
def test_a_terminal_shows_bars(monkeypatch, caplog, shown):
    """Unless another process shows them."""
    terminal = on_terminal(monkeypatch)
    caplog.set_level("INFO", logger="qpr_jax")
    with running.progress("step", 100, start=10, shown=shown) as show:
        show(20, "loss 1")
    for text in ("step", "20/100", "loss 1"):
        assert (text in terminal.getvalue()) == shown
    assert list(running.with_progress("abc", "read")) == ["a", "b", "c"]
    assert "read" in terminal.getvalue()
    assert not caplog.messages
