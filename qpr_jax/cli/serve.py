"""The command `serve`: answer over HTTP."""

from __future__ import annotations

import dataclasses
import functools
import gc
import ipaddress
import json
import logging
import logging.handlers
import os
import pathlib
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli.command import Command, wants_json
from qpr_jax.cli.options import NamedPath, load_index
from qpr_jax.cli.program import use_huge_pages
from qpr_jax.errors import UserError, spell
from qpr_jax.extras import needs
from qpr_jax.machine import cpu_count
from qpr_jax.serving.limits import Limits

if TYPE_CHECKING:
    import uvicorn

    from qpr_jax.retriever import Retriever

log = logging.getLogger("qpr_jax")

TOKEN = "QPR_TOKEN"
_ORIGIN = re.compile(r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:[0-9]+)?", re.ASCII)


def _limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option `--max-NAME` for each limit."""
    for limit in reversed(dataclasses.fields(Limits)):
        whole, may_be_0 = isinstance(limit.default, int), limit.name == "rate"
        kind = click.IntRange(min=1) if whole else click.FloatRange(min=0, min_open=not may_be_0)
        name = f"--max-{limit.name.replace('_', '-')}"
        help_text = limit.metadata["help"]
        command = click.option(name, limit.name, default=limit.default, type=kind, help=help_text)(
            command
        )
    return command


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
@click.option(
    "--allowed-origin",
    metavar="ORIGIN",
    multiple=True,
    help="Of web pages that may read the answers in a browser (CORS), as https://shop.example; "
    "may be repeated.",
)
@click.option("--access-log", type=NamedPath(dir_okay=False), help="A file; -: standard output.")
@click.option("--token-file", type=NamedPath(), help=f"Has the token for writing; else ${TOKEN}.")
@click.option("--cross-encoder", type=NamedPath(), help="Folder of a cross-encoder.")
@click.option("--half", is_flag=True, help="Encode in half precision: less memory, faster.")
@click.option("--threads", type=click.IntRange(min=1), help="Of FAISS; default: one a core.")
@_limit_options
def serve(
    folder: str,
    host: str,
    port: int,
    allowed_host: tuple[str, ...],
    allowed_origin: tuple[str, ...],
    access_log: str | None,
    token_file: str | None,
    cross_encoder: str | None,
    half: bool,
    threads: int | None,
    **limits: Any,
) -> None:
    """Serve the index of FOLDER over HTTP, with a page at / to try it.

    POST /search {"queries": [...], "k": 5, "rerank": null}, POST /encode, POST /questions, GET and
    DELETE /questions/ID, POST /reload, GET /health, /ready, /metrics, /openapi.json. Adding and
    removing questions, and a reload, need a token, which is no argument because other users of the
    machine could read it there. SIGHUP reloads the index of FOLDER while requests are answered.
    SIGTERM and Ctrl-C stop the server after it has answered the requests it has begun.

    Example: qpr serve my_index --port 8000
    """
    # By default FAISS's threads spin while they wait for the next batch.
    use_huge_pages(OMP_WAIT_POLICY="passive")
    with needs("`qpr serve`", "qpr_jax[serve]"):
        import uvicorn

        from qpr_jax.serving.app import make_app
        from qpr_jax.serving.guard import LOOPBACK
        from qpr_jax.serving.protocol import Protocol
    token, as_json = _token(token_file), wants_json()
    hosts = [*LOOPBACK, *host_names(host, allowed_host)]
    bounds, origins = Limits(**limits), origin_names(allowed_origin)
    log_request = open_access_log(access_log) if access_log else None

    def open_index() -> Retriever:
        return load_index(folder, cross_encoder, half=half)

    with listen(host, port) as listening:
        if hangup := getattr(signal, "SIGHUP", 0):  # Windows has none
            signal.signal(hangup, signal.SIG_IGN)  # until there is something to reload
        retriever = open_index()
        facts = {"folder": folder, "questions": len(retriever), "url": _url(host, listening)}
        facts["writing"] = bool(token)
        app = make_app(
            retriever,
            token=token,
            limits=bounds,
            threads=threads or cpu_count(),
            allowed_hosts=hosts,
            allowed_origins=origins,
            access_log=log_request,
            open_again=open_index,
            reload_signal=hangup,
            on_ready=functools.partial(_say_ready, facts, as_json, len(hosts) == len(LOOPBACK)),
        )
        del retriever  # else it would stay in memory after a reload
        off: dict[str, Any] = dict.fromkeys(("access_log", "server_header", "proxy_headers"), False)
        protocol = Protocol.limited(bounds)
        config = uvicorn.Config(
            app, http=protocol, ws="none", log_level="error", timeout_graceful_shutdown=30, **off
        )
        run_server(uvicorn.Server(config), listening)


def _url(host: str, listening: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listening.getsockname()[1]}"


def _say_ready(facts: Mapping[str, Any], as_json: bool, only_local: bool) -> None:
    gc.freeze()  # the index stays, so the collector need not scan it
    folder, questions, url, writes = facts.values()
    writing = "with the token" if writes else "off"
    log.info("%s: %s questions at %s, writing %s", folder, f"{questions:,}", url, writing)
    if as_json:
        click.echo(json.dumps(facts))
    if only_local:
        log.info(spell("only requests to localhost are answered; see {allowed_host}"))


def run_server(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve until a signal ends it: KeyboardInterrupt by Ctrl-C."""
    server.run([listening])
    if server.started:  # uvloop may drop the KeyboardInterrupt that comes as its last task ends
        raise KeyboardInterrupt


def open_access_log(path: str) -> Callable[[str], object]:
    """The function that writes a line to a file, which may be renamed meanwhile (logrotate)."""
    handler: logging.Handler
    try:
        if path == "-":
            handler = logging.StreamHandler(sys.stdout)
        else:
            handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        what = f"expected a file that can be written, got {path} ({error.strerror})"
        raise UserError(what, setting="access_log") from None
    access = logging.Logger("qpr_jax.access")
    access.addHandler(handler)
    return access.info


def origin_names(allowed: Sequence[str]) -> list[str]:
    """The origins of `--allowed-origin`; UserError for what is none."""
    for origin in allowed:
        if not _ORIGIN.fullmatch(origin):
            what = f"expected an origin, as https://shop.example, got {origin!r}"
            raise UserError(what, setting="allowed_origin")
    return [*allowed]


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
        what = f"cannot listen at {host}:{port} ({os.strerror(error.errno or 0)})"
        raise UserError(what, remedy="choose another {host} or {port}") from None


def _token(path: str | None) -> str:
    """The token that clients must send to write; empty where there is none."""
    source, token = path or f"${TOKEN}", os.environ.get(TOKEN)
    if path is not None:
        try:
            token = pathlib.Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            what = f"{path}: expected a file with a token ({reason})"
            raise UserError(what, remedy="write the token to this file, as text") from None
    if token is None:
        return ""
    token = token.strip()
    if not re.fullmatch("[!-~]+", token):
        got = "another" if token else "none"
        raise UserError(f"{source}: expected a token of printable ASCII without blanks, got {got}")
    return token
