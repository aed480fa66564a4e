"""The command that answers over HTTP: serve."""

from __future__ import annotations

import gc
import logging
import os
import pathlib
import socket

import click

from qpr_jax.commands.streams import NamedPath
from qpr_jax.console import use_huge_pages
from qpr_jax.errors import UserError

log = logging.getLogger("qpr_jax")

TOKEN = "QPR_TOKEN"


@click.command()
@click.argument("folder", type=NamedPath())
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: from elsewhere too.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option("--token-file", type=NamedPath(), help=f"Of those who may write; else ${TOKEN}.")
@click.option("--threads", type=click.IntRange(min=1), help="That search; as many as cores.")
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
    use_huge_pages()
    try:
        import uvicorn

        from qpr_jax.serving.app import Limits, make_app
    except ImportError as error:
        raise UserError(
            f"`serve` needs more packages ({error.name}); pip install 'qpr_jax[serve]'"
        ) from None
    from qpr_jax.retriever import Retriever

    token = _token(token_file)
    threads = threads or len(os.sched_getaffinity(0))
    retriever = Retriever.load(folder)
    retriever.encoder.make_ready()
    limits = Limits(max_body, max_k, max_characters, max_questions, max_concurrent)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port} ({error}); name another --port") from None
    log.info(
        "%s: %s questions at http://%s:%d, writing %s",
        *(folder, f"{len(retriever):,}", *listening.getsockname()[:2]),
        "with the token" if token else "off",
    )
    config = uvicorn.Config(
        make_app(retriever, token=token, limits=limits, threads=threads),
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
        timeout_graceful_shutdown=30,
    )
    gc.freeze()  # what is loaded stays, and need not be looked through
    uvicorn.Server(config).run([listening])


def _token(path: str | None) -> str:
    if path is None:
        return os.environ.get(TOKEN, "").strip()
    try:
        token = pathlib.Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: expected a file with a token ({error})") from None
    if not token:
        raise UserError(f"{path}: expected a file with a token, got an empty one")
    return token
