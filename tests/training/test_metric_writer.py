import contextlib

import pytest

from qpr_jax.training.metric_writer import JsonLines, read_json_lines


def test_a_resumed_file_holds_each_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path, resume_at=0)
    lines.write([{"step": step, "loss": 0.5} for step in range(1, 6)])
    lines.close()
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')  # cut off by a kill
    lines = JsonLines(path, resume_at=3)
    lines.write([{"step": 4, "loss": 0.25}])
    lines.close()
    assert [(row["step"], row["loss"]) for row in read_json_lines(path)] == [
        (1, 0.5),
        (2, 0.5),
        (3, 0.5),
        (4, 0.25),
    ]


def test_a_file_that_is_not_there_has_no_rows(tmp_path):
    assert read_json_lines(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("rows", [[], [{"step": 1}]])
def test_nothing_is_lost_on_reopening_at_the_last_step(tmp_path, rows):
    path = tmp_path / "metrics.jsonl"
    for resume_at in (0, 1):
        lines = JsonLines(path, resume_at=resume_at)
        lines.write(rows if resume_at == 0 else [])
        lines.close()
    assert read_json_lines(path) == rows


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def no_space(_):
        raise OSError(28, "No space left on device")

    lines = JsonLines(tmp_path / "lines.jsonl", resume_at=0)
    monkeypatch.setattr("os.fsync", no_space)
    with (
        contextlib.closing(lines),
        pytest.raises(OSError, match=r"No space left on device: .*/lines\.jsonl'"),
    ):
        lines.write([{"step": 1}])
