"""Publish a run: its encoder and model of pairs as a folder, with a model card."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import shlex
from collections.abc import Mapping
from typing import Any

import jinja2
from markupsafe import Markup

from qpr_jax import __version__
from qpr_jax.encoders import load
from qpr_jax.encoders.encoder import CARD, Encoder
from qpr_jax.encoders.load import encoder_folder, save_encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.scores import RESAMPLES, SCORE_NAMES, rank_scores, read_ranks
from qpr_jax.files import MANIFEST, StrPath, read_object, refuse_existing
from qpr_jax.locations import FittedModel, model_facts, read_encoder_and_model, save_pair_model

# Control characters but the tab and the line ends, which Markdown reads as blanks.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
# How the names of known files of translations begin, and their terms.
_TERMS = {
    "multi30k": "Multi30k: for research only",
    "tatoeba": "Tatoeba: CC BY 2.0 FR",
    "wiktionary": "Wiktionary: CC BY-SA",
}
# Settings of training on pairs that the card quotes.
_PAIR_SETTINGS = ("loss.names", "batch_size", "seed")
_MEANS = {"pair": "pairs", "query": "queries"}
_SPLITS = {"validation": "validation, which chose among checkpoints", "test": "test"}


def publish(run: StrPath, folder: StrPath, *, licence: str = "", data: str = "") -> pathlib.Path:
    """Write the encoder of a run and its model card to a new folder, and return the folder.

    The folder holds all that is needed to encode, and no code: the files of the encoder, the card,
    a manifest with their hashes, and the model of pairs in a sub-folder.

    Args:
      run: a finished run; or a folder with only an encoder, whose card then has no scores.
      folder: its name becomes the name of the model.
      licence: license of the weights, an identifier such as apache-2.0.
      data: the training data and its terms, in a sentence or two; Markdown in it is shown as it is.
    """
    path, source = pathlib.Path(folder), encoder_folder(run)
    refuse_existing(path, option="to")
    if (source / "run.json").is_file() and not (source / "report.json").is_file():
        what = f"{source}: expected a finished run, got one without a report"
        raise UserError(what, remedy="resume it with the command that started it")
    if (name := path.resolve().name) == load.MINILM or not name.isprintable():
        what = f"expected printable characters, and another name than {load.MINILM}, got {name!r}"
        raise UserError(f"{what}; the name of the folder is the name of the model", setting="to")
    encoder, model = read_encoder_and_model(source)
    card = model_card(name, encoder, source, model, licence=licence, data=data)
    save_encoder(path, encoder, card=card, also=lambda part: save_pair_model(part, model))
    return path


def model_card(
    name: str,
    encoder: Encoder,
    run: pathlib.Path,
    model: FittedModel,
    *,
    licence: str,
    data: str,
) -> str:
    """Return the text of a model card: Markdown, with the metadata of the hub at its head.

    run: its report.json, run.json and ranks.npz are used if they are of this encoder.
    """
    report = read_object(run / "report.json")
    settings = read_object(run / "run.json")
    if report.get("encoder") != encoder.fingerprint:
        report, settings = {}, {}
    learned = encoder.settings.get("translations", {})
    files = learned.get("files", [])
    packaged, start = encoder_folder(load.STUDENT), settings.get("pretrained.fingerprint")
    inherits = load.load_encoder(packaged).fingerprint in (encoder.fingerprint, start)
    about = (packaged / CARD).read_text("utf-8").partition("## Training data\n")[2]
    languages = [learned["source_language"], *(file["language"] for file in files)] if files else []
    terms = []
    for file in files:
        known = [text for start, text in _TERMS.items() if file["name"].lower().startswith(start)]
        terms.append((file, "".join(known)))
    return render(
        "model_card.md",
        name=name,
        quoted_name=json.dumps(name, ensure_ascii=False),
        shell_name=shlex.quote(name),
        version=__version__,
        manifest=MANIFEST,
        fingerprint=encoder.fingerprint,
        dimension=encoder.dimension,
        encoder=encoder.summary(),
        licence=licence,
        quoted_licence=json.dumps(licence),
        data=data,
        inherited=about.partition("\n## ")[0].strip() if inherits else "",
        languages=list(dict.fromkeys(languages)),
        terms=terms,
        report=report,
        settings=settings,
        details=_training_details(report, settings),
        resamples=RESAMPLES,
        score_names=SCORE_NAMES,
        pair_model=model_facts(model),
        scores=_score_rows(run / "ranks.npz") if report else [],
    )


def _training_details(report: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows of the table of training data, without settings that are missing."""
    details: dict[str, Any] = {
        "it started from the encoder": settings.get("pretrained.fingerprint"),
        "teacher": settings.get("teacher.fingerprint"),
    }
    if settings.get("max_epochs"):
        details |= {name: settings.get(name) for name in _PAIR_SETTINGS}
        details["steps"] = report["timing"].get("steps", "not known")
    details |= {name: settings.get(name) for name in ("data.source", "data.sha256")}
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in details.items()
        if value not in (None, "", [])
    }


def _score_rows(path: pathlib.Path) -> list[tuple[str, str, list[str]]]:
    """Return the scores of the held-out splits with 95 % intervals of a bootstrap over clusters."""
    if not path.is_file():
        return []
    ranks = read_ranks(path)
    searches = {"exact": "", "reranked_exact": ", by score"}
    rows = []
    for split, title in _SPLITS.items():
        ranked = [search for search in searches if f"{split}_{search}" in ranks]
        for search, (over, of) in itertools.product(ranked, _MEANS.items()):
            table = rank_scores(ranks, split, search, over).T
            cells = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in table]
            rows.append((title + searches[search], of, cells))
    return rows


def render(template: str, **context: Any) -> str:
    """Render `templates/TEMPLATE`, a file of Markdown, with these variables.

    Every value that a template prints is shown as it is, whatever it contains. In a template, do
    not use filters that join or replace text (they escape it as HTML): write a loop.
    """
    return _TEMPLATES.get_template(template).render(context)


def escape_markdown(value: object) -> Markup:
    """Escape a value as one line of Markdown that shows it as it is."""
    if isinstance(value, Markup):
        return value
    text = _one_line(value)
    return Markup(_MARKDOWN.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;")))


def markdown_code(value: object) -> Markup:
    """Return a value as inline code in a cell of a Markdown table."""
    text = _one_line(value).replace("|", r"\|")
    if "`" not in text:
        return Markup(f"`{text}`")
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return Markup(f"{fence} {text} {fence}")


def _one_line(value: object) -> str:
    return _CONTROL.sub("\ufffd", re.sub(r"\s+", " ", str(value)))


_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("qpr_jax"),
    autoescape=True,  # escapes as HTML what `finalize` did not mark as escaped
    finalize=escape_markdown,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {"thousands": "{:,}".format, "code": markdown_code}
