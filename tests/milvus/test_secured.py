"""A Milvus server with credentials, TLS and a certificate authority of its own."""

import json
import os
import shutil
import signal
import subprocess

import pytest

pytestmark = pytest.mark.slow  # each server takes 15 s to start

QUESTIONS = {"a": "how can i learn french", "b": "how to cook rice"}


def make_certificates(folder):
    """The files of an authority, and of a server and a client that it knows."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes")
    for name in ("ca", "other"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2")
        openssl("req", "-x509", *key, *files, "-subj", f"/CN={name}")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        openssl(
            "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem", "-days", "2")


@pytest.fixture(scope="module", params=[1, 2], ids=["the server's certificate", "both"])
def secured(request, tmp_path_factory):
    """The address of a server, its folder of certificates, and whether it asks for one."""
    for package in ("milvus", "pymilvus"):
        pytest.importorskip(package)
    from benchmarks.milvus_server import make_server

    folder = tmp_path_factory.mktemp("secured")
    make_certificates(folder)
    server = make_server(
        folder / "milvus",
        authorization_enabled=True,
        tls_mode=request.param,
        server_pem_path=str(folder / "server.pem"),
        server_key_path=str(folder / "server.key"),
        ca_pem_path=str(folder / "ca.pem"),
    )
    server.start()
    yield f"milvus://127.0.0.1:{server.listen_port}/questions", folder, request.param == 2
    os.kill(server.server_proc.pid, signal.SIGKILL)


def test_credentials_and_files_of_tls(secured, qpr, run, tmp_path, monkeypatch):
    address, folder, asks = secured
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"id": i, "question": q}) for i, q in QUESTIONS.items()))
    token = {"TOKEN": "root:Milvus"}  # a new server has this user
    tls = {"TLS": "1", "CA": str(folder / "ca.pem")}
    own = {"CERTIFICATE": str(folder / "client.pem"), "KEY": str(folder / "client.key")}
    whole = tls | own if asks else tls

    def call(settings, *arguments):
        with monkeypatch.context() as patch:
            for name, value in ({"TIMEOUT": "4"} | settings).items():
                patch.setenv(f"QPR_MILVUS_{name}", value)
            code, *texts = qpr(*arguments)
        assert not any("root:" in text for text in texts)
        return code, *texts

    def check_refused(settings, message):
        code, _, error = call(settings, "index", address, rows, "--run", run)
        assert code == 1
        assert message in error

    for settings in (token, token | whole | {"CA": str(folder / "other.pem")}):
        check_refused(settings, "Milvus does not answer")
    if asks:
        check_refused(token | tls, "Milvus does not answer")
    for settings in ({}, {"TOKEN": "root:wrong"}, {"USER": "me", "PASSWORD": "no"}):
        check_refused(whole | settings, "Milvus refuses the credentials")
    user = {"USER": "root", "PASSWORD": "Milvus", "TIMEOUT": "30"}
    code, _, error = call(whole | user, "index", address, rows, "--run", run)
    assert code == 0, error
    query = ("--query", QUESTIONS["a"], "-k", "1")
    code, out, error = call(whole | token | {"TIMEOUT": "30"}, "search", address, *query)
    assert code == 0, error
    assert json.loads(out)["id"] == "a"
