"""The command `train` as a user meets it."""

import os
import subprocess
import sys

import pytest

from qpr_jax import Retriever
from tests.xla import QUICK_XLA


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_sise = 3", "there is no setting `batch_sise`; did you mean `batch_size`?"),
        ("batch_size = 'x'", "`batch_size` in mine.toml: expected int, as 512, got 'x'"),
        (
            "[index]\nprobes = 1.5",
            "`probes` under `[index]` in mine.toml: expected int, as 10, got 1.5",
        ),
        ("batch_size", "expected TOML"),
        ("batch_size = 0", "`batch_size` in mine.toml: expected at least 1, got 0"),
    ],
)
def test_settings_of_a_file(qpr, tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "pairs.tsv").write_text("")
    status, _, stderr = qpr("train", "r", "pairs.tsv", "--config", "mine.toml")
    assert status == 1
    assert message in stderr


SMALL = """
batch_size = 32
max_steps = 3
[encoder]
filters = 8
embedding_dim = 8
output_dim = 8
kernel_sizes = [1, 3]
[optimizer]
learning_rate = 1
[data]
held_out_pairs = 200
"""


def test_trained_from_a_pair_file(generated_data, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    pairs = generated_data / "quora" / "quora_duplicate_questions.tsv"
    command = [sys.executable, "-m", "qpr_jax.cli.main"]
    done = subprocess.run(
        [*command, "train", "run", str(pairs), "--config", "mine.toml"],
        env=os.environ | {"PYTHONPATH": os.getcwd(), "XLA_FLAGS": QUICK_XLA},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.md").exists()
    assert Retriever.load(tmp_path / "run").search(["how do i"], 3)[0]
