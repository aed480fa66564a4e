"""What of the data is held out of the texts that the packaged encoder learns from."""

from __future__ import annotations

import gzip
import pathlib

import pandas as pd

from qpr_jax.text.tokenizer import normalized_text


def read_log(data: pathlib.Path, name: str) -> pd.DataFrame:
    """Read the columns `question` and `answer` of a log."""
    return pd.read_json(data / "qa_logs" / f"{name}.jsonl.gz", lines=True, dtype=False)


def split_logs(data: pathlib.Path) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the rows of logs to learn from, and those held out."""
    clinc, web = (read_log(data, name) for name in ("clinc150", "webquestions"))
    held_out = clinc["answer"].isin(sorted(clinc["answer"].unique())[::3])
    learned = len(web) * 2 // 3
    return {
        "clinc150": (clinc[~held_out], clinc[held_out]),
        "webquestions": (web[:learned], web[learned:]),
    }


def scored_texts(data: pathlib.Path) -> set[str]:
    """Return the test sentences of Tatoeba, normalized."""
    texts = set[str]()
    for path in (data / "parallel").glob("tatoeba_test.*.eng.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            texts.update(map(normalized_text, file))
    return texts
