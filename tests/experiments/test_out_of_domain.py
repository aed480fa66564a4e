"""The study out of domain: its sets, what a run has seen of them, its rows, its page."""

import csv
import gzip
import json

import numpy as np
import pytest

from experiments import out_of_domain as study
from experiments import question_sets, systems
from experiments.lexical import tfidf_text_search
from experiments.question_sets import Training, choose, read_set, relevance_of, training_of
from qpr_jax.data.beir import read_qrels
from qpr_jax.errors import UserError
from qpr_jax.evaluation.beir import beir_scores
from qpr_jax.files import sha256_of, write_json
from qpr_jax.index.run import run_encoder
from qpr_jax.training.sources import list_digest
from tests.runs import WORDS, write_encoder, write_reranker


def write_logs(path, rows):
    path.parent.mkdir(exist_ok=True, parents=True)
    lines = (json.dumps({"question": question, "answer": answer}) for question, answer in rows)
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.fixture(scope="module")
def data(build_once):
    """As `$QPR_DATA_DIR`: 40 questions a log, of 20 answers; 30 sentences of 15 translations."""

    def write(folder):
        rng = np.random.default_rng(0)
        texts = [f"{' '.join(rng.choice(WORDS, 4))} {i // 2}" for i in range(40)]
        for name, source in question_sets.SOURCES.items():
            if source.kind == question_sets.LOGS:
                rows = [(f"{text} {i}", f"{name} {i // 2}") for i, text in enumerate(texts)]
                write_logs(folder / source.file, rows)
        lines = [f"{text} {i}\tdeutsch {i // 2}\n" for i, text in enumerate(texts[:30])]
        path = folder / question_sets.SOURCES["tatoeba"].file
        path.parent.mkdir()
        path.write_bytes(gzip.compress("".join(lines).encode()))

    return build_once("out_of_domain_data", write)


@pytest.fixture(autouse=True)
def data_dir(data, monkeypatch):
    monkeypatch.setenv("QPR_DATA_DIR", str(data))


def test_a_set_has_each_question_once_and_no_generic_answers(tmp_path, monkeypatch):
    rows = [("Who?", "x"), ("who", "x"), ("who is it", "x"), ("is it so", "y"), ("IS IT SO", "z")]
    rows += [(f"statement {i}", "true") for i in range(question_sets.GENERIC + 1)]
    rows += [(f"small {i}", "few") for i in range(question_sets.GENERIC)]
    write_logs(tmp_path / "qa_logs" / "opentriviaqa.jsonl.gz", rows)
    monkeypatch.setenv("QPR_DATA_DIR", str(tmp_path))
    found = read_set("opentriviaqa")
    kept = [text for text in found.texts if not text.startswith("small")]
    assert [text.lower().rstrip("?") for text in kept] == ["who", "who is it"]
    assert len(found.texts) == 2 + question_sets.GENERIC
    i, j = (found.texts.index(text) for text in kept)
    assert found.relevance[i].indices.tolist() == [j]
    with pytest.raises(UserError, match=r"expected the file of `clinc150`, found none"):
        read_set("clinc150")


def test_sentences_with_a_translation_in_common_are_relevant(tmp_path, monkeypatch):
    lines = ["I win.\tIch gewinne.", "I win!\tIch siege.", "I'm winning.\tich siege!", "Go\tGeh"]
    (tmp_path / "parallel").mkdir()
    path = tmp_path / "parallel" / "tatoeba.en-de.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setenv("QPR_DATA_DIR", str(tmp_path))
    found = read_set("tatoeba")
    assert found.texts == ["I win.", "I'm winning.", "Go"]
    np.testing.assert_array_equal(found.queries, [0, 1])
    assert found.clusters[0] == found.clusters[1]


def test_labels_stay_whole_and_the_rest_is_alone():
    labels = [(f"pair {i // 2}",) for i in range(60)] + [(f"alone {i}",) for i in range(60)]
    chosen = choose(labels, 40, 0, whole=True)
    assert chosen == choose(labels, 40, 0, whole=True)
    assert len(chosen) == 40
    assert relevance_of([labels[i] for i in chosen]).nnz == 20  # ten pairs, both ways
    assert len(choose(labels, 40, 0, whole=False)) == 40
    assert choose(labels, 500, 0, whole=True) == [*range(120)]
    assert choose(labels, 500, 1, whole=True) == [*range(60, 120)]


def test_scores_worked_by_hand():
    labels = [("a",), ("a",), ("a",), ("b",), ("b",), ("c",)]
    found = question_sets.QuestionSet("clinc150", [*"uvwxyz"], relevance_of(labels), "")
    np.testing.assert_array_equal(found.queries, [0, 1, 2, 3, 4])
    hits = np.array([[1, 2, 5], [5, 0, 2], [3, 4, -1], [4, -1, -1], [-1, -1, -1]])
    scores = found.scores(hits)
    np.testing.assert_array_equal(scores["hits@1"], [1, 0, 0, 1, 0])
    second, third = 1 / np.log2(3), 1 / np.log2(4)
    expected = [1, (second + third) / (1 + second), 0, 1, 0]
    np.testing.assert_allclose(scores["ndcg@10"], expected)


