import io
import sys

from qpr_jax import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    """Make standard error a terminal, for one test; pytest undoes this between fixture and test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    return terminal


def test_without_a_terminal_progress_is_lines_with_the_time_left(caplog):
    caplog.set_level("INFO", logger="qpr_jax")
    with progress.bar("step", 100, start=10, interval=0.0) as show:
        show(10, "loss 2")
        show(20, "loss 1")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("step 20 of at most 100, loss 1, at most 0 min left")


def test_without_a_terminal_a_count_is_lines(caplog, monkeypatch):
    caplog.set_level("INFO", logger="qpr_jax")
    monkeypatch.setattr(progress, "COUNT_INTERVAL", 0.0)
    assert list(progress.count("abc", "read")) == ["a", "b", "c"]
    assert caplog.messages == ["read: 1", "read: 2", "read: 3"]


def test_a_terminal_shows_bars(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    caplog.set_level("INFO", logger="qpr_jax")
    assert list(progress.count("abc", "read")) == ["a", "b", "c"]
    assert "read" in terminal.getvalue()
    with progress.bar("step", 100, start=10) as show:
        show(20, "loss 1")
    for text in ("step", "20/100", "loss 1"):
        assert text in terminal.getvalue()
    assert not caplog.messages


def test_nothing_is_shown_where_another_process_shows_it(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with progress.bar("step", 100, shown=False) as show:
        show(20, "loss 1")
    assert not terminal.getvalue()
