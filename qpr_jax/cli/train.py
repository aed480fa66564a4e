"""Commands of a run: train, encode, publish."""

from __future__ import annotations

import logging
from typing import Any

import click

from qpr_jax import progress
from qpr_jax.cli.options import NamedPath, questions_input, read_input
from qpr_jax.cli.program import use_huge_pages
from qpr_jax.cli.spelling import command_spelling
from qpr_jax.errors import Interrupted, UserError, set_spelling

log = logging.getLogger("qpr_jax")


@click.command()
@click.argument("workdir", metavar="FOLDER", type=NamedPath(file_okay=False))
@click.argument("pairs", type=NamedPath())
@click.option("--config", default="quora_sdml", help="A preset, or a TOML file.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting.")
def train(workdir: str, pairs: str, config: str, changes: tuple[str, ...]) -> int:
    """Train on a file of labeled PAIRS, then index and score its questions, in FOLDER.

    PAIRS has the format of Quora's question pairs, with or without `id`. The same command resumes
    after a kill. Presets are the names of experiments/configs, NAME:smoke for a tiny run; PAIRS
    replaces their data. docs/settings.md lists the settings.

    \b
    Example: qpr train runs/mine pairs.tsv --config quora_best --set batch_size=2048
             qpr train runs/mine pairs.tsv --config mine.toml
    """
    use_huge_pages()
    set_spelling(command_spelling(train, config if config.endswith(".toml") else ""))
    from qpr_jax.training.overrides import load_config, override, parse_value

    settings = load_config(config, {"data.source": "quora", "data.path": pairs})
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise UserError(f"expected NAME=VALUE, got {change!r}", setting="changes")
        settings = override(settings, {name: parse_value(name, text)})
    from qpr_jax.training.main import train_and_evaluate

    try:
        train_and_evaluate(settings, workdir)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return 0


@click.command()
@click.argument("folder", type=NamedPath())
@click.argument("questions", default="-")
@click.option("--out", type=NamedPath(dir_okay=False), required=True, help="Output file, .npy.")
@questions_input
def encode(folder: str, questions: str, out: str, **how: Any) -> None:
    """Write the vectors of QUESTIONS, float32 [n, d] in their order, to a .npy file.

    np.load(OUT, mmap_mode="r") opens it in NumPy. The same command resumes after a kill.

    Example: qpr encode runs/quora_sdml questions.tsv --out vectors.npy
    """
    from qpr_jax.index.vectors_file import encode_to_file
    from qpr_jax.retriever import run_encoder

    encoder = run_encoder(folder)
    texts = (entry.question for entry in progress.count(read_input(questions, **how), "encoded"))
    dimension, identity = encoder.dimension, encoder.identity
    rows = encode_to_file(
        out, texts, encoder.encode, dimension=dimension, encoder=identity, log=log.info
    )
    log.info("%s: %s vectors of %d dimensions", out, f"{rows:,}", dimension)


@click.command()
@click.argument("run", type=NamedPath())
@click.option("--to", required=True, type=NamedPath(file_okay=False), help="New folder.")
@click.option("--licence", help="Of the weights: an identifier such as apache-2.0.")
@click.option("--data", help="The training data and its terms, in a sentence.")
def publish(run: str, to: str, licence: str | None, data: str | None) -> None:
    """Write the encoder of RUN and a model card to a new folder that others can load.

    The folder has the weights (safetensors), the vocabulary, the settings, their hashes, and a card
    with the scores in the report of the run and their confidence intervals. Every command that
    takes the folder of a run also takes the name of a published folder in $QPR_MODELS or in
    ~/.cache/qpr_jax/models.

    Example: qpr publish runs/quora_sdml --to models/quora-cnn --licence apache-2.0
             QPR_MODELS=models qpr encode quora-cnn questions.tsv --out vectors.npy
    """
    from qpr_jax import publishing

    path = publishing.publish(run, to, licence=licence or "", data=data or "")
    log.info("%s: see its README.md", path)
