"""The examples of docs/python.md run one after the other."""

import pathlib
import re

from qpr_jax.encoders import minilm
from tests.runs import write_encoder

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "python.md"
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_examples_run(tmp_path, monkeypatch):
    """With another encoder, and without the training."""
    write_encoder(tmp_path / "run")
    monkeypatch.setattr(minilm, "minilm_folder", lambda: tmp_path / "run" / "export")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "examples"}
    for code in EXAMPLE.findall(PAGE.read_text(encoding="utf-8")):
        if "train_and_evaluate(" not in code:
            exec(compile(code, str(PAGE), "exec"), names)
