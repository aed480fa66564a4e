"""How programs write the options that messages of the library name."""

import pytest

from qpr_jax.cli.main import qpr
from qpr_jax.cli.spelling import OPTIONS, flag_spelling, qpr_spelling, train_spelling
from qpr_jax.training.config import TrainConfig, flatten


def test_every_option_is_one_of_qpr_and_every_setting_one_of_a_training():
    names = {
        name
        for command in qpr.commands.values()
        for parameter in command.params
        for name in (*parameter.opts, parameter.human_readable_name)
    }
    assert {option.flag for option in OPTIONS.values() if option.flag} <= names
    settings = {option.setting for option in OPTIONS.values() if option.setting}
    assert settings - {"config", "workdir"} <= flatten(TrainConfig()).keys()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "skip_bad_rows",
            "True",
            (
                "--config.data.skip_bad_rows=True",
                "--skip-bad-rows",
                "--set data.skip_bad_rows=True",
            ),
        ),
        ("out", None, ("--out", "--out", "--out")),
        ("config", "a", ("--config=a", "--config a", "--config a")),
        ("data.path", None, ("--config.data.path", "PAIRS", "PAIRS")),
        ("max_rows", "9", ("--config.data.max_rows=9", *["--set data.max_rows=9"] * 2)),
        ("split", None, ("--split", "--split", "--split")),
    ],
)
def test_an_option_in_each_program(name, value, expected):
    spellings = (flag_spelling, qpr_spelling, train_spelling(""))
    assert tuple(spelling(name, value) for spelling in spellings) == tuple(
        f"`{text}`" for text in expected
    )
