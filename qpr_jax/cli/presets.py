"""Commands that list the presets and the settings of a training: presets, settings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from qpr_jax.cli.command import Command, Output
from qpr_jax.cli.completion import complete_config, complete_presets, complete_setting_name
from qpr_jax.errors import UserError
from qpr_jax.training.config import TrainConfig
from qpr_jax.training.describe import select, setting_rows, settings_text, settings_toml, toml_value
from qpr_jax.training.overrides import load_config
from qpr_jax.training.preset_facts import FACTS, PresetFacts
from qpr_jax.training.presets import PRESETS

_HEADER = ("preset", "data", "H@1 / MRR", "re-ranked", "questions/s", "to train")
_FOOTER = """
H@1 and MRR: of test queries, among all questions of the preset's own data. Questions a second: from
strings to vectors. All were measured on 2 cores of an AMD EPYC, the training of quora_best and of
openqa_sdml on one. `qpr presets NAME` has the details, `qpr train RUN --config NAME` trains it.
"""


@click.command(cls=Command, stopped="nothing was changed")
@click.argument("names", nargs=-1, shell_complete=complete_presets)
def presets(names: tuple[str, ...]) -> Output:
    """List the presets of `qpr train`: quality, speed, time to train.

    With NAMES, print all that is known of these presets, and the settings that they change.

    Example: qpr presets quora_best
    """
    for name in names:
        if name not in FACTS:
            raise UserError(
                f"expected a preset, got {name!r}",
                setting="names",
                remedy="leave {names} out to see them all",
            )
    chosen = {name: FACTS[name] for name in names or FACTS}
    rows = [
        {"name": name, **asdict(facts), "settings": PRESETS[name]} for name, facts in chosen.items()
    ]
    if names:
        return Output("\n".join(_details(name, FACTS[name]) for name in chosen), rows)
    return Output(_table(chosen) + _FOOTER, rows)


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


def _scores(hits_at_1: float | None, mrr: float | None) -> str:
    return "" if mrr is None else f"{hits_at_1:.3f} / {mrr:.3f}"


def _speed(facts: PresetFacts) -> str:
    return f"{facts.questions_per_second:,}" if facts.questions_per_second else ""


def _time(facts: PresetFacts) -> str:
    if facts.minutes is None:
        return ""
    return f"{60 * facts.minutes:.0f} s" if facts.minutes < 1 else f"{facts.minutes:g} min"


def _table(chosen: Mapping[str, PresetFacts]) -> str:
    rows = [_HEADER]
    for name, facts in chosen.items():
        scores = _scores(facts.hits_at_1, facts.mrr)
        reranked = _scores(facts.reranked_hits_at_1, facts.reranked_mrr)
        rows.append((name, facts.data, scores, reranked, _speed(facts), _time(facts)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "".join(line.rstrip() + "\n" for line in lines)


def _details(name: str, facts: PresetFacts) -> str:
    figures: dict[str, Any] = {
        "data": facts.data,
        "H@1 / MRR": _scores(facts.hits_at_1, facts.mrr),
        "re-ranked": _scores(facts.reranked_hits_at_1, facts.reranked_mrr),
        "questions/s": f"{_speed(facts)} on {facts.speed_machine}" * bool(_speed(facts)),
        "to train": f"{_time(facts)} on {facts.training_machine}" * bool(_time(facts)),
        "note": facts.note,
    }
    lines = [f"{name}: {facts.summary}"]
    lines += [f"    {label}: {text}" for label, text in figures.items() if text]
    changes = (f"{key}={toml_value(value)}" for key, value in PRESETS[name].items())
    text = "settings: " + (", ".join(changes) or "the defaults")
    lines += textwrap.wrap(
        text, 96, initial_indent="    ", subsequent_indent="        ", break_on_hyphens=False
    )
    return "\n".join(lines) + "\n"
