"""The command that answers over HTTP: serve."""

from __future__ import annotations

import gc
import logging
import os
import pathlib
import re
import socket

import click

from qpr_jax.cli.options import NamedPath
from qpr_jax.cli.program import use_huge_pages
from qpr_jax.errors import UserError
from qpr_jax.machine import cpu_count

log = logging.getLogger("qpr_jax")

TOKEN = "QPR_TOKEN"


@click.command()
@click.argument("folder", type=NamedPath())
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: from elsewhere too.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--token-file", type=NamedPath(), help=f"Of those who may write; else ${TOKEN}.")
@click.option("--threads", type=click.IntRange(min=1), help="Of FAISS; as many as cores.")
@click.option("--max-body", default=1 << 20, show_default=True, type=click.IntRange(min=1))
@click.option("--max-k", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--max-characters", default=2000, show_default=True, type=click.IntRange(min=1))
@click.option("--max-questions", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--max-concurrent", default=256, show_default=True, type=click.IntRange(min=1))
def serve(
    folder: str,
    host: str,
    port: int,
    token_file: str | None,
    threads: int | None,
    max_body: int,
    max_k: int,
    max_characters: int,
    max_questions: int,
    max_concurrent: int,
) -> None:
    """Answer searches of the index of FOLDER over HTTP, with a page at / to try it.

    POST /search {"queries": [...], "k": 5}, POST /encode, POST /questions, DELETE /questions/ID,
    GET /health, /metrics, /openapi.json. Adding and removing need a token, which is never an
    argument, since others could read it there. SIGTERM and Ctrl-C end it when what was asked is
    answered.

    Example: qpr serve my_index --port 8000
    """
    # FAISS's threads would else keep the cores busy while they wait for the next batch.
    use_huge_pages(OMP_WAIT_POLICY="passive")
    try:
        import uvicorn

        from qpr_jax.serving.app import make_app
        from qpr_jax.serving.models import Limits
        from qpr_jax.serving.protocol import Protocol
    except ImportError as error:
        raise UserError(
            f"`serve` needs more packages ({error.name}); pip install 'qpr_jax[serve]'"
        ) from None
    from qpr_jax.retriever import Retriever

    token = _token(token_file)
    threads = threads or cpu_count()
    with _listening(host, port) as listening:
        retriever = Retriever.load(folder, indexed=True)
        retriever.encoder.warm_up()
        limits = Limits(
            body=max_body,
            k=max_k,
            characters=max_characters,
            questions=max_questions,
            concurrent=max_concurrent,
        )
        config = uvicorn.Config(
            make_app(retriever, token=token, limits=limits, threads=threads),
            http=Protocol,
            ws="none",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            log_level="error",
            timeout_graceful_shutdown=30,
        )
        gc.freeze()  # what is loaded stays, and need not be looked through
        log.info(
            "%s: %s questions at http://%s:%d, writing %s",
            *(folder, f"{len(retriever):,}", f"[{host}]" if ":" in host else host),
            *(listening.getsockname()[1], "with the token" if token else "off"),
        )
        uvicorn.Server(config).run([listening])


def _listening(host: str, port: int) -> socket.socket:
    if not host:
        raise UserError("`--host`: expected an address, got none; 0.0.0.0 means all")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        raise UserError(
            f"`--host`: expected an address of this machine, got {host!r} ({error.strerror})"
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot listen at {host}:{port} ({error}); name another --host or --port"
        ) from None


def _token(path: str | None) -> str:
    """The token of those who may write; empty where there is none."""
    source, token = path or f"${TOKEN}", os.environ.get(TOKEN)
    if path is not None:
        try:
            token = pathlib.Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: expected a file with a token ({error})") from None
    if token is None:
        return ""
    token = token.strip()
    if not re.fullmatch("[!-~]+", token):
        raise UserError(
            f"{source}: expected a token of printable ASCII without blanks, got "
            + ("another" if token else "nothing")
        )
    return token
