"""Where Quora's file is found or downloaded to, and the files that `qpr sample` writes."""

import contextlib
import csv
import http.server
import json
import threading

import pytest

from qpr_jax.data import sources
from qpr_jax.data.sources import NAME, find_quora, write_sample
from qpr_jax.errors import UserError

CONTENT = b"pairs\n" * 100_000


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind = self.path.strip("/")
        if kind == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        if kind != "unsized":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2])
        if kind == "stalled":
            self.server.released.wait(10)
        elif kind != "cut":
            with contextlib.suppress(ConnectionError):
                self.wfile.write(CONTENT[len(CONTENT) // 2 :])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.released = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, no data folder, and an address where nobody answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("QPR_DATA_DIR", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "ADDRESS", "http://127.0.0.1:9/file")
    monkeypatch.setattr(sources, "SIZE", len(CONTENT))
    return tmp_path / "cache" / "qpr_jax"


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"here")
    return path


def test_the_order_of_the_four_ways(cache, tmp_path, monkeypatch, server):
    monkeypatch.setattr(sources, "ADDRESS", f"{server}/whole")
    assert find_quora() == cache / NAME
    assert (cache / NAME).read_bytes() == CONTENT
    monkeypatch.setattr(sources, "ADDRESS", "http://127.0.0.1:9/file")
    monkeypatch.setenv("QPR_DATA_DIR", str(tmp_path / "data"))
    assert find_quora() == cache / NAME
    in_data = put(tmp_path / "data" / "quora" / NAME)
    assert find_quora() == in_data
    given = put(tmp_path / "given.tsv")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_quora(str(given)) == find_quora("~/given.tsv") == given
    for path in (tmp_path / "none.tsv", tmp_path):
        with pytest.raises(UserError, match=r"`data\.path`: expected a file .*got '/"):
            find_quora(str(path))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "404"),
        ("cut", "expected 600000 bytes, got 300000 bytes"),
        ("stalled", "timed out"),
        ("unsized", "expected 599999 bytes, got more"),
    ],
)
def test_a_download_that_fails_leaves_nothing(cache, monkeypatch, server, kind, reason):
    monkeypatch.setattr(sources, "ADDRESS", f"{server}/{kind}")
    monkeypatch.setattr(sources, "TIMEOUT", 0.3)
    if kind == "unsized":
        monkeypatch.setattr(sources, "SIZE", len(CONTENT) - 1)
    with pytest.raises(UserError, match=reason) as caught:
        find_quora()
    for way in ("`data.path`", f"$QPR_DATA_DIR/quora/{NAME}", "`--config synthetic_sdml`"):
        assert way in str(caught.value)
    assert not cache.exists() or not list(cache.iterdir())


def rows(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_of_the_sample_agree(tmp_path):
    counts = write_sample(tmp_path / "a")
    names = ("questions", "queries", "pairs")
    found = {name: rows(tmp_path / "a" / f"{name}.csv") for name in names}
    lines = (tmp_path / "a" / "logs.jsonl").read_text(encoding="utf-8").splitlines()
    assert counts == {name: len(values) for name, values in found.items()} | {"logs": len(lines)}
    log = map(json.loads, lines)
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
    with pytest.raises(UserError, match="exists already"):
        write_sample(tmp_path / "a")
