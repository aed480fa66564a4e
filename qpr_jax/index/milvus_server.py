"""A Milvus server: the address of a collection, settings, calls, and its kinds of index.

Settings are environment variables, so that no log, process list or collection has credentials:

    QPR_MILVUS_TIMEOUT       seconds after which a call fails, 10 by default
    QPR_MILVUS_CONSISTENCY   what a search sees: `session` (default), all that this store wrote;
                             `strong`, all that anyone wrote; `bounded` or `eventual`, less
    QPR_MILVUS_TOKEN         credentials
    QPR_MILVUS_OPTIONS       other arguments of pymilvus.MilvusClient, as JSON: user and password,
                             db_name; {"secure": true} to encrypt, and its PEM files
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from typing import Any

from qpr_jax.errors import UnavailableError, UserError, needs
from qpr_jax.files import parse_json
from qpr_jax.index.protocol import IndexConfig

LEVELS = {"session": "Session", "strong": "Strong", "bounded": "Bounded", "eventual": "Eventually"}
MAX_LISTS = 65_536  # Milvus's limit
_FACTORY = re.compile(
    r"Flat|HNSW(?P<links>[2-9]|[1-9]\d)"
    r"|IVF(?P<lists>[1-9]\d{0,4}),(?P<codes>Flat|SQ8|PQ(?P<parts>[1-9]\d*))"
)
_ADDRESS = re.compile(
    r"milvus://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?"
    r"/(?P<name>[A-Za-z_][A-Za-z0-9_]{0,199})"
)
_DENIED = ("UNAUTHENTICATED", "PERMISSION_DENIED", "auth check failure", "permission deny")


def parse_address(text: str) -> tuple[str, str]:
    """Return HOST:PORT and the collection; the UserError for another text does not repeat it."""
    match = _ADDRESS.fullmatch(text)
    if not match:
        what = "expected milvus://HOST:19530/NAME, a name of letters, digits and _, no credentials"
        raise UserError(what, remedy="put credentials into QPR_MILVUS_TOKEN")
    return f"{match['host']}:{match['port'] or 19530}", match["name"]


class Server:
    """The server of an address, thread-safe; UnavailableError after the timeout if it is down."""

    def __init__(self, address: str) -> None:
        """Connect; UserError for an invalid address or setting."""
        host, self.name = parse_address(address)
        self.address, self._process = address, os.getpid()
        self.consistency = _setting("CONSISTENCY", tuple(LEVELS))
        timeout = _setting("TIMEOUT") or "10"
        if not re.fullmatch(r"\d{1,6}(\.\d+)?", timeout) or not float(timeout):
            raise UserError(f"QPR_MILVUS_TIMEOUT must be seconds, such as 10, got {timeout!r}")
        self._timeout = float(timeout)
        options = parse_json(_setting("OPTIONS").encode() or b"{}", "QPR_MILVUS_OPTIONS")
        if not isinstance(options, dict):
            raise UserError('QPR_MILVUS_OPTIONS must be a JSON object, such as {"secure": true}')
        with needs(address, ".[milvus]"):
            import pymilvus
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs what it raises
        self.types = pymilvus.DataType
        url = f"{'https' if options.get('secure') else 'http'}://{host}"
        options = {"token": _setting("TOKEN"), "timeout": self._timeout} | options
        self.client = self.answer(lambda: pymilvus.MilvusClient(url, **options))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the client; `timeout` replaces that of the settings."""
        if os.getpid() != self._process:
            what = f"{self.address}: the connection belongs to another process"
            raise UserError(what, remedy="load the retriever after the fork, in each process")
        kwargs = {"timeout": self._timeout} | kwargs
        return self.answer(lambda: getattr(self.client, method)(*args, **kwargs))

    def answer(self, call: Callable[[], Any]) -> Any:
        """Call what calls pymilvus; its errors become UserErrors."""
        import grpc
        import pymilvus

        try:
            return call()
        except (pymilvus.MilvusException, grpc.RpcError) as error:
            reason = " ".join(str(getattr(error, "message", error)).split())[:300]
            # The text of a refused connection does not say why; its cause does.
            if any(word in f"{reason} {error} {error.__cause__}" for word in _DENIED):
                what = f"{self.address}: Milvus refuses the credentials"
                raise UserError(what, remedy="set QPR_MILVUS_TOKEN") from None
            what = f"{self.address}: Milvus request failed: {reason}"
            remedy = "check the server, or raise QPR_MILVUS_TIMEOUT"
            raise UnavailableError(what, remedy=remedy) from None


def index_parameters(index_config: IndexConfig, dimension: int) -> dict[str, Any]:
    """Return Milvus's index of an `IndexConfig`; UserError for one that Milvus lacks."""
    match = _FACTORY.fullmatch("HNSW32" if index_config.factory == "auto" else index_config.factory)
    lists, parts = (int(match[name] or 0) if match else 0 for name in ("lists", "parts"))
    if not match or lists > MAX_LISTS or (parts and dimension % parts):
        what = "Milvus has `auto` (HNSW32), `Flat`, `HNSW2` to `HNSW99`, and `IVF2000,` (up to "
        what += f"{MAX_LISTS}) before `Flat`, `SQ8` or `PQ50` (a divisor of {dimension}), got"
        raise UserError(f"{what} {index_config.factory!r}", setting="factory")
    kind, params = "FLAT", {}
    if match["links"]:
        kind, params = "HNSW", {"M": int(match["links"]), "efConstruction": 200}
    elif parts:
        kind, params = "IVF_PQ", {"nlist": lists, "m": parts, "nbits": 8}
    elif lists:
        kind, params = f"IVF_{match['codes'].upper()}", {"nlist": lists}
    return {"index_type": kind, "metric_type": index_config.metric.upper(), "params": params}


def _setting(name: str, choices: tuple[str, ...] = ()) -> str:
    """Return a variable of the environment, by default the first choice or ""."""
    value = os.environ.get(f"QPR_MILVUS_{name}") or (choices[0] if choices else "")
    if choices and value not in choices:
        raise UserError(f"QPR_MILVUS_{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
