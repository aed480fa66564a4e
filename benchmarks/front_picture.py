"""The first picture of README: quality on held-out Quora questions against the speed of encoding.

    python -m benchmarks.front_picture

Draws what results/ has: the scores of the studies, and the speeds of the job `encoding_presets` of
`benchmarks.all`, of one process in turns. BM25 and TF-IDF have no vectors: their speed is that of
questions into their index (`lexical_baselines`).
"""

from __future__ import annotations

import pathlib

from matplotlib.figure import Figure

from benchmarks.figure_sources import Sources, number
from experiments.measuring import ROOT
from qpr_jax.training.report import save_figure

RESULTS = ROOT / "results"
PICTURE = "quality_against_speed.png"
_LEXICAL = "distillation.rows.{}.report.test.per_query['mrr@20']"
_INTO_INDEX = "lexical_baselines.table['{}'].questions_s_into_its_index"
_ENCODED = "encoding_presets.table['{}'].questions_s_from_strings"


def _mean(study: str, row: str) -> str:
    """The expression of the mean MRR of three trainings of a row."""
    rows = ", ".join(f"{study}.rows['{row}{seed}']" for seed in ("", "-seed1", "-seed2"))
    return f"mean([{rows}].report.test.exact.per_query['mrr@20'])"


# What the picture calls it -> its MRR per query on test, by exact search, and questions a second.
POINTS = {
    "BM25": (_LEXICAL.format("bm25"), _INTO_INDEX.format("BM25 (k1 0.9, b 0.4)")),
    "TF-IDF": (_LEXICAL.format("tfidf"), _INTO_INDEX.format("TF-IDF, cosine")),
    "all-MiniLM-L6-v2": (_LEXICAL.format("minilm"), _ENCODED.format("minilm")),
    "paraphrase-MiniLM-L3-v2": (
        "public_encoders.table.paraphrase_l3.mrr_20",
        _ENCODED.format("paraphrase_l3"),
    ),
    "WordLlama": ("public_encoders.table.wordllama.mrr_20", _ENCODED.format("wordllama")),
    "quora_sdml, of the paper": (_mean("two_stages", "quora_sdml"), _ENCODED.format("quora_sdml")),
    "open_student": (
        "packaged_model.table['one stage'].mrr_20",
        _ENCODED.format("open_student"),
    ),
    "quora_distilled": (
        _mean("two_stages", "quora_distilled"),
        _ENCODED.format("quora_distilled"),
    ),
    "quora_distilled_sums": (
        _mean("distillation", "sums"),
        _ENCODED.format("quora_distilled_sums"),
    ),
}
_OURS = ("quora", "open")


def points(sources: Sources) -> dict[str, tuple[float, float]]:
    """The MRR and the questions a second of each point."""
    return {
        name: (number(score, sources.__getitem__), number(speed, sources.__getitem__))
        for name, (score, speed) in POINTS.items()
    }


def draw(found: dict[str, tuple[float, float]], path: pathlib.Path) -> None:
    """Write the picture of `points` as PNG."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axis = figure.subplots()
    for name, (score, speed) in found.items():
        own = name.startswith(_OURS)
        axis.plot(speed, score, "o", color="C0" if own else "C3")
        place = (-6, 5) if speed > 1000 else (6, 5)
        side = "right" if speed > 1000 else "left"
        how = {"xytext": place, "textcoords": "offset points", "ha": side, "fontsize": 9}
        axis.annotate(name, (speed, score), **how)
    axis.set(xscale="log", xlabel="questions a second, on 2 cores", ylabel="MRR, test questions")
    axis.grid(alpha=0.3)
    axis.margins(x=0.1, y=0.1)
    save_figure(figure, path)


def main() -> None:
    draw(points(Sources(RESULTS)), RESULTS / PICTURE)


if __name__ == "__main__":
    main()
