import contextlib
import os
import shutil
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from qpr_jax import Retriever
from qpr_jax.serving.app import make_app
from qpr_jax.serving.limits import LIMITS as DEFAULTS
from qpr_jax.serving.limits import Limits
from qpr_jax.serving.protocol import Protocol
from tests.runs import write_encoder

TOKEN = "a secret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
QUESTIONS = {
    5: "How can I learn Python quickly?",
    3: "What is the best way to learn Python?",
    8: "How to cook rice?",
    9: "<img src=x onerror=\"document.title='run'\"> cook rice",
}
LIMITS = Limits(body=10_000, k=50, characters=200, questions=20, concurrent=8)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with an encoder and an index of `QUESTIONS`, which tests only read."""
    path = tmp_path_factory.mktemp("serving")
    write_encoder(path)
    Retriever.build([*QUESTIONS.values()], [*QUESTIONS], run=path).save(path)
    return path


@pytest.fixture
def retriever(folder, tmp_path):
    """One that the test may change, with a folder of its own."""
    return Retriever.load(shutil.copytree(folder, tmp_path / "mine"))


@pytest.fixture(scope="session")
def shared_retriever(folder):
    """The one behind `client`."""
    return Retriever.load(folder)


@contextlib.contextmanager
def running(app, limits=DEFAULTS):
    """A server of an application: its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Protocol.limited(limits), log_level="error", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield "http://127.0.0.1:{1}".format(*listening.getsockname())
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def serve():
    """app and its limits -> the address of a server of its own."""
    with contextlib.ExitStack() as servers:
        yield lambda *app: servers.enter_context(running(*app))


@pytest.fixture(scope="session")
def address(shared_retriever):
    """The server that tests share: nothing may change its questions."""
    with running(make_app(shared_retriever, token=TOKEN, limits=LIMITS)) as address:
        yield address


@pytest.fixture(scope="session")
def client(address):
    with httpx.Client(base_url=address) as client:
        yield client


@pytest.fixture
def own_client(retriever, serve):
    """A client of a server of the test's own `retriever`."""
    address = serve(make_app(retriever, token=TOKEN, limits=LIMITS))
    with httpx.Client(base_url=address) as client:
        yield client


@pytest.fixture
def exchange(address):
    """bytes -> all that the shared server answers until it closes the connection."""

    def send(request: bytes, at: str = address) -> bytes:
        with connect(at) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(10_000), b""))

    return send


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def wait_until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium on the PATH")
    with sync_api.sync_playwright() as playwright:
        # Chromium refuses to run in its sandbox as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def wrong():
    """What the browser finds wrong with the page."""
    return []


def luminance(color: str) -> float:
    """The relative luminance of a color as the browser computes it (WCAG 2.2)."""
    levels = [int(v) / 255 for v in color.removeprefix("rgb(").rstrip(")").split(",")]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
