"""The command `serve`: answer over HTTP."""

from __future__ import annotations

import gc
import ipaddress
import json
import logging
import os
import pathlib
import re
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli.command import Command, wants_json
from qpr_jax.cli.options import NamedPath, load_index
from qpr_jax.cli.program import use_huge_pages
from qpr_jax.errors import UserError, spell
from qpr_jax.extras import needs
from qpr_jax.machine import cpu_count

if TYPE_CHECKING:
    import uvicorn

    from qpr_jax.retriever import Retriever

log = logging.getLogger("qpr_jax")

TOKEN = "QPR_TOKEN"
_LIMIT = click.IntRange(min=1)


@click.command(cls=Command, stopped="changes that were answered are on disk")
@click.argument("folder", type=NamedPath())
@click.option("--host", default="127.0.0.1", help="0.0.0.0: all addresses.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535))
@click.option(
    "--allowed-host",
    metavar="NAME",
    multiple=True,
    help="A name under which clients may address the server, besides --host and localhost; "
    "may be repeated; *: any.",
)
@click.option("--token-file", type=NamedPath(), help=f"Has the token for writing; else ${TOKEN}.")
@click.option("--cross-encoder", type=NamedPath(), help="Folder of a cross-encoder.")
@click.option("--half", is_flag=True, help="Encode in half precision: less memory, faster.")
@click.option("--threads", type=click.IntRange(min=1), help="Of FAISS; default: one a core.")
@click.option("--max-body", "body", default=1 << 20, type=_LIMIT)
@click.option("--max-k", "k", default=100, type=_LIMIT)
@click.option("--max-characters", "characters", default=2000, type=_LIMIT)
@click.option("--max-questions", "questions", default=1000, type=_LIMIT)
@click.option("--max-concurrent", "concurrent", default=256, type=_LIMIT)
def serve(
    folder: str,
    host: str,
    port: int,
    allowed_host: tuple[str, ...],
    token_file: str | None,
    cross_encoder: str | None,
    half: bool,
    threads: int | None,
    **limits: int,
) -> None:
    """Serve the index of FOLDER over HTTP, with a page at / to try it.

    POST /search {"queries": [...], "k": 5, "rerank": null}, POST /encode, POST /questions, DELETE
    /questions/ID, GET /health, /metrics, /openapi.json. Adding and removing questions need a token,
    which is no argument because other users of the machine could read it there. SIGTERM and Ctrl-C
    stop the server after it has answered the requests it has begun.

    Example: qpr serve my_index --port 8000
    """
    # By default FAISS's threads spin while they wait for the next batch.
    use_huge_pages(OMP_WAIT_POLICY="passive")
    with needs("`qpr serve`", "qpr_jax[serve]"):
        import uvicorn

        from qpr_jax.serving.app import make_app
        from qpr_jax.serving.guard import LOOPBACK
        from qpr_jax.serving.models import Limits
        from qpr_jax.serving.protocol import Protocol
    token = _token(token_file)
    hosts = [*LOOPBACK, *host_names(host, allowed_host)]
    with listen(host, port) as listening:
        retriever = load_index(folder, cross_encoder, half=half)
        _warm_up(retriever)
        threads = threads or cpu_count()
        app = make_app(
            retriever, token=token, limits=Limits(**limits), threads=threads, allowed_hosts=hosts
        )
        off: dict[str, Any] = dict.fromkeys(("access_log", "server_header", "proxy_headers"), False)
        config = uvicorn.Config(
            app, http=Protocol, ws="none", log_level="error", timeout_graceful_shutdown=30, **off
        )
        gc.freeze()  # the index stays until the end, so the collector need not scan it
        name, port = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        url, writing = f"http://{name}:{port}", "with the token" if token else "off"
        log.info("%s: %s questions at %s, writing %s", folder, f"{len(retriever):,}", url, writing)
        if wants_json():
            facts = {"folder": folder, "questions": len(retriever), "url": url}
            click.echo(json.dumps(facts | {"writing": bool(token)}))
        if len(hosts) == len(LOOPBACK):
            log.info(spell("only requests to localhost are answered; see {allowed_host}"))
        run_server(uvicorn.Server(config), listening)


def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until a signal ends it: KeyboardInterrupt by Ctrl-C."""
    server.run([listening])
    if server.started:  # uvloop may drop the KeyboardInterrupt that comes as its last task ends
        raise KeyboardInterrupt


def _warm_up(retriever: Retriever) -> None:
    """Compute and compile what the first queries would wait for."""
    retriever.encoder.warm_up()
    for word in retriever.second_stages.words(retriever.index):
        retriever.search(["warm up"], rerank=word)


def host_names(host: str, allowed: Sequence[str]) -> list[str]:
    """The names that a `Host` header may have, besides the loopback ones.

    They are those of `--host`, if it names one address, and of `--allowed-host`.
    """
    own = _bracket_ipv6(host)
    names = [] if own in ("0.0.0.0", "[::]") else [own]
    for name in map(_bracket_ipv6, allowed):
        if not re.fullmatch(r"\*|\[[0-9a-f:.]+\]|[\w.-]+", name, re.ASCII):
            what = f"expected a name or an address without port, got {name!r}"
            raise UserError(what, setting="allowed_host")
        names.append(name)
    return names


def _bracket_ipv6(name: str) -> str:
    """An IPv6 address as browsers write it; any other name as it is."""
    try:
        return f"[{ipaddress.IPv6Address(name.strip('[]'))}]"
    except ValueError:
        return name


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; UserError where it cannot."""
    if not host:
        what = "expected an address, got none"
        raise UserError(what, setting="host", remedy="give {host=0.0.0.0} for all addresses")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        what = f"expected an address of this machine, got {host!r} ({error.strerror})"
        raise UserError(what, setting="host") from None
    except OSError as error:
        what = f"cannot listen at {host}:{port} ({error})"
        raise UserError(what, remedy="choose another {host} or {port}") from None


def _token(path: str | None) -> str:
    """The token that clients must send to write; empty where there is none."""
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
        got = "another" if token else "none"
        raise UserError(f"{source}: expected a token of printable ASCII without blanks, got {got}")
    return token
