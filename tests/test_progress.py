import io
import re
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
    line = r"step 20 of at most 100, loss 1, [\d,.]+ a second, at most [\d.]+ s left"
    assert re.fullmatch(line, caplog.messages[0])


def test_without_a_terminal_a_count_is_lines(caplog, monkeypatch):
    caplog.set_level("INFO", logger="qpr_jax")
    monkeypatch.setattr(progress, "COUNT_INTERVAL", 0.0)
    assert list(progress.count("abc", "read")) == ["a", "b", "c"]
    assert [re.sub(r"[\d,.]+ a second", "", line) for line in caplog.messages] == [
        "read: 1, ",
        "read: 2, ",
        "read: 3, ",
    ]


def test_with_a_total_a_count_says_the_time_left(caplog, monkeypatch):
    caplog.set_level("INFO", logger="qpr_jax")
    monkeypatch.setattr(progress, "COUNT_INTERVAL", 0.0)
    assert list(progress.count("ab", "read", total=2)) == ["a", "b"]
    line = r"read: 2 of about 2, [\d,.]+ a second, 0.1 s left"
    assert re.fullmatch(line, caplog.messages[1])


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


COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|38|9[0-7])[;m]")


def test_a_bar_without_colors(monkeypatch):
    terminal = on_terminal(monkeypatch)
    for variable in ("", "1"):
        monkeypatch.setenv("NO_COLOR", variable)
        terminal.seek(terminal.truncate(0))
        with progress.bar("step", 100) as show:
            show(20, "loss 1")
        assert "20/100" in terminal.getvalue()
        assert bool(COLOR.search(terminal.getvalue())) is (not variable)


def test_a_terminal_that_draws_nothing_gets_lines(monkeypatch, caplog):
    terminal = on_terminal(monkeypatch)
    caplog.set_level("INFO", logger="qpr_jax")
    monkeypatch.setenv("TERM", "dumb")
    with progress.bar("step", 100, interval=0.0) as show:
        show(20, "loss 1")
    assert len(caplog.messages) == 1
    assert "20/100" not in terminal.getvalue()  # a log handler of other tests may write the line


def test_nothing_is_shown_where_another_process_shows_it(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with progress.bar("step", 100, shown=False) as show:
        show(20, "loss 1")
    assert not terminal.getvalue()
