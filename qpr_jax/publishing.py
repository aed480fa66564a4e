"""A run as a folder for others: its encoder, and a card that says what it is and what it can do."""

from __future__ import annotations

import json
import pathlib
import shlex
from typing import Any

from qpr_jax import __version__
from qpr_jax.encoders import minilm
from qpr_jax.encoders.base import Encoder, EncoderSummary
from qpr_jax.encoders.load import encoder_folder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.bootstrap import RESAMPLES, SCORE_NAMES, Scores, read_ranks
from qpr_jax.files import MANIFEST, StrPath, read_object, refuse_existing
from qpr_jax.retriever import run_encoder

# What a reader of the card is told of settings, where there were steps on pairs.
_OF_PAIRS = ("loss", "loss_weights", "loss_turns", "batch_size", "seed")
_SPLITS = {"validation": "validation, which chose among checkpoints", "test": "test"}


def publish(run: StrPath, folder: StrPath, *, licence: str = "", data: str = "") -> pathlib.Path:
    """Write the encoder of a run, and its card, to a new folder; the folder.

    The folder holds all that is needed to encode, and nothing that would be run. A convolutional
    encoder is written as `encoders.published` says, a transformer as sentence-transformers does.

    Args:
      run: a finished training; or what has an encoder alone, whose card then has no scores.
      folder: its name is the model's.
      licence: of the weights, an identifier as apache-2.0.
      data: what the encoder was trained on, and under which terms, in a sentence or two.
    """
    path, source = pathlib.Path(folder), encoder_folder(run)
    refuse_existing(path, option="to")
    if (source / "run.json").is_file() and not (source / "report.json").is_file():
        raise UserError(f"{source}: expected a finished run; the same command goes on with it")
    if (name := path.resolve().name) == minilm.NAME or not name.isprintable():
        raise UserError(
            f"`--to`: expected printable characters, and another name than {minilm.NAME}, got "
            f"{name!r}; the folder's name is the model's"
        )
    encoder = run_encoder(source)
    card = model_card(name, encoder, source, licence=licence, data=data)
    save_encoder(path, encoder, card=card)
    return path


def model_card(
    name: str, encoder: Encoder, run: pathlib.Path, *, licence: str = "", data: str = ""
) -> str:
    """The text of a card, in Markdown, with what the hub reads at its head.

    run: has the report and the ranks, which count if they are of this encoder.
    """
    report, facts = (read_object(run / file) for file in ("report.json", "run.json"))
    measured = report.get("encoder") == encoder.identity
    report, facts = (report, facts) if measured else ({}, {})
    summary = encoder.summary()
    return "\n".join(
        [
            "---",
            f"library_name: {summary.library}",
            "pipeline_tag: sentence-similarity",
            *([f"license: {json.dumps(licence)}"] if licence else []),
            "tags: [question-retrieval, paraphrase, sentence-similarity]",
            "---",
            "",
            f"# {name}",
            "",
            f"Gives a question {encoder.dimension} numbers; questions that mean the same lie close "
            "together, by Euclidean distance.",
            f"{summary.description} Published with qpr_jax {__version__}.",
            "",
            *_use(name),
            *_data(report, facts, data),
            *_scores(run / "ranks.npz", report),
            *_limits(summary),
            "## Licence",
            "",
            f"Of the weights: {licence}."
            if licence
            else "Of the weights: not stated; ask whoever published them, and mind the terms of "
            "the data, and of the model that it may have started from.",
            "",
            "## Files",
            "",
            f"{MANIFEST} has the size and the SHA-256 of each file; all that an encoder is made of "
            "are checked",
            "when it is loaded. Nothing in the folder is run.",
            f"The encoder's identity, by content, is `{encoder.identity}`.",
            "",
        ]
    )


def _use(name: str) -> list[str]:
    quoted = json.dumps(name, ensure_ascii=False)
    return [
        "## Use",
        "",
        "Put this folder into `$QPR_MODELS`, or into `~/.cache/qpr_jax/models`, then:",
        "",
        "```python",
        "from qpr_jax import Retriever",
        "",
        f"retriever = Retriever.load({quoted})  # or the folder, wherever it is",
        'retriever.add(["How do I learn Python?", "How do I bake bread?"])',
        'print(retriever.search(["best way to learn python"], k=1))',
        'vectors = retriever.encode(["any question"])  # of millions: qpr index '
        f"--run={shlex.quote(name)}",
        "```",
        "",
    ]


def _data(report: dict[str, Any], facts: dict[str, Any], data: str) -> list[str]:
    """What the encoder learned from: pairs, a teacher, or nothing here."""
    lines = ["## Training data", "", *([data, ""] if data else [])]
    if not report:
        return lines if data else [*lines, "Not stated.", ""]
    train, told = report["data"]["splits"]["train"], {}
    if facts.get("pretrained.identity"):
        told["it started from the encoder"] = facts["pretrained.identity"]
    if facts.get("teacher.identity"):
        more = report["data"]["unlabelled"]
        lines += [f"It learned a teacher's vectors of {train['questions'] + more:,} questions.", ""]
        told["teacher"] = facts["teacher.identity"]
    if facts.get("max_epochs"):
        lines += [
            f"{train['questions']:,} questions, {train['pairs']:,} pairs of one meaning and "
            f"{train['non_duplicates']:,} labelled otherwise; of {report['data']['questions']:,} "
            "questions in all, the others held out.",
            "",
        ]
        said = {name: facts[name] for name in _OF_PAIRS if name in facts}
        told |= {name: value for name, value in said.items() if value is not False and value != []}
        told["steps"] = report["timing"].get("steps", "not known")
    elif not facts.get("teacher.identity"):
        lines += ["None here: it is published as it came.", ""]
    told |= {name: facts[name] for name in ("data.source", "data.sha256") if facts.get(name)}
    return [*lines, "| | |", "|---|---|", *(f"| {k} | `{v}` |" for k, v in told.items()), ""]


def _scores(path: pathlib.Path, report: dict[str, Any]) -> list[str]:
    """A table of the held-out splits, with the 95 % intervals of a bootstrap over clusters."""
    lines = ["## Scores", ""]
    if not report or not path.is_file():
        return [*lines, "Not measured on labelled questions.", ""]
    ranks = read_ranks(path)
    lines += [
        f"Of held-out queries among all {report['data']['questions']:,} questions, by exact "
        "search; MRR of the first 20; in brackets the "
        f"95 % interval of {RESAMPLES:,} resamples of clusters.",
        "",
        f"| split | averaged over | {' | '.join(SCORE_NAMES)} |",
        "|---" * (2 + len(SCORE_NAMES)) + "|",
    ]
    for split, title in _SPLITS.items():
        for over, of in (("pair", "pairs"), ("query", "queries")):
            scores = Scores({"run": [ranks]}, split, over, search="exact")
            ends = scores.interval("run").T
            cells = [
                f"{mean:.3f} [{low:.3f}, {high:.3f}]"
                for mean, (low, high) in zip(scores.mean("run"), ends, strict=True)
            ]
            lines.append(f"| {title} | {of} | {' | '.join(cells)} |")
    return [*lines, ""]


def _limits(summary: EncoderSummary) -> list[str]:
    return [
        "## Limits",
        "",
        *(f"- {limit}" for limit in summary.limits),
        "- It knows the language, the topics and the style that it learned from; on others, "
        "measure first (`qpr evaluate`).",
        "- The nearest question is not always one that means the same: choose a distance on "
        "labelled pairs of your own.",
        "- Distances of two encoders cannot be compared.",
        "",
    ]
