"""The hub's own library with a server that answers as the hub does."""

import functools
import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from qpr_jax.encoders.load import save_encoder
from tests.encoders.examples import cnn_encoder
from tests.runs import write_reranker

ROOT = pathlib.Path(__file__).parent.parent.parent
COMMIT = "1" * 40
ENCODE = """
import sys
from qpr_jax import Retriever, UserError
try:
    retriever = Retriever.load(sys.argv[1])
    retriever.add(["how can i learn python"])
    assert retriever.stages.words(None) == ["light", False]
    print(retriever.encoder.identity)
except UserError as error:
    print(error)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves one model: its list of files, and each file."""

    protocol_version = "HTTP/1.1"

    def __init__(self, folder, asked, *arguments):
        self.folder, self.asked = folder, asked
        super().__init__(*arguments)

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/org/mine/"):
            files = [p for p in self.folder.rglob("*") if p.is_file()]
            names = [{"rfilename": str(p.relative_to(self.folder))} for p in files]
            if "/tree/" in path:
                names = [
                    {"type": "file", "path": n["rfilename"], "size": p.stat().st_size}
                    | {"oid": git_hash(p)}
                    for n, p in zip(names, files, strict=True)
                ]
                return self.send(json.dumps(names).encode(), body)
            found = {"id": "org/mine", "sha": COMMIT, "siblings": names, "private": False}
            return self.send(json.dumps(found).encode(), body)
        start = f"/org/mine/resolve/{COMMIT}/"
        file = self.folder / path.removeprefix(start)
        if not path.startswith(start) or not file.is_file():
            return self.send(b"{}", body, status=404)
        # Git's hash of a small file; of a large one its SHA-256.
        digest = git_hash(file)
        if file.suffix == ".safetensors":
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return self.send(file.read_bytes(), body, ETag=f'"{digest}"')

    def send(self, data, body, *, status=200, **headers):
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def git_hash(path):
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@pytest.fixture
def model(tmp_path):
    encoder = cnn_encoder()
    save_encoder(tmp_path / "served", encoder, card="# mine\n")
    (tmp_path / "export").symlink_to(tmp_path / "served")
    write_reranker(tmp_path)
    (tmp_path / "served" / "code.py").write_text("raise SystemExit('code of a model was run')")
    return encoder


@pytest.fixture
def asked(tmp_path, model):
    """The paths that a running hub was asked for, after its address."""
    paths = []
    handler = functools.partial(Hub, tmp_path / "served", paths)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        paths.append(f"http://127.0.0.1:{server.server_port}")
        yield paths
        server.shutdown()


def load(tmp_path, endpoint, address="hf://org/mine", **environment):
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(ROOT),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, address],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_is_fetched_once_verified_and_none_of_its_code(tmp_path, model, asked):
    assert load(tmp_path, asked[0]) == model.identity
    fetched = [path for path in asked if "/resolve/" in path]
    assert {path.partition(COMMIT)[2] for path in fetched} == {
        *("/README.md", "/manifest.json", "/model.safetensors", "/settings.json"),
        *("/vocabulary.json", "/reranker/manifest.json", "/reranker/reranker.safetensors"),
    }
    assert load(tmp_path, asked[0], HF_HUB_OFFLINE="1") == model.identity
    (link,) = (tmp_path / "hf").rglob("model.safetensors")
    blob = link.resolve()  # in the hub's newer storage, a link with another name
    stored = blob.rename(tmp_path / "hf" / ("f" * 64))
    blob.symlink_to(stored)
    assert load(tmp_path, asked[0], HF_HUB_OFFLINE="1") == model.identity
    data = bytearray(stored.read_bytes())
    data[-1] ^= 1
    stored.write_bytes(data)
    message = load(tmp_path, asked[0], HF_HUB_OFFLINE="1")
    assert "model.safetensors: the bytes differ from the hash that the hub names them by" in message


def test_a_model_that_does_not_exist_is_refused(tmp_path, model, asked):
    assert "hf://org/other: expected a model of the hub, got" in load(
        tmp_path, asked[0], "hf://org/other"
    )
