"""A run as a folder for others: its encoder, and a card that says what it is and what it can do."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

from qpr_jax import __version__
from qpr_jax.encoders.exported import ExportedEncoder
from qpr_jax.encoders.folders import Encoder
from qpr_jax.encoders.published import CARD, write_published
from qpr_jax.encoders.transformer import TransformerEncoder
from qpr_jax.errors import UserError
from qpr_jax.files import MANIFEST, Path, read_json, refuse_existing
from qpr_jax.retrieval.bootstrap import METRICS, RESAMPLES, Scores
from qpr_jax.retriever import run_encoder

SPLITS = ("validation", "test")
# Settings of a run that a reader of its card asks for first.
_TOLD = (
    *("data.source", "data.sha256", "data.unlabelled.sha256", "pretrained.identity"),
    *("teacher.identity", "loss", "batch_size", "max_epochs", "seed"),
)


def publish(run: Path, folder: Path, *, licence: str = "", data: str = "") -> pathlib.Path:
    """Write the encoder of a run, and its card, to a new folder; the folder.

    The folder holds all that is needed to encode, and nothing that would be run. A convolutional
    encoder is written as `encoders.published` says, a transformer as sentence-transformers does.

    Args:
      run: of a training; or a folder of an encoder alone, whose card then has no scores.
      licence: of the weights, an identifier as apache-2.0.
      data: what the encoder was trained on, and under which terms, in a sentence or two.
    """
    path = pathlib.Path(folder)
    refuse_existing(path, flag="--to")
    encoder = run_encoder(run)
    card = model_card(path.resolve().name, encoder, pathlib.Path(run), licence=licence, data=data)
    if isinstance(encoder, ExportedEncoder):
        write_published(path, encoder, card)
    elif isinstance(encoder, TransformerEncoder):
        files = encoder.files | {CARD: card.encode()}
        dataclasses.replace(encoder, files=files).save(path)
    else:
        raise UserError(f"{run}: expected an encoder of this package, got {type(encoder).__name__}")
    return path


def model_card(
    name: str, encoder: Encoder, run: pathlib.Path, *, licence: str = "", data: str = ""
) -> str:
    """The text of a card, in Markdown, with what the hub reads at its head."""
    report = run / "report.json"
    found = read_json(report) if report.is_file() else {}
    facts = read_json(run / "run.json") if (run / "run.json").is_file() else {}
    head = ["---", "library_name: qpr_jax", "pipeline_tag: sentence-similarity"]
    head += [f"license: {json.dumps(licence)}"] if licence else []
    return "\n".join(
        [
            *head,
            "tags: [question-retrieval, paraphrase, sentence-similarity]",
            "---",
            "",
            f"# {name}",
            "",
            f"Gives a question {encoder.dimension} numbers; questions that mean the same lie close "
            "together, by Euclidean distance.",
            f"{_kind(encoder)} Made with qpr_jax {__version__}.",
            "",
            *_use(name),
            *_data(found, facts, data),
            *_scores(run, found),
            *_limits(encoder),
            "## Licence",
            "",
            f"Of the weights: {licence}."
            if licence
            else "Of the weights: not stated; ask whoever published them, and mind the terms of "
            "the data.",
            "",
            "## Files",
            "",
            f"{MANIFEST} has the size and the SHA-256 of each file, which are checked when it is "
            "loaded. Nothing in",
            "the folder is run.",
            f"The encoder's identity, by content, is `{encoder.identity}`.",
            "",
        ]
    )


def _kind(encoder: Encoder) -> str:
    if isinstance(encoder, ExportedEncoder):
        windows = [str(len(kernel)) for kernel in encoder.kernels]
        filters = sum(kernel.shape[2] for kernel in encoder.kernels)
        return (
            f"A convolutional encoder (windows of {', '.join(windows)} words, {filters:,} filters, "
            f"embeddings of {encoder.embedding.shape[1]}) that needs no accelerator."
        )
    return "A transformer of the BERT family, in the format of sentence-transformers."


def _use(name: str) -> list[str]:
    return [
        "## Use",
        "",
        "Put this folder into `$QPR_MODELS`, or into `~/.cache/qpr_jax/models`, then:",
        "",
        "```python",
        "from qpr_jax import Retriever",
        "",
        f'retriever = Retriever.load("{name}")  # or the folder, wherever it is',
        'retriever.add(["How do I learn Python?", "How do I bake bread?"])',
        'print(retriever.search(["best way to learn python"], k=1))',
        f'vectors = retriever.encode(["any question"])  # of millions: qpr index --run {name}',
        "```",
        "",
    ]


def _data(report: dict[str, Any], facts: dict[str, Any], data: str) -> list[str]:
    lines = ["## Training data", "", *([data, ""] if data else [])]
    if read := report.get("data"):
        train = read["splits"]["train"]
        lines += [
            f"{train['questions']:,} questions, {train['pairs']:,} pairs of one meaning and "
            f"{train['non_duplicates']:,} labelled otherwise; of {read['questions']:,} questions "
            "in all, the others held out.",
            "",
        ]
    told = {name: facts[name] for name in _TOLD if facts.get(name) not in (None, "")}
    if told:
        lines += ["| | |", "|---|---|", *(f"| {k} | `{v}` |" for k, v in told.items()), ""]
    if not data and not told:
        lines += ["Not stated.", ""]
    return lines


def _scores(run: pathlib.Path, report: dict[str, Any]) -> list[str]:
    """A table of the held-out splits, with the 95 % intervals of a bootstrap over clusters."""
    path = run / "ranks.npz"
    lines = ["## Scores", ""]
    if not path.is_file():
        return [*lines, "Not measured on labelled questions.", ""]
    with np.load(path, allow_pickle=False) as file:
        ranks = dict(file)
    lines += [
        f"Of held-out queries among all {report['data']['questions']:,} questions, by exact "
        f"search; in brackets the 95 % interval of {RESAMPLES:,} resamples of clusters.",
        "",
        f"| split | averaged over | {' | '.join(METRICS)} |",
        "|---" * (2 + len(METRICS)) + "|",
    ]
    for split in SPLITS:
        for over, title in (("pair", "pairs"), ("query", "queries")):
            scores = Scores({"": [ranks]}, split, over, search="exact")
            ends = scores.interval("").T
            cells = [
                f"{mean:.3f} [{low:.3f}, {high:.3f}]"
                for mean, (low, high) in zip(scores.mean(""), ends, strict=True)
            ]
            lines.append(f"| {split} | {title} | {' | '.join(cells)} |")
    return [*lines, ""]


def _limits(encoder: Encoder) -> list[str]:
    lines = ["## Limits", ""]
    if isinstance(encoder, ExportedEncoder):
        widest = max(len(kernel) for kernel in encoder.kernels)
        known = encoder.vocabulary.first_bin - 1
        lines += [
            f"- It knows {known:,} words, those of its training questions; others share "
            f"{encoder.vocabulary_size - known - 1:,} embeddings, so that rare names and numbers "
            "are easily taken for each other.",
            f"- It sees the order of words within {widest} of them, and of a question the first "
            f"{encoder.max_words:,} words.",
        ]
    return [
        *lines,
        "- It knows the language, the topics and the style of its training questions; on others, "
        "measure first (`qpr evaluate`).",
        "- The nearest question is not always one that means the same: choose a distance on "
        "labelled pairs of your own.",
        "- Distances of two encoders cannot be compared.",
        "",
    ]
