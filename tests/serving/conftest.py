"""The service of a small index: in this process, behind a real socket, or in a browser."""

import contextlib
import shutil
import socket
import threading

import pytest
import uvicorn
from starlette.testclient import TestClient

from qpr_jax import Retriever
from qpr_jax.serving.app import Settings, make_app
from tests.runs import write_words
from tests.waiting import wait_until

TOKEN = "a-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
QUESTIONS = {
    5: "How can I learn Python quickly?",
    3: "What is the best way to learn Python?",
    8: "How to cook rice?",
    9: "<img src=x onerror=\"document.title='run'\"> cook rice",
}


@pytest.fixture(scope="session")
def folder(encoder_run, tmp_path_factory):
    """A folder with an encoder and an index of `QUESTIONS`, which tests only read."""
    path = tmp_path_factory.mktemp("serving")
    Retriever.build([*QUESTIONS.values()], [*QUESTIONS], encoder=encoder_run).save(path)
    return path


@pytest.fixture
def mine(folder, tmp_path):
    """A copy of the folder that the test may change."""
    return shutil.copytree(folder, tmp_path / "mine")


@pytest.fixture
def reranked(mine):
    """The copy, with a re-ranker of three candidates."""
    write_words(mine)
    return mine


@contextlib.contextmanager
def client_of(app):
    """A client in this process, which any number of threads may use."""
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        wait_until(lambda: client.get("/ready").json().get("error") != "warming up")
        yield client


@pytest.fixture(scope="session")
def client(folder):
    """A client of a server whose questions no test changes."""
    settings = Settings(token=TOKEN, max_body=10_000)
    with client_of(make_app(Retriever.load(folder), settings)) as client:
        yield client


@pytest.fixture
def own_client(mine):
    """A client of a server of the folder `mine`."""
    app = make_app(Retriever.load(mine), Settings(token=TOKEN, max_body=10_000))
    with client_of(app) as client:
        yield client


@contextlib.contextmanager
def running(app):
    """The address of a server of an application."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield "http://127.0.0.1:{1}".format(*listening.getsockname())
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
