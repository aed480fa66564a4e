"""How each program writes settings and options in its messages; see `qpr_jax.errors`."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import click

from qpr_jax.errors import Spelling, python_spelling

_PROGRAM_FLAGS = ("config", "workdir")  # flags of `experiments.main` that are no settings
# Names that a command has another name for, the first that it has.
_PARAMETERS = {
    "data.path": ("pairs", "questions", "logs"),
    "data.synthetic_clusters": ("clusters",),
    "run": ("folder",),
}
# Options of readers with another name in `data`.
_SETTINGS = {"text_column": "data.question_column"}


def setting_of(name: str) -> str:
    """The setting that `name` means, itself or one of `data` or `index`; "" for none."""
    from qpr_jax.training.config import declarations

    settings = (_SETTINGS.get(name, name), f"data.{name}", f"index.{name}")
    return next((setting for setting in settings if setting in declarations()), "")


def flag_spelling(name: str, value: str | None) -> str:
    """As flags of `experiments.main`: `--config.batch.encode_chunk=4096`."""
    setting = setting_of(name)
    prefix = "--" if name in _PROGRAM_FLAGS else "--config." if setting else ""
    return python_spelling(prefix + (setting or name), value)


def command_spelling(
    command: click.Command,
    toml: str = "",
    *,
    absent: Collection[str] = (),
    others: Iterable[click.Command] = (),
) -> Spelling:
    """As arguments and options of a command of `qpr`: `FOLDER`, `--skip-bad-rows`.

    Settings are as `qpr train` reads them: `--set NAME=VALUE`, or lines of the file `toml`, if
    given. Parameters in `absent` are spelled as settings, as if the command had none of this name.
    What the command lacks is spelled as the option of the only one of the `others` that has it.
    """
    parameters = {p.name: p for p in command.params if p.name not in absent}

    def spelling(name: str, value: str | None) -> str:
        for known in (name, *_PARAMETERS.get(name, ())):
            if known in parameters:
                return _parameter_spelling(parameters[known], value)
        setting = setting_of(name) if command.name == "train" or "." in name else ""
        if not setting:
            having = [(other, p) for other in others for p in other.params if p.name == name]
            if len(having) != 1 or not isinstance(having[0][1], click.Option):
                return ""
            return f"{_parameter_spelling(having[0][1], value)} of `qpr {having[0][0].name}`"
        if not toml:
            return python_spelling(f"--set {setting}", value)
        section, _, last = setting.rpartition(".")
        line = f"`{last}`" if value is None else f"`{last} = {_toml(value)}`"
        return f"{line} under `[{section}]` in {toml}" if section else f"{line} in {toml}"

    return spelling


def _parameter_spelling(parameter: click.Parameter, value: str | None) -> str:
    if not isinstance(parameter, click.Option):
        return f"`{parameter.human_readable_name}`"
    has_value = value is not None and not parameter.is_flag
    return f"`{parameter.opts[0]} {value}`" if has_value else f"`{parameter.opts[0]}`"


def _toml(value: str) -> str:
    """A value of markup as TOML writes it."""
    if value in ("True", "False"):
        return value.lower()
    try:
        float(value)
    except ValueError:
        return f'"{value}"'
    return value
