"""Completion in bash, zsh and fish: the command `completion`, and what values options have."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from qpr_jax.cli.command import Command, Output

VARIABLE = "_QPR_COMPLETE"  # click completes where it is set


class _Bash(BashComplete):
    """click's, but without a space after `NAME=`."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value == *= ]] && compopt -o nospace"
    )


SHELLS = {"bash": _Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(cls=Command, stopped="nothing was changed")
@click.argument("shell", type=click.Choice([*SHELLS]))
def completion(shell: str) -> Output:
    """Print a script that completes commands, options, presets and settings in SHELL.

    \b
    Example: qpr completion bash >> ~/.bashrc
             qpr completion zsh >> ~/.zshrc
             qpr completion fish > ~/.config/fish/completions/qpr.fish
    """
    program = click.get_current_context().find_root().command
    script = SHELLS[shell](program, {}, "qpr", VARIABLE).source()
    return Output(script, [{"shell": shell, "script": script}])


def complete_config(context: object, parameter: object, text: str) -> list[CompletionItem]:
    """Presets, and files."""
    return [CompletionItem(text, type="file"), *complete_presets(context, parameter, text)]


def complete_presets(context: object, parameter: object, text: str) -> list[CompletionItem]:
    """Presets."""
    from qpr_jax.training.presets import preset_scores

    return _items({name: facts["summary"] for name, facts in preset_scores().items()}, text)


def complete_setting(context: object, parameter: object, text: str) -> list[CompletionItem]:
    """`NAME=`, and after it the values of a setting that has a list of them."""
    from qpr_jax.training.config import declarations
    from qpr_jax.training.describe import choices

    name, equals, _ = text.partition("=")
    if not equals:
        return _items({f"{name}=": s.help for name, (s, _) in declarations().items()}, text)
    if name not in declarations():
        return []
    values = ("true", "false") if declarations()[name][1] is bool else choices(name)
    return _items({f"{name}={value}": "" for value in values}, text)


def complete_setting_name(context: object, parameter: object, text: str) -> list[CompletionItem]:
    """Settings and sections."""
    from qpr_jax.training.config import declarations
    from qpr_jax.training.describe import section_help

    names = {name: setting.help for name, (setting, _) in declarations().items()}
    sections = {name.partition(".")[0] for name in names if "." in name}
    return _items({name: section_help(name) for name in sorted(sections)} | names, text)


def complete_encoder(context: object, parameter: object, text: str) -> list[CompletionItem]:
    """The packaged encoders, and folders."""
    packaged = {
        "open_student": "the small English encoder of qpr_jax",
        "minilm": "all-MiniLM-L6-v2, from a package",
    }
    return [CompletionItem(text, type="dir"), *_items(packaged, text)]


def _items(helps: dict[str, str], text: str) -> list[CompletionItem]:
    """The names that begin with `text`, each with its help."""
    return [
        CompletionItem(name, help=words or None)
        for name, words in helps.items()
        if name.startswith(text)
    ]
