"""The command `serve`: answer over HTTP."""

from __future__ import annotations

import copy
import functools
import gc
import ipaddress
import json
import logging
import os
import pathlib
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from qpr_jax.cli import command as cli
from qpr_jax.cli.program import use_huge_pages
from qpr_jax.errors import UserError, counted, needs
from qpr_jax.running import cpu_count

if TYPE_CHECKING:
    from qpr_jax.serving.app import Settings

log = logging.getLogger("qpr_jax")

_SILENT = 8  # seconds after which a worker that says nothing is replaced
TOKEN = "QPR_TOKEN"
_HOSTS = "Host that requests may name, besides --host and localhost; repeatable; *: any."
_ORIGINS = "Web pages that may read answers (CORS), as https://shop.example; repeatable."


def host_name(name: str) -> str:
    """Return a name as the header `Host` has it, an IPv6 address in brackets."""
    try:
        return f"[{ipaddress.IPv6Address(name.strip('[]'))}]"
    except ValueError:
        if re.fullmatch(r"\*|[\w.-]+", name, re.ASCII):
            return name
    raise click.BadParameter(f"expected a name or an address without port, got {name!r}")


def origin(text: str) -> str:
    """Return what is an origin of web pages."""
    if not re.fullmatch(r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:[0-9]+)?", text, re.ASCII):
        raise click.BadParameter(f"expected an origin, as https://shop.example, got {text!r}")
    return text


PORT = click.IntRange(0, 65535)
host_option = cli.option("--host", default="127.0.0.1", help="Address; 0.0.0.0: all of them.")
allowed_hosts = cli.option(
    "--allowed-host", type=host_name, metavar="NAME", multiple=True, help=_HOSTS
)


@cli.command(stopped="changes that were answered are on disk")
@cli.argument("folder", type=cli.PATH)
@host_option
@cli.option("--port", default=8000, type=PORT)
@allowed_hosts
@cli.option("--allowed-origin", type=origin, metavar="ORIGIN", multiple=True, help=_ORIGINS)
@cli.option("--access-log", is_flag=True, help="Print a line for each request.")
@cli.option("--token-file", type=cli.FILE, help=f"File with the token for writing; else ${TOKEN}.")
@cli.option("--cross-encoder", type=cli.PATH, help="Folder of a cross-encoder.")
@cli.option("--workers", default=1, type=cli.COUNT, help="Number of processes.")
@cli.option("--threads", type=cli.COUNT, help="Threads of a worker.  [default: cores]")
@cli.option("--max-body", default=1 << 20, type=cli.COUNT, help="Largest body of a request, bytes.")
def serve(
    folder: str,
    host: str,
    port: int,
    allowed_host: tuple[str, ...],
    allowed_origin: tuple[str, ...],
    access_log: bool,
    token_file: str | None,
    cross_encoder: str | None,
    workers: int,
    threads: int | None,
    max_body: int,
) -> None:
    """Serve the index of FOLDER over HTTP, with a search page at /.

    POST /search {"queries": [...], "k": 5, "rerank": null}, POST /encode, POST /questions, GET and
    DELETE /questions/ID, POST /reload, GET /health, /ready, /metrics, /openapi.json. Adding and
    removing questions, and a reload, need a token. Changes of other processes are seen; SIGHUP also
    reads the encoder again. SIGTERM and Ctrl-C stop the server after it has answered the requests
    it has begun. Put a proxy in front of a public server: there is no TLS and no rate limit.

    Example: qpr serve my_index --port 8000
    """
    # By default FAISS's threads spin while they wait for the next batch.
    use_huge_pages(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS=str(threads or cpu_count()))
    with needs("`qpr serve`", ".[serve]"):
        from qpr_jax.serving.app import Settings, make_app
    settings = Settings(
        folder=folder,
        token=_token(token_file),
        max_body=max_body,
        allowed_hosts=host_names(host, allowed_host),
        allowed_origins=[*allowed_origin],
        cross_encoder=cross_encoder,
    )
    with listen(host, port) as listening:
        port = listening.getsockname()[1]
        url = f"http://{host_name(host)}:{port}"
        say = functools.partial(_say, settings, url, cli.wants_json())
        if workers == 1:
            if hangup := getattr(signal, "SIGHUP", 0):  # Windows has none
                signal.signal(hangup, signal.SIG_IGN)  # until there is something to reload
            app = make_app(settings.open_index(), settings, reload_signal=hangup, on_ready=say)
            run_app(app, listening, access_log=access_log)
            return
        say = functools.partial(say, len(settings.open_index()))
    where = {"host": host, "port": port, "workers": workers, "access_log": access_log}
    _serve_by_workers(settings, say, where)


