"""How each program writes settings and options in its messages; see `qpr_jax.errors`."""

from __future__ import annotations

import click

from qpr_jax.errors import Spelling, python_spelling

_PROGRAM_FLAGS = ("config", "workdir")  # flags of `experiments.main` that are no settings
# Names that a command has another name for, unless it has a parameter of this name.
_PARAMETERS = {"data.path": "pairs", "run": "folder"}
_SETTINGS = {"column": "data.question_column"}  # options of readers with another name in `data`


def setting_of(name: str) -> str:
    """The setting that `name` means, itself or one of `data`; "" for none."""
    from qpr_jax.training.config import declarations

    settings = (_SETTINGS.get(name, name), f"data.{name}")
    return next((setting for setting in settings if setting in declarations()), "")


def flag_spelling(name: str, value: str | None) -> str:
    """As flags of `experiments.main`: `--config.batch.encode_chunk=4096`."""
    setting = setting_of(name)
    prefix = "--" if name in _PROGRAM_FLAGS else "--config." if setting else ""
    return python_spelling(prefix + (setting or name), value)


def command_spelling(command: click.Command, toml: str = "") -> Spelling:
    """As arguments and options of a command of `qpr`: `FOLDER`, `--skip-bad-rows`.

    Settings are as `qpr train` reads them: `--set NAME=VALUE`, or lines of the file `toml`, if
    given.
    """
    parameters = {parameter.name: parameter for parameter in command.params}

    def spelling(name: str, value: str | None) -> str:
        parameter = parameters.get(name, parameters.get(_PARAMETERS.get(name, "")))
        if isinstance(parameter, click.Argument):
            return f"`{parameter.human_readable_name}`"
        if isinstance(parameter, click.Option):
            has_value = value is not None and not parameter.is_flag
            return f"`{parameter.opts[0]} {value}`" if has_value else f"`{parameter.opts[0]}`"
        setting = setting_of(name) if command.name == "train" or "." in name else ""
        if not setting:
            return python_spelling(name, value)
        if not toml:
            return python_spelling(f"--set {setting}", value)
        section, _, last = setting.rpartition(".")
        line = f"`{last}`" if value is None else f"`{last} = {_toml(value)}`"
        return f"{line} under `[{section}]` in {toml}" if section else f"{line} in {toml}"

    return spelling


def _toml(value: str) -> str:
    """A value of markup as TOML writes it."""
    if value in ("True", "False"):
        return value.lower()
    try:
        float(value)
    except ValueError:
        return f'"{value}"'
    return value
