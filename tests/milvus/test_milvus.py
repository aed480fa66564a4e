"""`MilvusStore` on the real server of the package `milvus`."""

import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.index.milvus import MilvusStore, _upsert
from qpr_jax.index.milvus_server import Server, index_parameters
from qpr_jax.index.protocol import IndexConfig, Question
from tests.kills import Killed
from tests.store_contract import CASES, DIMENSION, TEXTS, assert_is, encode, questions

pytestmark = pytest.mark.milvus

OLD, NEW = questions(30), questions(1200, 100)


def create(address, some, factory="auto", metric="l2", encoder="e1", columns=()):
    found = SimpleNamespace(encode=encode, fingerprint=encoder, dimension=DIMENSION)
    index_config = IndexConfig(factory, metric, text_columns=columns)
    return MilvusStore.build(address, some, found, index_config, "runs/mine", None)


@pytest.fixture(scope="module")
def address(host):
    name = f"milvus://{host}/contract_{os.getpid()}"  # workers of pytest-xdist share the server
    create(name, [])
    return name


@pytest.fixture(scope="module")
def address_of_texts(host):
    name = f"milvus://{host}/texts_{os.getpid()}"
    assert_is(create(name, OLD, columns=TEXTS), OLD)
    return name


@pytest.mark.parametrize("columns", ["address", "address_of_texts"])
@pytest.mark.parametrize("case", CASES)
def test_the_contract_of_a_store(case, columns, request):
    address = request.getfixturevalue(columns)
    store = MilvusStore(address)
    store.remove([question.id for question in store.questions()])
    case(store, lambda: MilvusStore(address))


def check_hits(store, least):
    """Most of the nearest of `NEW` are found, `least` of 50, and all where all are asked for."""
    product = store.index_config.metric == "ip"
    queries, vectors = encode(["a", "b"]), encode([question.text for question in NEW])
    exact = ((queries[:, None] - vectors) ** 2).sum(axis=2)
    exact = -queries @ vectors.T if product else exact
    near = np.argsort(exact)[:, :50] + NEW[0].id
    for row, hits, distances in zip(near.tolist(), store.search(queries, 50), exact, strict=True):
        assert len({hit.id for hit in hits} & {*row}) >= least
        assert hits == sorted(hits, key=lambda hit: hit.distance)
        true = distances[[hit.id - NEW[0].id for hit in hits]]
        np.testing.assert_allclose([h.distance for h in hits], true, atol=5 if product else 0.2)
    assert len(store.search(queries, 5000)[1]) == len(NEW)  # all lists are read


def test_all_texts_of_a_question_are_written_in_one_call():
    sizes = []
    server = SimpleNamespace(call=lambda method, name, data: sizes.append(len(data)))
    entities = [{"id": f"{i}", "data": "", "row": i} for i in range(300)]
    _upsert(server, "name", entities, np.zeros((900, 2), np.float32), 3)
    assert sum(sizes) == 900
    assert not any(size % 3 for size in sizes)


def test_inner_products_by_codes(host):
    store = create(f"milvus://{host}/codes", NEW, "IVF9,PQ4", "ip")
    check_hits(store, 15)
    assert store.index_config.factory == "IVF9,PQ4"
    with pytest.raises(UserError, match="16,384"):
        store.search(encode(["a"]), 16_385)


def test_an_index_of_milvus_for_each_kind_of_index():
    for factory, kind in (("Flat", "FLAT"), ("IVF9,Flat", "IVF_FLAT"), ("IVF9,SQ8", "IVF_SQ8")):
        assert index_parameters(IndexConfig(factory), 8)["index_type"] == kind


def test_refusals(address):
    for factory in ("SQ8", "IVF10_HNSW32,Flat", "IVF8,PQ3", "HNSW1", "IVF99999,Flat"):
        with pytest.raises(UserError, match="Milvus has `auto`"):
            create(address, OLD, factory)
    with pytest.raises(UserError, match="encoder e2, got one of e1"):
        create(address, OLD, encoder="e2")
    with pytest.raises(UserError, match="found no collection"):
        MilvusStore(f"{address}_none")
    with pytest.raises(UserError, match="got 7 twice"):
        create(f"{address}_2", [Question(7, "a"), Question("7", "b")])
    with pytest.raises(UserError, match="65,536 bytes"):
        MilvusStore(address).add([Question(7, "é" * 33_000)], encode(["a"]))
    for text in ("milvus://me:SECRET@h/c", "milvus://h/c?token=SECRET", "milvus://h"):
        with pytest.raises(UserError, match="QPR_MILVUS_TOKEN") as caught:
            MilvusStore(text)
        assert "SECRET" not in str(caught.value)


def test_settings(monkeypatch):
    given = {}
    monkeypatch.setattr("pymilvus.MilvusClient", lambda url, **more: given.update(more, url=url))
    wrong = {"TIMEOUT": "soon", "CONSISTENCY": "none", "OPTIONS": "[1]"}
    for name, value in wrong.items():
        monkeypatch.setenv(f"QPR_MILVUS_{name}", value)
        with pytest.raises(UserError, match=f"QPR_MILVUS_{name}"):
            Server("milvus://h:1/c")
        monkeypatch.delenv(f"QPR_MILVUS_{name}")
    monkeypatch.setenv("QPR_MILVUS_TOKEN", "a:b")
    monkeypatch.setenv("QPR_MILVUS_OPTIONS", '{"secure": true, "db_name": "d"}')
    Server("milvus://h/c")
    expected = {"url": "https://h:19530", "token": "a:b", "db_name": "d", "timeout": 10}
    assert given == expected | {"secure": True}


def test_a_load_that_is_killed_leaves_the_old_or_the_new_index(host, monkeypatch):
    address = f"milvus://{host}/killed"
    old = [Question(question.id, f"Hi there.\n{question.text}") for question in OLD]
    store, call = create(address, old), Server.call
    # Shared sentences are stored and not encoded.
    assert store.cleaner.shared == MilvusStore(address).cleaner.shared == {"hi there": len(OLD)}
    (hits,) = store.search(encode([OLD[3].text]), 1)
    assert (hits[0].question, hits[0].distance) == (old[3].text, pytest.approx(0, abs=1e-6))

    def create_until(last, *given, **how):
        def until(self, name, *args, **kwargs):
            if name in ("flush", "alter_alias", "drop_collection"):
                assert store.search(encode(["a"]), 1)[0]
            if name == last:
                raise Killed
            return call(self, name, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(Server, "call", until)
            with pytest.raises(Killed):
                create(address, *given, **how)
        collections = Server(address).call("list_collections")
        return len([name for name in collections if name.startswith("killed_")])

    assert create_until("flush", OLD) == 2
    assert [*MilvusStore(address).questions()] == old
    assert create_until("create_collection", OLD) == 1  # it removes what the first one wrote
    assert create_until("drop_collection", NEW, "HNSW8") == 2
    assert create_until("create_collection", OLD) == 1
    time.sleep(1.1)
    check_hits(store, 40)  # it follows
    assert store.index_config.factory == "HNSW8"


def test_a_server_that_is_gone(monkeypatch):
    monkeypatch.setenv("QPR_MILVUS_TIMEOUT", "0.5")
    start = time.monotonic()
    with pytest.raises(UnavailableError, match="Milvus request failed: "):
        MilvusStore("milvus://127.0.0.1:1/c")
    assert time.monotonic() - start < 30
