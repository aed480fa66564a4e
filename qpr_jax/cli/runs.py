"""Commands of a run: train, presets, encode, publish."""

from __future__ import annotations

import json
import logging
import os
import textwrap
from collections.abc import Mapping
from typing import Any

import click

from qpr_jax.cli import command as cli
from qpr_jax.cli.program import use_huge_pages
from qpr_jax.errors import Interrupted, UserError, counted, needs
from qpr_jax.running import with_progress
from qpr_jax.training.presets import FACTS, PRESETS, check_spec

log = logging.getLogger("qpr_jax")

_FOOTER = """
H@1 and MRR: test queries among all questions of the preset's data. Minutes: the whole training on
2 cores of an AMD EPYC (quora_best and openqa_sdml: one core). `qpr presets NAME` prints the
settings of a preset, `qpr train RUN --config NAME` trains it.
"""
_CONFIG = "A preset, or a TOML file.  [default: quora_sdml; with --encoder, fine_tune]"


@cli.command(stopped="the same command, without --overwrite, resumes {workdir}")
@cli.argument("workdir", metavar="RUN", type=cli.FOLDER)
@cli.argument("pairs", required=False, type=cli.PATH)
@cli.option("--config", metavar="SPEC", callback=cli.checked(check_spec), help=_CONFIG)
@cli.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting.")
@cli.option("--labels", type=cli.PATH, help="Train on these pairs, too (from `qpr review`).")
@cli.option("--encoder", type=cli.PATH, help="Start from this encoder: folder or name.")
@cli.option("--overwrite", is_flag=True, help="Replace the run in the folder.")
def train(
    workdir: str,
    pairs: str | None,
    config: str | None,
    changes: tuple[str, ...],
    labels: str | None,
    encoder: str | None,
    overwrite: bool,
) -> int | dict[str, Any]:
    """Train on labeled PAIRS in the folder RUN.

    Then index and score their questions. SPEC is the NAME of a preset (`qpr presets` lists them),
    NAME:smoke for a tiny run, or the path of a TOML file (`qpr presets NAME --all` prints one).
    PAIRS (question1, question2, is_duplicate) replace the data of SPEC. --set may be repeated, and
    wins over other options. The same command resumes after a kill.

    --labels adds labeled pairs to the training split, but for those of a held-out question: scores
    stay those of the same held-out pairs.

    \b
    Example: qpr train runs/synthetic --config synthetic_sdml
             qpr train runs/mine pairs.tsv --config quora_best --set batch_size=2048
             qpr train runs/mine pairs.tsv --config mine.toml
             qpr train runs/second pairs.tsv --encoder runs/mine --labels labels.csv
    """
    use_huge_pages()
    with needs("`qpr train`", ".[train]"):
        from qpr_jax.training.config import load_config, override
    named = {"data.path": pairs, "data.labels": labels}
    named |= {"data.source": pairs and "quora", "encoder.pretrained": encoder}
    preset = config or ("fine_tune" if encoder else "quora_sdml")
    settings = load_config(preset, {name: v for name, v in named.items() if v is not None})
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise click.UsageError(f"--set takes NAME=VALUE, got {change!r}")
        try:
            settings = override(settings, {name: value})
        except UserError as error:
            raise click.UsageError(f"--set: {error}") from None
    if preset == "fine_tune" and not settings.data.path:
        example = f"`qpr train {workdir} pairs.tsv --encoder {settings.encoder.pretrained}`"
        raise UserError("expected a file of pairs to train with", remedy=f"name it: {example}")
    with needs("`qpr train`", ".[train]"):
        from qpr_jax.training.run import train_and_evaluate
    try:
        report = train_and_evaluate(settings, workdir, overwrite=overwrite)
    except Interrupted as interrupted:
        return 128 + int(interrupted.args[0])
    return {"run": workdir, "report": report}


@cli.command(stopped="nothing was changed")
@cli.argument("names", nargs=-1, type=click.Choice([*PRESETS]), metavar="[NAMES]...")
@cli.option("--all", "whole", is_flag=True, help="Also print all other settings, as comments.")
def presets(names: tuple[str, ...], whole: bool) -> None:
    """List the presets of `qpr train`, or print their settings.

    With NAMES, print the settings of these presets, as TOML. A file of them is a start for settings
    of your own.

    \b
    Example: qpr presets quora_best --all > mine.toml
             qpr train runs/mine pairs.tsv --config mine.toml
    """
    if whole and not names:
        raise click.UsageError("--all goes with NAMES only")
    if cli.wants_json():
        for name in names or FACTS:
            click.echo(json.dumps({"name": name, **FACTS[name], "settings": PRESETS[name]}))
    elif names:
        click.echo("\n".join(_toml(name, whole=whole) for name in names), nl=False)
    else:
        table = "".join(_facts(name, facts) for name, facts in FACTS.items())
        click.echo(table + _FOOTER, nl=False)