def test_what_a_run_has_seen_is_read_from_its_files(tmp_path, data):
    sets = {name: read_set(name) for name in question_sets.SOURCES}
    write_json(tmp_path / "run.json", {"data.parallel.sha256": [f"a {sets['tatoeba'].sha256}"]})
    seen = training_of(tmp_path, {})
    assert [name for name in sets if seen.has_seen(sets[name])] == ["tatoeba"]
    seen = training_of(tmp_path / "none", {"data.source": "qa_logs"})
    assert [name for name in sets if not seen.has_seen(sets[name])] == ["tatoeba"]
    published = {"translations": {"files": ["en-de:tatoeba.en-de.tsv.gz"]}}
    assert training_of(tmp_path / "none", published).has_seen(sets["tatoeba"])
    assert not any(Training().has_seen(one) for one in sets.values())


def test_a_run_of_lists_has_seen_their_files(tmp_path, data):
    sets = {name: read_set(name) for name in question_sets.SOURCES}
    hashes = [sets[name].sha256 for name in ("webquestions", "clinc150")]
    write_json(tmp_path / "run.json", {"data.sha256": list_digest(hashes)})
    seen = training_of(tmp_path, {"data.source": "questions"})
    assert {n for n in sets if seen.has_seen(sets[n])} == {"webquestions", "clinc150"}
    write_json(tmp_path / "run.json", {"data.sha256": "0" * 64})
    unknown = training_of(tmp_path, {"data.source": "questions"})
    assert all(unknown.has_seen(one) for one in sets.values())
    assert sets["tatoeba"].sha256 == sha256_of(data / "parallel" / "tatoeba.en-de.tsv.gz")


def only_lexical(cache):
    return {name: lambda texts: systems.System({"one": tfidf_text_search(texts)}) for name in NAMES}


NAMES = (systems.BM25, systems.TFIDF)


def test_rows_are_scored_once_and_agree_with_qpr_evaluate(tmp_path, data, monkeypatch):
    write_encoder(tmp_path / "run")
    write_reranker(tmp_path / "run")
    write_json(tmp_path / "run" / "run.json", {"x": sha256_of(data / "qa_logs/clinc150.jsonl.gz")})
    folders = {"results": tmp_path / "results", "workdir": tmp_path / "work"}
    runs = [f"mine={tmp_path / 'run'}"]
    assert study.STUDY.run(runs=runs, **folders) == 0
    monkeypatch.setattr(study, "baselines", only_lexical)
    assert study.STUDY.run(baselines=True, **folders) == 0
    page = (tmp_path / "results" / "README.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(("| `mine` | one", "|  | two"))]
    assert len(rows) == 6  # scores and differences to BM25 and TF-IDF, of both stages
    assert all(row.split(" | ")[2] == "" for row in rows)  # trained on clinc150
    assert page.count("| BM25 | one |") == 2  # scores, and differences to TF-IDF alone

    records = [*csv.DictReader((tmp_path / "results" / "scores.csv").read_text().splitlines())]
    (first,) = (r for r in records if (r["row"], r["metric"]) == ("mine", "tatoeba ndcg@10"))
    assert first["minus"] == systems.BM25
    assert float(first["difference low"]) <= float(first["difference"])

    beir = tmp_path / "beir"
    assert study.STUDY.run(write_beir=str(beir), **folders) == 0
    assert len(read_qrels(beir / "clinc150", "test")) == 40
    encoder = run_encoder(tmp_path / "run")
    scores = beir_scores(encoder.encode, beir / "webquestions")
    kept = json.loads((tmp_path / "work/mine/scores.json").read_text())["sets"]
    assert kept["webquestions"]["one"]["ndcg@10"] == pytest.approx(scores["ndcg@10"])
    assert kept["webquestions"]["one"]["hits@1"] == pytest.approx(scores["precision@1"])
    # The numbers at the end of a question are words that the encoder does not know.
    assert kept["tatoeba"]["unknown"] == pytest.approx(2 / 6)

    monkeypatch.setattr(study, "score_row", None)
    assert study.STUDY.run(runs=runs, **folders) == 0
    write_encoder(tmp_path / "run", seed=1)
    with pytest.raises(TypeError):  # another encoder is scored again
        study.STUDY.run(runs=runs, **folders)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"runs": ["bm25=a"]}, "`runs`: expected NAME=FOLDER"),
        ({"runs": ["mine"]}, "`runs`: expected NAME=FOLDER"),
        (
            {"runs": ["mine=nowhere"]},
            "expected a run or an index, found none at nowhere",
        ),
    ],
)
def test_wrong_flags_are_refused(flags, message, tmp_path):
    with pytest.raises(UserError, match=message):
        study.STUDY.run(results=tmp_path, workdir=tmp_path / "work", **flags)
