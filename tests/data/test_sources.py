"""Where Quora's file is found or downloaded to, and the files that `qpr sample` writes."""

import http.client
import io
import urllib.error

import pytest

from qpr_jax.data.generated_questions import write_sample
from qpr_jax.errors import UserError
from qpr_jax.training import sources
from qpr_jax.training.sources import NAME, find_quora
from tests.tables import read_table

CONTENT = b"pairs\n" * 100_000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no data folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("QPR_DATA_DIR", raising=False)
    monkeypatch.setattr(sources, "SIZE", len(CONTENT))
    return tmp_path / "cache" / "qpr_jax"


@pytest.fixture
def answer(monkeypatch):
    """Make the server answer with these bytes, or fail."""

    def set_answer(content):
        def urlopen(address, timeout):
            assert (address, timeout) == (sources.ADDRESS, sources.TIMEOUT)
            if isinstance(content, Exception):
                raise content
            return io.BytesIO(content)

        monkeypatch.setattr("urllib.request.urlopen", urlopen)

    return set_answer


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"here")
    return path


def test_the_order_of_the_four_ways(cache, tmp_path, monkeypatch, answer):
    answer(CONTENT)
    put(tmp_path / "quora" / NAME)
    monkeypatch.chdir(tmp_path)  # where nothing names the file
    assert find_quora() == cache / NAME
    assert (cache / NAME).read_bytes() == CONTENT
    answer(TimeoutError())
    monkeypatch.setenv("QPR_DATA_DIR", str(tmp_path / "data"))
    assert find_quora() == cache / NAME
    in_data = put(tmp_path / "data" / "quora" / NAME)
    assert find_quora() == in_data
    given = put(tmp_path / "given.tsv")
    assert find_quora(str(given)) == given
    with pytest.raises(UserError, match=r"`data\.path`: expected a file .* found none at /"):
        find_quora(str(tmp_path / "none.tsv"))


def test_a_download_that_fails_leaves_nothing(cache, answer):
    for content, reason in (
        (urllib.error.HTTPError("", 404, "Not Found", {}, None), "404"),
        (TimeoutError("timed out"), "timed out"),
        (http.client.IncompleteRead(b""), "IncompleteRead"),
        (CONTENT[:300_000], "expected 600000 bytes, got 300000 bytes"),
        (CONTENT + b"x", "expected 600000 bytes, got more"),
    ):
        answer(content)
        with pytest.raises(UserError, match=reason) as caught:
            find_quora()
        for way in ("`data.path`", f"$QPR_DATA_DIR/quora/{NAME}", "`data.source=synthetic`"):
            assert way in str(caught.value)
        assert not cache.exists() or not list(cache.iterdir())


def test_the_files_of_the_sample_agree(tmp_path):
    counts = write_sample(tmp_path / "a")
    names = ("questions", "queries", "pairs")
    found = {name: read_table(tmp_path / "a" / f"{name}.csv") for name in names}
    log = read_table(tmp_path / "a" / "logs.jsonl")
    assert counts == {name: len(values) for name, values in found.items()} | {"logs": len(log)}
    answers = {row["question"].lower().rstrip("?."): row["answer"] for row in log}

    def answer(text):
        return answers[text.lower().rstrip("?.")]

    text_of = {row["id"]: row["question"] for row in found["questions"]}
    assert len(text_of) == len(found["questions"])
    assert not {*text_of.values()} & {query["question"] for query in found["queries"]}
    for query in found["queries"]:
        same = {id for id, text in text_of.items() if answer(text) == answer(query["question"])}
        others = {row["id"] for row in found["queries"] if row["question"] == query["question"]}
        assert same == others
    for pair in found["pairs"]:
        same = answer(pair["question1"]) == answer(pair["question2"])
        assert same == (pair["is_duplicate"] == "1")
    with pytest.raises(UserError, match="exists already; use what it holds"):
        write_sample(tmp_path / "a")
