"""How programs write the settings and options that messages of the library name."""

import pytest

from qpr_jax.cli.commands import qpr
from qpr_jax.cli.spelling import command_spelling, flag_spelling
from qpr_jax.errors import UserError


@pytest.mark.parametrize(
    ("command", "name", "value", "in_main", "in_qpr"),
    [
        ("index", "skip_bad_rows", "True", "--config.data.skip_bad_rows=True", "--skip-bad-rows"),
        ("train", "skip_bad_rows", "True", *["{}data.skip_bad_rows=True"] * 2),
        ("index", "text_column", None, "--config.data.question_column", "--text-column"),
        ("clusters", "question_column", None, "--config.data.question_column", "--question"),
        ("clusters", "split_seed", None, "--config.data.split_seed", "--seed"),
        ("splits", "seed", None, "--config.seed", "--seed"),
        ("train", "seed", "3", "--config.seed=3", "--set seed=3"),
        ("splits", "out", None, "out", "--out"),
        ("errors", "split", None, "split", "--split"),
        ("errors", "data.held_out_pairs", None, *["{}data.held_out_pairs"] * 2),
        ("publish", "to", None, "to", "--to"),
        ("train", "config", "a", "--config=a", "--config a"),
        ("train", "workdir", None, "--workdir", "RUN"),
        ("train", "data.path", None, "--config.data.path", "PAIRS"),
        ("train", "max_rows", "9", *["{}data.max_rows=9"] * 2),
        ("serve", "host", "0.0.0.0", "host=0.0.0.0", "--host 0.0.0.0"),
    ],
)
def test_a_name_in_each_program(command, name, value, in_main, in_qpr):
    assert flag_spelling(name, value) == f"`{in_main.format('--config.')}`"
    assert command_spelling(qpr.commands[command])(name, value) == f"`{in_qpr.format('--set ')}`"


def test_what_a_command_lacks_is_spelled_for_the_one_that_has_it():
    spelling = command_spelling(qpr.commands["search"], others=qpr.commands.values())
    assert spelling("metric", "l2") == "`--metric l2` of `qpr index`"
    assert spelling("out", None) == ""  # of several commands
    error = UserError("bad", setting="out", remedy="correct it, name another with {out}, or wait")
    assert error.line(spelling) == "`out`: bad; correct it, or wait"
    assert UserError("bad", remedy="set {out=x}").line(spelling) == "bad; set `out=x`"


def test_a_parameter_that_was_not_given_is_spelled_as_a_setting():
    spelling = command_spelling(qpr.commands["train"], absent={"pairs"})
    assert spelling("data.path", None) == "`--set data.path`"


def test_a_command_spells_its_messages(qpr):
    status, _, stderr = qpr("splits", "pairs.tsv", "--out", "new", "--dev", "0.9", "--test", "0.5")
    assert status == 1
    assert stderr.endswith("; lower `--dev` or `--test`\n")
