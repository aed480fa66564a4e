"""Commands that list the presets and the settings of a training: presets, settings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import click

from qpr_jax.cli.command import Command, Output
from qpr_jax.cli.completion import complete_config, complete_presets, complete_setting_name
from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.describe import select, setting_rows, settings_text, settings_toml, toml_value
from qpr_jax.training.overrides import load_config
from qpr_jax.training.presets import PRESETS, preset_scores

_FOOTER = """
H@1 and MRR: test queries among all questions of the preset's data. Minutes: the whole training on
2 cores of an AMD EPYC (quora_best and openqa_sdml: one core). `qpr presets NAME` prints the
settings of a preset, `qpr train RUN --config NAME` trains it.
"""


@click.command(cls=Command, stopped="nothing was changed")
@click.argument("names", nargs=-1, shell_complete=complete_presets)
def presets(names: tuple[str, ...]) -> Output:
    """List the presets of `qpr train`: quality, speed, time to train.

    With NAMES, print all that is known of these presets, and the settings that they change.

    Example: qpr presets quora_best
    """
    scores = preset_scores()
    for name in names:
        if name not in scores:
            raise UserError(
                f"expected a preset, got {name!r}",
                setting="names",
                remedy="`qpr presets` lists them all",
            )
    chosen = {name: scores[name] for name in names or scores}
    rows = [{"name": name, **facts, "settings": PRESETS[name]} for name, facts in chosen.items()]
    if names:
        text = "\n".join(_line(name, chosen[name]) + _settings(name) for name in chosen)
    else:
        text = "".join(_line(name, facts) for name, facts in chosen.items()) + _FOOTER
    return Output(text, rows)


@click.command(cls=Command, stopped="nothing was changed")
@click.argument("names", nargs=-1, shell_complete=complete_setting_name)
@click.option(
    "--config",
    metavar="SPEC",
    shell_complete=complete_config,
    help="Values of this preset or TOML file.",
)
@click.option("--toml", is_flag=True, help="Print a TOML file with comments, for --config.")
def settings(names: tuple[str, ...], config: str | None, toml: bool) -> Output:
    """Print all settings of a training, or NAMES (settings or sections), with type and meaning.

    SPEC is as for `qpr train`. A file that --toml prints has the settings that SPEC changes, and
    all others as comments.

    \b
    Example: qpr settings loss
             qpr settings --toml --config quora_best > mine.toml
    """
    chosen = select(names)
    values = load_config(config) if config else TrainConfig()
    text = settings_toml(chosen, values) if toml else settings_text(chosen, values)
    return Output(text, [*setting_rows(chosen, values)])


def _line(name: str, facts: Mapping[str, Any]) -> str:
    """The scores and the time of a preset, and what it trains."""
    scores = f"H@1 {facts['hits_at_1']:.3f}  MRR {facts['mrr']:.3f}" if "mrr" in facts else ""
    minutes = f"{facts['minutes']:g} min" if "minutes" in facts else ""
    return f"{name:<24}{scores:<22}{minutes}".rstrip() + f"\n    {facts['summary']}\n"


def _settings(name: str) -> str:
    """The settings that a preset changes, wrapped."""
    changes = (f"{key}={toml_value(value)}" for key, value in PRESETS[name].items())
    text = "settings: " + (", ".join(changes) or "the defaults")
    lines = textwrap.wrap(
        text, 96, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"
