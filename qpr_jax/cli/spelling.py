"""How each program writes settings and options in its messages; see `qpr_jax.errors`."""

from __future__ import annotations

from typing import NamedTuple

from qpr_jax.errors import Spelling


class Option(NamedTuple):
    """An option of readers: the flag of `qpr`, and the setting of a training, "" for none."""

    flag: str
    setting: str


# What markup in messages may name besides settings.
OPTIONS = {
    "set": Option("--set", ""),
    "config": Option("--config", "config"),
    "workdir": Option("FOLDER", "workdir"),
    "skip_bad_rows": Option("--skip-bad-rows", "data.skip_bad_rows"),
    "allowed_host": Option("--allowed-host", ""),
    "host": Option("--host", ""),
    "port": Option("--port", ""),
    "precision": Option("--precision", ""),
    "trec": Option("--trec", ""),
}
_PROGRAM_FLAGS = ("config", "workdir")


def flag_spelling(name: str, value: str | None) -> str:
    """As flags of `experiments.main`: `--config.batch.encode_chunk=4096`."""
    setting = OPTIONS[name].setting if name in OPTIONS else name
    flag = f"--{setting}" if setting in _PROGRAM_FLAGS else f"--config.{setting}"
    if name in OPTIONS and name not in _PROGRAM_FLAGS and value is None:
        value = "True" if name == "skip_bad_rows" else None
    return f"`{flag}`" if value is None else f"`{flag}={value}`"


def qpr_spelling(name: str, value: str | None) -> str:
    """As options of `qpr`: `--skip-bad-rows`, or `--set NAME=VALUE` for a setting."""
    if name in OPTIONS:
        flag = OPTIONS[name].flag
        return f"`{flag}`" if value is None else f"`{flag} {value}`"
    return f"`--set {name}`" if value is None else f"`--set {name}={value}`"


def train_spelling(toml: str) -> Spelling:
    """As `qpr train` reads settings: `--set NAME=VALUE`, or lines of the file `toml`, if given."""

    def spelling(name: str, value: str | None) -> str:
        setting = OPTIONS[name].setting if name in OPTIONS else name
        if setting in _PROGRAM_FLAGS:
            return f"`{OPTIONS[setting].flag}`"
        if not toml:
            return qpr_spelling(setting, value)
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
