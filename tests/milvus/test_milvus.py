"""A retriever over the real server of the package `milvus`."""

import itertools
import json
import threading
import time

import pytest

from qpr_jax import Recipe, Retriever, UserError
from qpr_jax.extend import extend_index
from qpr_jax.index.milvus_load import Load
from qpr_jax.index.milvus_records import Records
from tests.milvus.test_without_a_server import PAYLOADS
from tests.runs import write_encoder, write_reranker

pytestmark = pytest.mark.milvus

WORDS = ["how", "can", "i", "learn", "python", "cook", "rice", "what", "is", "best", "way"]
TEXTS = [" ".join(words) + "?" for words in itertools.permutations(WORDS[3:8], 3)] + [
    "what is rice?"
] * 20
IDS = ["a 'b\"", "7up", *range(2, len(TEXTS) - 1), "é" * 512]
ROWS = [
    {"id": value, "question": text, "n": i, "more": {"x": [i, None]}}
    for i, (value, text) in enumerate(zip(IDS, TEXTS, strict=True))
]
QUERIES = ["what is rice?", "how to learn python", "cook", "best way"]


@pytest.fixture(scope="module")
def address(host, run, tmp_path_factory):
    """A collection of ROWS, which tests leave as it is."""
    return fill(f"milvus://{host}/shared", run)


def fill(address, run, rows=ROWS, recipe=None):
    entries = [
        (i, r["id"], r["question"], {k: r[k] for k in ("n", "more")}) for i, r in enumerate(rows)
    ]
    Retriever.build_in(address, entries, run, recipe=recipe or Recipe("HNSW32"))
    return address


@pytest.fixture
def retriever(address):
    return Retriever.load(address)


def facts_of(hits):
    return [[(hit.id, hit.question, hit.payload) for hit in some] for some in hits]


@pytest.mark.parametrize("rerank", [None, False])
def test_the_hits_are_those_of_a_folder_in_their_order(retriever, run, rerank):
    folder = Retriever.build(ROWS, run=run, recipe=Recipe("Flat"))
    for k in (1, 5, 200):
        ours = retriever.search(QUERIES, k, rerank=rerank)
        theirs = folder.search(QUERIES, k, rerank=rerank)
        assert facts_of(ours) == facts_of(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert [h.distance for h in one] == pytest.approx([h.distance for h in other], abs=1e-4)
            assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)
    assert retriever.explain(QUERIES[0], id=IDS[0]).features.keys()


def test_the_commands(qpr, address, run, tmp_path):
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert qpr("index", tmp_path / "folder", table, "--run", run)[0] == 0
    printed = [json.loads(qpr("info", where)[1]) for where in (address, tmp_path / "folder")]
    assert [*printed[0]] == [*printed[1]]
    for name in ("questions", "dimension", "encoder", "calibration", "integrity_check"):
        assert printed[0][name] == printed[1][name]
    assert (printed[0]["store"], printed[0]["consistency"]) == ("milvus", "session")
    assert printed[0]["recall@10"] > 0.9
    lines = [
        qpr("search", where, "--query", "what is rice?", "-k", 30)[1]
        for where in (address, tmp_path / "folder")
    ]
    ids = [[json.loads(line)["id"] for line in some.splitlines()] for some in lines]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 30
    status, out, err = qpr("compact", address)
    assert (status, out) == (0, "")
    assert "Milvus compacts" in err
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"question": TEXTS[3], "id": IDS[3]}))
    assert json.loads(qpr("evaluate", address, pairs)[1])["mrr@20"] == 1
    status, _, err = qpr("index", address, table, "--run", run, "--dry-run")
    assert status == 1
    assert "folder" in err


def test_a_write_is_found_by_the_next_search(qpr, retriever, address):
    strange = ["' or 1==1 or '", "x" * 1024, "007", "a\nb\\"]
    added = retriever.add([f"python {i}" for i in range(4)], strange, [{"v": i} for i in range(4)])
    assert added == strange
    assert {h.id for h in retriever.search(["python 2"], 300, rerank=False)[0]} >= {*strange}
    assert len(retriever) == len(ROWS) + 4
    other = Retriever.load(address)
    wait_until(lambda: len(other) == len(ROWS) + 4)
    retriever.add(["cook cook"], ["007"])
    (hit,) = retriever.search(["cook cook"], 1, rerank=False)[0]
    assert (hit.id, hit.payload) == ("007", None)
    status, out, _ = qpr(
        "add", address, "--format", "jsonl", given=b'{"id": 9000, "question": "rice"}'
    )
    assert (status, json.loads(out)["id"]) == (0, 9000)
    assert retriever.remove([*strange, 9000]) == 5
    assert len(retriever) == len(ROWS)
    assert not {h.id for h in retriever.search(["python 2"], 200)[0]} & {*strange, 9000}
    with pytest.raises(UserError, match="no question has"):
        retriever.remove([strange[0]])
    with pytest.raises(UserError, match=r"1 to 1,024 bytes"):
        retriever.add(["x"], ["é" * 512 + "a"])


