import socket
import threading
import time

import httpx
import pytest
import uvicorn

from qpr_jax import Retriever
from qpr_jax.serving.app import make_app
from qpr_jax.serving.models import Limits
from qpr_jax.serving.protocol import Protocol
from tests.runs import write_encoder

TOKEN = "a secret"
QUESTIONS = {
    5: "How can I learn Python quickly?",
    3: "What is the best way to learn Python?",
    8: "How to cook rice?",
    9: "<img src=x onerror=\"document.title='run'\"> cook rice",
}
LIMITS = Limits(body=10_000, k=50, characters=200, questions=20, concurrent=8)


@pytest.fixture
def retriever(tmp_path):
    """One with a folder."""
    write_encoder(tmp_path)
    made = Retriever.build([*QUESTIONS.values()], [*QUESTIONS], run=tmp_path)
    made.save(tmp_path / "mine")
    return made


@pytest.fixture
def serve():
    """A server of an application: app -> its address."""
    running = []

    def start(app) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=Protocol, log_level="error", access_log=False)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        running.append((server, thread, listening))
        while not server.started:
            time.sleep(0.01)
        return "http://127.0.0.1:{1}".format(*listening.getsockname())

    yield start
    for server, thread, listening in running:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def address(retriever, serve):
    return serve(make_app(retriever, token=TOKEN, limits=LIMITS))


@pytest.fixture
def client(address):
    with httpx.Client(base_url=address) as client:
        yield client
