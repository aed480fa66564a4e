"""The command that lists the presets of a training: presets."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import click

from qpr_jax.cli.command import Command, Output
from qpr_jax.extras import needs
from qpr_jax.training.presets import FACTS, PRESETS

_FOOTER = """
H@1 and MRR: test queries among all questions of the preset's data. Minutes: the whole training on
2 cores of an AMD EPYC (quora_best and openqa_sdml: one core). `qpr presets NAME` prints the
settings of a preset, `qpr train RUN --config NAME` trains it.
"""


@click.command(cls=Command, stopped="nothing was changed")
@click.argument("names", nargs=-1, type=click.Choice([*PRESETS]), metavar="[NAMES]...")
@click.option("--all", "every", is_flag=True, help="Also print all other settings, as comments.")
def presets(names: tuple[str, ...], every: bool) -> Output:
    """List the presets of `qpr train`, or print their settings.

    With NAMES, print the settings of these presets, as TOML. A file of them is a start for settings
    of your own.

    \b
    Example: qpr presets quora_best --all > mine.toml
             qpr train runs/mine pairs.tsv --config mine.toml
    """
    if every and not names:
        raise click.UsageError("--all goes with NAMES only")
    chosen = {name: FACTS[name] for name in names or FACTS}
    rows = [{"name": name, **FACTS[name], "settings": PRESETS[name]} for name in chosen]
    text = "".join(_facts(name, facts) for name, facts in chosen.items()) + _FOOTER
    if names:
        text = "\n".join(_toml(name, chosen[name], every=every) for name in chosen)
    return Output(text, rows)


def _facts(name: str, facts: Mapping[str, Any]) -> str:
    """The scores and the time of a preset, and what it trains."""
    scores = f"H@1 {facts['hits_at_1']:.3f}  MRR {facts['mrr']:.3f}" if "mrr" in facts else ""
    minutes = f"{facts['minutes']:g} min" if "minutes" in facts else ""
    return f"{name:<24}{scores:<22}{minutes}".rstrip() + f"\n    {facts['summary']}\n"


def _toml(name: str, facts: Mapping[str, Any], *, every: bool) -> str:
    """The settings of a preset as TOML, below its facts in a comment."""
    lines = [f"# {line}" for line in _facts(name, facts).splitlines()]
    section = ""
    for setting, value, comment in _settings(name, every=every):
        here, _, last = setting.rpartition(".")
        if here != section:
            lines += ["", f"[{here}]"]
            section = here
        if comment:
            lines += textwrap.wrap(comment, 96, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"{'' if setting in PRESETS[name] else '# '}{last} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _settings(name: str, *, every: bool) -> Iterator[tuple[str, Any, str]]:
    """The settings that a preset changes, or all of them, with values and help, by section."""
    changes = PRESETS[name]
    if not every:  # settings without a section come first, the others stay in their order
        sections = list(dict.fromkeys(["", *(key.rpartition(".")[0] for key in changes)]))
        for key in sorted(changes, key=lambda key: sections.index(key.rpartition(".")[0])):
            yield key, changes[key], ""
        return
    with needs("`qpr presets --all`", ".[train]"):
        from qpr_jax.training.config import TrainConfig, declarations, read
    for key, field in declarations().items():
        yield key, changes.get(key, read(TrainConfig(), key)), field.description or ""


def _value(value: Any) -> str:
    """The value of a setting as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
