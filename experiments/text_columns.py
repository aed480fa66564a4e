"""What a second column of texts adds: pages of help by title, by first sentence, and by both.

    python -m experiments.text_columns --sources FOLDER

Rows are the pages of LibreOffice's help, without a fifth of them. Queries are entries of its index,
which name their pages in words of their own.
"""

import argparse
import json
import pathlib
from collections import defaultdict

import numpy as np

from experiments.documentation import office_index, office_pages
from qpr_jax import Retriever
from qpr_jax.evaluation.answers import relevance_scores

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=pathlib.Path, required=True)
    sources = parser.parse_args().sources
    pages, rng, named = office_pages(sources), np.random.default_rng(0), defaultdict[str, set](set)
    kept = {path for path in pages if rng.random() < 0.8}
    for entry, path in office_index(sources):
        named[entry] |= {path} & pages.keys()
    asked = sorted(entry for entry, paths in named.items() if paths)
    relevant = {asked[i]: named[asked[i]] & kept for i in rng.permutation(len(asked))[:2_000]}
    rows = [
        {"id": path, "title": title, "text": text, "joined": f"{title}. {text}"}
        for path, (title, text) in pages.items()
        if path in kept
    ]
    for columns in (["title"], ["text"], ["joined"], ["title", "text"]):
        retriever = Retriever.build(rows, text_column=columns)
        print(json.dumps({"columns": columns, **relevance_scores(retriever.search, relevant)}))
