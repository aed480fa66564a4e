"""A user's script: `mypy --strict` checks it against the installed package; see test_wheel.

Wrong uses are marked by `type: ignore`, of which mypy refuses one that is not needed.
"""

from collections.abc import Sequence

import numpy as np

import qpr_jax as qpr
from qpr_jax import Encoder, Retriever


class Lengths(Encoder):
    fingerprint = "lengths"
    dimension = 1

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        return np.array([[len(question)] for question in questions], np.float32)


def best_ids(retriever: Retriever, queries: list[str]) -> list[qpr.Id]:
    results: qpr.Results = retriever.search(queries, k=3, rerank=False)
    first: qpr.Hits = results[0]
    print(first.query, first[0].question, [hits.query for hits in results[1:]])
    return [hit.id for hits in results for hit in hits]


def main() -> None:
    encoder: Encoder = qpr.read_encoder("minilm")
    print(encoder.encode(["a"]).shape, encoder.dimension)
    index_config = qpr.IndexConfig("IVF2000,SQ8", nprobe=20)
    try:
        retriever = Retriever.build(
            ["How to cook rice?"], encoder="minilm", index_config=index_config
        )
        rows = [{"title": "How to cook rice?", "url": "https://example.com"}]
        retriever = Retriever.build(rows, ["a"], ["url"], text_column="title")
    except qpr.UserError as error:
        print(error.what, error.remedy)
        raise SystemExit(1) from error
    added: list[qpr.Id] = retriever.add(["What is rice?"], ["b"], payload=[{"url": None}])
    print(retriever.remove(added), len(retriever), best_ids(retriever, ["rice"]))
    retriever.save("my_index")
    table: qpr.Table = qpr.read_table("a.csv", id="ticket", payload=["url"])
    print(table.ids, Retriever.build(table, location="folder", encoder="minilm"))
    print(retriever.search(["rice"]).to_arrow().num_rows, qpr.__version__)
    config: qpr.TrainConfig = qpr.load_config("quora_sdml")
    print(qpr.train_and_evaluate(config, "runs/mine")["test"], qpr.losses.sdml_loss)
    qpr.register_encoder("lengths 1", lambda files: Lengths())
    print(Retriever.build(["a"], encoder=Lengths()).encode(["b"]))
    qpr.register_loss("mine", qpr.losses.ranking_loss)
    wrong: int = retriever.search(["rice"])[0][0].question  # type: ignore[assignment]
    retriever.serch(["rice"])  # type: ignore[attr-defined]
    print(qpr.Retreiver)  # type: ignore[attr-defined]
    print(wrong)