def _say(settings: Settings, url: str, as_json: bool, count: int) -> None:
    gc.freeze()  # the index stays, so the collector need not scan it
    writing = "with the token" if settings.token else "off"
    what = counted(count, "question")
    log.info("%s: %s at %s, writing %s", settings.folder, what, url, writing)
    if as_json:
        facts = {"folder": settings.folder, "questions": count, "url": url}
        click.echo(json.dumps(facts | {"writing": bool(settings.token)}))


def _serve_by_workers(settings: Settings, say: Callable[[], None], where: dict[str, Any]) -> None:
    """Serve in several processes, which uvicorn starts and watches; `say` once all are ready."""
    import uvicorn

    from qpr_jax.serving.app import SETTINGS

    def wait() -> None:
        while len([*pathlib.Path(shared).glob("ready-*")]) < where["workers"]:
            time.sleep(0.1)
        say()

    with tempfile.TemporaryDirectory(prefix="qpr") as shared:
        threading.Thread(target=wait, daemon=True).start()
        os.environ[SETTINGS] = settings.model_dump_json()
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared  # `/metrics` sums what is in it
        uvicorn.run(
            "qpr_jax.serving.app:create_app",
            factory=True,
            timeout_worker_healthcheck=_SILENT,
            **_uvicorn_options(),
            **where,
        )


def run_app(app: Any, listening: socket.socket, *, access_log: bool = False) -> None:
    """Serve an application until a signal ends it: KeyboardInterrupt by Ctrl-C."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, access_log=access_log, **_uvicorn_options()))
    server.run([listening])
    if server.started:  # uvloop may drop the KeyboardInterrupt that comes as its last task ends
        raise KeyboardInterrupt


def _uvicorn_options() -> dict[str, Any]:
    """Return the options of uvicorn that all servers have."""
    from uvicorn.config import LOGGING_CONFIG

    logs = copy.deepcopy(LOGGING_CONFIG)
    logs["loggers"]["uvicorn.error"]["level"] = "ERROR"
    line = '%(asctime)s %(client_addr)s "%(request_line)s" %(status_code)s'
    logs["formatters"]["access"] |= {"fmt": line, "use_colors": False}
    return {
        "log_config": logs,
        "server_header": False,
        "proxy_headers": False,
        "ws": "none",
        "timeout_graceful_shutdown": 30,
    }


def host_names(host: str, allowed: Sequence[str]) -> list[str]:
    """Return the names that a `Host` header may have, besides the loopback ones."""
    from qpr_jax.serving.middleware import LOOPBACK

    names = [*({host_name(host)} - {"0.0.0.0", "[::]"}), *allowed]
    if {*names} <= {*LOOPBACK}:
        log.info("only requests to localhost are answered; see `--allowed-host`")
    return names


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; UserError where it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except socket.gaierror as error:
        what = f"expected an address of this machine, got {host!r} ({error.strerror})"
        raise UserError(what, setting="host") from None
    except OSError as error:
        what = f"cannot listen at {host}:{port} ({os.strerror(error.errno or 0)})"
        raise UserError(what, remedy="choose another --host or --port") from None


def _token(path: str | None) -> str:
    """Return the token that clients must send to write, of a file or $QPR_TOKEN; "" for none."""
    text = pathlib.Path(path).read_text("utf-8", "replace") if path else os.environ.get(TOKEN)
    if text is None:
        return ""
    if not re.fullmatch("[!-~]+", text.strip()):
        source = path or f"${TOKEN}"
        raise UserError(f"{source}: expected a token of printable ASCII without blanks")
    return text.strip()