def test_payloads_come_back(retriever):
    ids = [f"payload {i}" for i in range(len(PAYLOADS))]
    retriever.add(["cook the rice"] * len(PAYLOADS), ids, PAYLOADS)
    found = {h.id: h.payload for h in retriever.search(["cook the rice"], 50, rerank=False)[0]}
    assert [found[value] for value in ids] == PAYLOADS
    retriever.remove(ids)


def test_writers_at_the_same_time_get_numbers_of_their_own(address):
    writers = [Retriever.load(address) for _ in range(3)]
    given = []
    threads = [
        threading.Thread(target=lambda w=writer: given.extend(w.add(["what", "is"])))
        for writer in writers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*given}) == 6
    assert min(given) > max(value for value in IDS if isinstance(value, int))
    time.sleep(1)  # until then a writer need not see what another one wrote
    assert writers[0].remove(given) == 6


def test_another_encoder_and_another_collection_are_refused(address, run, tmp_path, retriever):
    write_encoder(tmp_path / "other", seed=1)
    other = Retriever.load(tmp_path / "other" / "export").encoder.identity
    with pytest.raises(UserError, match=f"{retriever.encoder.identity}.*{other}"):
        fill(address, tmp_path / "other")
    foreign = str(address).replace("/shared", "/foreign")
    retriever.collection.server.create(
        "foreign", [("pk", "INT64", {}), ("vector", "FLOAT_VECTOR", {"dim": 2})]
    )
    for call in (Retriever.load, lambda where: fill(where, run)):
        with pytest.raises(UserError, match="expected a collection of `qpr index`"):
            call(foreign)
    with pytest.raises(UserError, match="found none"):
        Retriever.load(str(address).replace("/shared", "/nowhere"))
    with pytest.raises(UserError, match="expected a folder"):
        _ = retriever.index.store


def test_a_load_goes_on_after_a_kill_and_replaces_at_once(host, run, monkeypatch, tmp_path):
    address = f"milvus://{host}/loaded"
    monkeypatch.setattr("qpr_jax.index.milvus_entities.BATCH_BYTES", 2000)
    encoded = []
    kind = type(Retriever.load(run / "export").encoder)
    encode, publish = kind.encode, Load._publish
    monkeypatch.setattr(
        kind, "encode", lambda self, texts: encoded.append(len(texts)) or encode(self, texts)
    )

    def stopped():
        yield from [(i, r["id"], r["question"], None) for i, r in enumerate(ROWS[:60])]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Retriever.build_in(address, stopped(), run, recipe=Recipe("Flat"))
    with pytest.raises(UserError, match="found none"):
        Retriever.load(address)
    before = sum(encoded)
    encoded.clear()
    monkeypatch.setattr(Load, "_publish", lambda *_: 1 / 0)
    entries = [(i, r["id"], r["question"], None) for i, r in enumerate(ROWS)]
    with pytest.raises(ZeroDivisionError):
        Retriever.build_in(address, entries, run, recipe=Recipe("Flat"))
    assert 0 < before <= 60
    assert sum(encoded) == len(ROWS) - before
    monkeypatch.setattr(Load, "_publish", publish)
    loaded = Retriever.build_in(address, entries, run, recipe=Recipe("Flat"))
    assert sum(encoded) == len(ROWS) - before
    first = facts_of(loaded.search(QUERIES, 200))
    loaded.add(["not of the load"], ["extra"])
    again = Retriever.build_in(address, entries, run, recipe=Recipe("Flat"))
    assert facts_of(again.search(QUERIES, 200)) == first
    time.sleep(1.1)
    assert facts_of(loaded.search(QUERIES, 200)) == first  # it takes the new one by itself
    assert loaded.state == again.state
    names = loaded.collection.server.collections()
    assert [name for name in names if name.startswith("loaded_")].__len__() == 2  # with the records
    with pytest.raises(UserError, match="line 2: the id 7 stands twice"):
        Retriever.build_in(address, [(1, 7, "a", None), (2, "7", "b", None)], run, where="x, line")
    assert len(Retriever.load(address)) == len(ROWS)


def test_a_newer_re_ranker_is_taken(address, run, retriever, tmp_path):
    before = retriever.second_stages.facts()
    write_encoder(tmp_path)
    write_reranker(tmp_path, candidates=7)
    assert extend_index(address, tmp_path)
    assert not extend_index(address, tmp_path)
    time.sleep(1.1)
    retriever.search(QUERIES)
    assert before["reranker"]["candidates"] == 3
    assert retriever.second_stages.facts()["reranker"]["candidates"] == 7
    kept = Records(retriever.collection.server).under("files/")
    assert [*kept] == [f"files/{retriever.collection.version}"]
    assert extend_index(address, run)


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
