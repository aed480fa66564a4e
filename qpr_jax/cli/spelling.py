"""How each program writes settings and options in its messages; see `qpr_jax.errors`."""

from __future__ import annotations

from typing import NamedTuple

from qpr_jax.errors import Spelling


class Option(NamedTuple):
    """An option that messages name: its flag of `qpr` and its setting, "" for none."""

    flag: str
    setting: str = ""


# What markup in messages may name besides settings.
OPTIONS = {
    "set": Option("--set"),
    "config": Option("--config", "config"),
    "workdir": Option("FOLDER", "workdir"),
    "data.path": Option("PAIRS", "data.path"),
    "out": Option("--out"),
    "to": Option("--to"),
    "format": Option("--format"),
    "column": Option("--column", "data.question_column"),
    "question_column": Option("--question", "data.question_column"),
    "answer_column": Option("--answer", "data.answer_column"),
    "skip_bad_rows": Option("--skip-bad-rows", "data.skip_bad_rows"),
    "max_rows": Option("", "data.max_rows"),
    "coherence": Option("--coherence", "data.coherence"),
    "min_coherence": Option("--min-coherence", "data.min_coherence"),
    "spark": Option("--spark"),
    "split": Option("--split"),
    "dev": Option("--dev"),
    "test": Option("--test"),
    "dev_queries": Option("--dev-queries"),
    "test_queries": Option("--test-queries"),
    "seed": Option("--seed", "seed"),
    "host": Option("--host"),
    "allowed_host": Option("--allowed-host"),
    "trec": Option("--trec"),
    "port": Option("--port"),
    "precision": Option("--precision"),
}
_PROGRAM_FLAGS = ("config", "workdir")
_TRAIN_ARGUMENTS = ("config", "workdir", "data.path")  # of `qpr train`, besides `--set`
_SWITCHES = ("skip_bad_rows",)  # options of `qpr` without a value; True as a setting


def flag_spelling(name: str, value: str | None) -> str:
    """As flags of `experiments.main`: `--config.batch.encode_chunk=4096`."""
    if name in OPTIONS and not OPTIONS[name].setting:
        return qpr_spelling(name, value)
    setting, value = _setting(name, value)
    flag = f"--{setting}" if setting in _PROGRAM_FLAGS else f"--config.{setting}"
    return f"`{flag}`" if value is None else f"`{flag}={value}`"


def qpr_spelling(name: str, value: str | None) -> str:
    """As options of `qpr`: `--skip-bad-rows`, or `--set NAME=VALUE` for a setting."""
    flag = OPTIONS[name].flag if name in OPTIONS else ""
    if not flag:
        return _set_spelling(*_setting(name, value))
    return f"`{flag}`" if value is None or name in _SWITCHES else f"`{flag} {value}`"


def train_spelling(toml: str) -> Spelling:
    """As `qpr train` reads settings: `--set NAME=VALUE`, or lines of the file `toml`, if given."""

    def spelling(name: str, value: str | None) -> str:
        setting, value = _setting(name, value)
        if setting in _TRAIN_ARGUMENTS or (name in OPTIONS and not OPTIONS[name].setting):
            return qpr_spelling(setting, value)
        if not toml:
            return _set_spelling(setting, value)
        section, _, last = setting.rpartition(".")
        line = f"`{last}`" if value is None else f"`{last} = {_toml(value)}`"
        return f"{line} under `[{section}]` in {toml}" if section else f"{line} in {toml}"

    return spelling


def _setting(name: str, value: str | None) -> tuple[str, str | None]:
    """The setting of an option, with its value; a setting as it is."""
    if name in _SWITCHES and value is None:
        value = "True"
    return (OPTIONS[name].setting or name, value) if name in OPTIONS else (name, value)


def _set_spelling(setting: str, value: str | None) -> str:
    return f"`--set {setting}`" if value is None else f"`--set {setting}={value}`"


def _toml(value: str) -> str:
    """A value of markup as TOML writes it."""
    if value in ("True", "False"):
        return value.lower()
    try:
        float(value)
    except ValueError:
        return f'"{value}"'
    return value
