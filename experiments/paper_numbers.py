"""The numbers of the paper's tables, and our rows beside them."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.pages import table_lines, with_interval
from experiments.scores import Scores
from qpr_jax.evaluation.bootstrap import SCORE_NAMES

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Table:
    """A table of the paper; rows are (values of the columns, our row, the paper's scores)."""

    title: str
    split: str
    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], str, Triple | None], ...]


def _losses(split: str, tl_euc: Triple, tl_ssd: Triple, sdml: Triple) -> Table:
    return Table(
        f"Loss functions, {split} set",
        split,
        ("loss", "distance"),
        (
            (("TL (Rand)", "EUC"), "tl_euc", tl_euc),
            (("TL (Rand)", "SSD"), "tl_ssd", tl_ssd),
            (("SDML", "SSD"), "sdml", sdml),
            (("TL (Hard)", "EUC"), "tl_hard_euc", None),
            (("TL (Hard)", "SSD"), "tl_hard_ssd", None),
            (("TL (Hard, to the anchor)", "SSD"), "tl_hard_anchor_ssd", None),
            (("TL (Rand), margin 5", "SSD"), "tl_ssd_margin_5", None),
            (("TL (Rand), margin 50", "SSD"), "tl_ssd_margin_50", None),
            (("SDML", "EUC"), "sdml_euc", None),
            (("SDML, distance prior", "SSD"), "distance_prior", None),
            (("BM25", ""), "bm25", None),
            (("TF-IDF", ""), "tfidf", None),
        ),
    )


TABLES = {
    1: Table(
        "Smoothing factor, validation set",
        "validation",
        ("eps",),
        (
            (("0",), "eps_0.0", (0.5568, 0.7381, 0.6217)),
            (("0.1",), "eps_0.1", (0.5901, 0.7841, 0.6591)),
            (("0.2",), "eps_0.2", (0.6030, 0.8090, 0.6762)),
            (("0.3",), "sdml", (0.6133, 0.8113, 0.6837)),
            (("0.4",), "eps_0.4", (0.6107, 0.8144, 0.6815)),
        ),
    ),
    2: Table(
        "Batch size, validation set",
        "validation",
        ("N",),
        (
            (("32",), "n_32", (0.5389, 0.7444, 0.6103)),
            (("64",), "n_64", (0.5710, 0.7726, 0.6410)),
            (("128",), "n_128", (0.6093, 0.8085, 0.6777)),
            (("256",), "n_256", (0.6112, 0.8141, 0.6833)),
            (("512",), "sdml", (0.6133, 0.8113, 0.6837)),
            (("1024",), "n_1024", (0.6081, 0.8008, 0.6764)),
        ),
    ),
    3: _losses(
        "validation",
        (0.4742, 0.6509, 0.5359),
        (0.5763, 0.7640, 0.6421),
        (0.6133, 0.8113, 0.6837),
    ),
    4: _losses(
        "test", (0.4641, 0.6523, 0.5297), (0.5507, 0.7641, 0.6265), (0.6043, 0.8179, 0.6789)
    ),
}


def _open_domain(split: str, *scores: Triple) -> Table:
    labels = [
        ("TL (Rand)", "EUC", "tl_euc"),
        ("TL (Rand)", "SSD", "tl_ssd"),
        ("TL (Hard)", "EUC", "tl_hard_euc"),
        ("TL (Hard)", "SSD", "tl_hard_ssd"),
        ("SDML", "EUC", "sdml_euc"),
        ("SDML", "SSD", "sdml"),
    ]
    return Table(
        f"Loss functions, question-answer logs, {split} set",
        split,
        ("loss", "distance"),
        tuple(
            ((loss, distance), name, triple)
            for (loss, distance, name), triple in zip(labels, scores, strict=True)
        ),
    )


OPEN_DOMAIN = {
    5: _open_domain(
        "validation",
        (0.5738, 0.7684, 0.6428),
        (0.6506, 0.8579, 0.7252),
        (0.5549, 0.7534, 0.6256),
        (0.5233, 0.7077, 0.5870),
        (0.6526, 0.8832, 0.7361),
        (0.6745, 0.8817, 0.7491),
    ),
    6: _open_domain(
        "test",
        (0.5721, 0.7695, 0.6431),
        (0.6538, 0.8610, 0.7271),
        (0.5593, 0.7593, 0.6304),
        (0.5201, 0.7095, 0.5863),
        (0.6545, 0.8846, 0.7382),
        (0.6718, 0.8830, 0.7480),
    ),
}


def paper_table(scores: Scores, number: int, table: Table, prefix: str = "") -> list[str]:
    """A table of the paper: our scores per pair, through the index, and the paper's beside them.

    prefix: of the names of our rows.
    """
    rows = []
    for labels, row, paper in table.rows:
        if prefix + row not in scores:
            continue
        cells = [*labels]
        for i, name in enumerate(SCORE_NAMES):
            record = scores.get(prefix + row, f"{table.split} {name} per pair, index")
            cells.append(with_interval(record) if record else "")
            cells.append(f"{paper[i]:.3f}" if paper else "")
        rows.append(cells)
    head = [*table.columns]
    for name in SCORE_NAMES:
        head += [name, "paper's"]
    return [f"## Table {number}: {table.title}", "", *table_lines(head, rows)] if rows else []