def _facts(name: str, facts: Mapping[str, Any]) -> str:
    """Return the scores and the time of a preset, and what it trains."""
    scores = f"H@1 {facts['hits_at_1']:.3f}  MRR {facts['mrr']:.3f}" if "mrr" in facts else ""
    minutes = f"{facts['minutes']:g} min" if "minutes" in facts else ""
    return f"{name:<24}{scores:<22}{minutes}".rstrip() + f"\n    {facts['summary']}\n"


def _toml(name: str, *, whole: bool) -> str:
    """Return the settings of a preset as TOML, below its facts in a comment."""
    lines = [f"# {line}" for line in _facts(name, FACTS[name]).splitlines()]
    changes = PRESETS[name]
    if not whole:
        return "\n".join([*lines, *(f"{key} = {json.dumps(v)}" for key, v in changes.items()), ""])
    with needs("`qpr presets --all`", ".[train]"):
        from qpr_jax.training.config import TrainConfig, declarations, flatten
    values = flatten(TrainConfig()) | changes
    for key, field in declarations().items():
        help = textwrap.wrap(field.description or "", 98)
        mark = "" if key in changes else "# "
        lines += ["", *(f"# {line}" for line in help), f"{mark}{key} = {json.dumps(values[key])}"]
    return "\n".join(lines) + "\n"


@cli.command(stopped="the same command resumes {out}")
@cli.argument("encoder", type=cli.PATH)
@cli.argument("questions", default="-")
@cli.option("--out", type=cli.PATH, required=True, help="Output file, .npy, or folder.")
@cli.option("--spark", help="Spark master, as of `qpr clusters`; for a folder.  [default: none]")
@cli.questions_input()
def encode(
    encoder: str, questions: str, out: str, spark: str | None, read: cli.Read
) -> dict[str, Any]:
    """Write the vectors of QUESTIONS to a .npy file.

    The file has float32 [n, d], in the order of QUESTIONS. np.load(OUT, mmap_mode="r") opens it in
    NumPy. Of a folder of Parquet files, OUT is a folder of Parquet files: the same rows, with a
    column `vector`. The same command resumes after a kill.

    \b
    Example: qpr encode runs/quora_sdml questions.tsv --out vectors.npy
             qpr encode runs/quora_sdml parquet/ --out vectors/ --spark spark://host:7077
    """
    from qpr_jax.cli.encode_parquet import encode_parquet
    from qpr_jax.encoders.encoder import encode_to_file
    from qpr_jax.locations import read_encoder

    if os.path.isdir(questions):
        if read.keywords["format"] not in ("", "parquet"):
            raise click.UsageError("a folder of Parquet files does not take --format")
        rows = encode_parquet(
            questions,
            out,
            encoder,
            text_column=read.keywords["text"],
            skip_bad_rows=read.keywords["skip_bad_rows"],
            spark=spark or "",
        )
        log.info("%s: %s", out, counted(rows, "vector"))
        return {"out": out, "vectors": rows}
    if spark is not None:
        raise click.UsageError("--spark needs QUESTIONS to be a folder of Parquet files")
    model = read_encoder(encoder)
    texts = (entry.question for entry in with_progress(read([questions]), "encoded"))
    facts: dict[str, Any] = {"dimension": model.dimension, "encoder": model.fingerprint}
    rows = encode_to_file(out, texts, model.encode, **facts)
    log.info("%s: %s of %d dimensions", out, counted(rows, "vector"), model.dimension)
    return {"out": out, "vectors": rows, **facts}


@cli.command(stopped="{to} is complete or absent")
@cli.argument("run", type=cli.PATH)
@cli.option("--to", required=True, type=cli.FOLDER, help="New folder.")
@cli.option("--licence", help="License of the weights, such as apache-2.0.")
@cli.option("--data", help="The training data and its terms, in a sentence.")
def publish(run: str, to: str, licence: str | None, data: str | None) -> dict[str, Any]:
    """Write the encoder of RUN to a folder that others can load.

    The folder has the weights (safetensors), the vocabulary, the settings, their hashes, and a card
    with the scores in the report of the run and their confidence intervals. Every command that
    takes an encoder also takes the name of a published folder in $QPR_MODELS or in
    ~/.cache/qpr_jax/models.

    \b
    Example: qpr publish runs/quora_sdml --to models/quora-cnn --licence apache-2.0
             QPR_MODELS=models qpr encode quora-cnn questions.tsv --out vectors.npy
    """
    from qpr_jax.training import publishing

    path = publishing.publish(run, to, licence=licence or "", data=data or "")
    if not licence:
        log.warning("%s: its card states no license; publish it with --licence for others", path)
    log.info("%s: see its README.md", path)
    return {"folder": str(path)}
