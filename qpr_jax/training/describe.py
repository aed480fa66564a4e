"""The settings in words: for the page of settings, and for `qpr settings`. Loads no JAX."""

from __future__ import annotations

import json
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qpr_jax.training.config import TrainConfig, declarations, flatten, read
from qpr_jax.training.declaration import Setting
from qpr_jax.training.overrides import require_name

# Choices that a registry has and the declaration has not; written out, since the registries load
# JAX. A test holds that they are equal.
CHOICES = {
    "data.source": ("quora", "qa_logs", "questions", "synthetic"),
    "encoder.kind": ("cnn", "bert"),
    "loss.names": ("sdml", "triplet", "ranking", "contrastive", "online_contrastive"),
}


def choices(name: str) -> Sequence[str]:
    """The values that the setting may have; empty where there is no list of them."""
    return CHOICES.get(name, declarations()[name][0].choices)


def type_word(kind: Any) -> str:
    """`int`, or `int, several`."""
    several = typing.get_origin(kind) is tuple
    word = (typing.get_args(kind)[0] if several else kind).__name__
    return f"{word}, several" if several else word


def bounds(setting: Setting) -> str:
    """`at least 0, or -1`; empty where every value is allowed."""
    limits = (
        ("at least", setting.min),
        ("more than", setting.above),
        ("at most", setting.max),
        ("less than", setting.below),
    )
    texts = [f"{word} {bound:g}" for word, bound in limits if bound is not None]
    if setting.unset is not None:
        texts.append(f"or {setting.unset:g}")
    return ", ".join(texts)


def section_help(section: str) -> str:
    """What the settings of a section are about, a sentence."""
    return str(type(read(TrainConfig(), section)).__doc__)


def select(names: Iterable[str]) -> list[str]:
    """The settings of these names and sections, in the order of the declarations; of none, all.

    UserError for a name that is neither.
    """
    given, sections = [*names], {name.partition(".")[0] for name in declarations() if "." in name}
    for name in given:
        if name not in sections:
            require_name(name)
    return [
        name
        for name in declarations()
        if not given or name in given or name.partition(".")[0] in sections.intersection(given)
    ]


def setting_rows(names: Iterable[str], config: TrainConfig) -> Iterator[dict[str, Any]]:
    """The facts of settings, for JSON; `value` is that of `config`."""
    defaults, values = flatten(TrainConfig()), flatten(config)
    for name in names:
        setting, kind = declarations()[name]
        yield {
            "name": name,
            "type": type_word(kind),
            "default": defaults[name],
            "value": values[name],
            "choices": [*choices(name)],
            "bounds": bounds(setting),
            "help": setting.help,
            "may_change_on_resume": not setting.result,
        }


def settings_text(names: Iterable[str], config: TrainConfig) -> str:
    """Settings with their type, value and meaning, three lines or so each."""
    lines = []
    for row in setting_rows(names, config):
        changed = f"  (default: {toml_value(row['default'])})" * (row["value"] != row["default"])
        lines.append(f"{row['name']} = {toml_value(row['value'])}{changed}")
        lines += _wrapped(f"{row['help']} ({_kind(row)})", "    ")
    return "\n".join(lines) + "\n"


def settings_toml(names: Sequence[str], config: TrainConfig) -> str:
    """A TOML file of settings: those that differ from the defaults, the others as comments."""
    lines = [
        "# Settings of a training: qpr train RUN PAIRS --config THIS_FILE",
        "# A line that begins with # shows a default; remove the # and change the value.",
    ]
    section = ""
    for row in setting_rows(names, config):
        here, _, last = row["name"].rpartition(".")
        if here != section:
            lines += ["", "", *_wrapped(section_help(here), "# "), f"[{here}]"]
            section = here
        is_default = row["value"] == row["default"]
        lines += ["", *_wrapped(f"{row['help']} ({_kind(row)})", "# ")]
        lines.append(f"{'# ' * is_default}{last} = {toml_value(row['value'])}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value of a setting as TOML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _kind(row: Mapping[str, Any]) -> str:
    return ", ".join(filter(None, [row["type"], row["bounds"], " | ".join(row["choices"])]))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        96,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
