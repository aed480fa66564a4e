"""What each filter does to real logs."""

import json
import os
import pathlib

import pytest

from qpr_jax.distant.folder import make_folder
from qpr_jax.distant.logs import Logs
from qpr_jax.distant.method import LEAST, Method
from qpr_jax.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture
def made(tmp_path):
    """Clusters of a log by a measure of coherence: (name, coherence) -> their folder."""

    def make(name, coherence):
        logs = pathlib.Path(os.environ.get("QPR_DATA_DIR", ""), "qa_logs", f"{name}.jsonl.gz")
        if not logs.is_file():
            pytest.skip(f"needs $QPR_DATA_DIR/qa_logs/{name}.jsonl.gz")
        make_folder(tmp_path / coherence, Logs((str(logs),)), Method(coherence, LEAST[coherence]))
        return tmp_path / coherence

    return make


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def test_the_papers_filter_removes_all_intents_of_an_assistant(made):
    with pytest.raises(UserError, match="got none: the most coherent of 150 has"):
        made("clinc150", "paper")
    assert report_of(made("clinc150", "pairwise"))["clusters_kept"] > 20


def test_the_papers_filter_touches_no_cluster_of_ten_questions_or_fewer(made):
    folder = made("opentriviaqa", "paper")
    paper = report_of(folder)
    kept = [json.loads(line) for line in (folder / "clusters.jsonl").read_text().splitlines()]
    assert sum(len(cluster["questions"]) <= 10 for cluster in kept) > 0.9 * paper["clusters"]
    assert report_of(made("opentriviaqa", "pairwise"))["clusters_kept"] < paper["clusters_kept"]
