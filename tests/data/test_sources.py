import contextlib
import http.server
import threading

import pytest

from qpr_jax.data import sources
from qpr_jax.data.sources import NAME, find_quora
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


def test_the_order_of_the_four_ways(cache, tmp_path, monkeypatch, server, caplog):
    monkeypatch.setattr(sources, "ADDRESS", f"{server}/whole")
    caplog.set_level("INFO", logger="qpr_jax")
    assert find_quora() == cache / NAME
    assert caplog.messages == [f"downloading {server}/whole to {cache / NAME}"]
    assert (cache / NAME).read_bytes() == CONTENT

    monkeypatch.setattr(sources, "ADDRESS", "http://127.0.0.1:9/file")
    assert find_quora() == cache / NAME
    monkeypatch.setenv("QPR_DATA_DIR", str(tmp_path / "data"))
    assert find_quora() == cache / NAME
    in_data = put(tmp_path / "data" / "quora" / NAME)
    assert find_quora() == in_data
    given = put(tmp_path / "given.tsv")
    assert find_quora(str(given)) == given


def test_the_cache_in_the_home_folder(cache, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    cached = put(tmp_path / ".cache" / "qpr_jax" / NAME)
    assert find_quora() == cached
    put(tmp_path / "given.tsv")
    assert find_quora("~/given.tsv") == tmp_path / "given.tsv"


def test_a_given_path_must_be_a_file(cache, tmp_path):
    put(cache / NAME)
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
    with pytest.raises(UserError, match=reason):
        find_quora()
    assert not cache.exists() or not list(cache.iterdir())


def test_a_stop_by_the_user_leaves_nothing(cache, monkeypatch, server):
    @contextlib.contextmanager
    def stop(*_, **__):
        def show(done, text):
            raise KeyboardInterrupt

        yield show

    monkeypatch.setattr(sources, "ADDRESS", f"{server}/whole")
    monkeypatch.setattr(sources.progress, "bar", stop)
    with pytest.raises(KeyboardInterrupt):
        find_quora()
    assert not list(cache.iterdir())


def test_the_refusal_names_every_way(cache):
    with pytest.raises(UserError) as caught:
        find_quora()
    message = str(caught.value)
    assert "\n" not in message
    for way in (
        "`data.path`",
        f"$QPR_DATA_DIR/quora/{NAME}",
        str(cache / NAME),
        "http://127.0.0.1:9/file",
        "`--config synthetic_sdml`",
    ):
        assert way in message


def test_a_cache_that_cannot_be_written(cache, monkeypatch, server):
    put(cache.parent)
    monkeypatch.setattr(sources, "ADDRESS", f"{server}/whole")
    with pytest.raises(UserError, match=r"failed .*Not a directory"):
        find_quora()
