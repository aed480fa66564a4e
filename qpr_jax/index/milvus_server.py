"""A Milvus server: its address, the settings of the environment, and calls that end in time.

    milvus://HOST:19530/COLLECTION

Credentials are in the environment alone (`Settings`), so that no log, process list or collection
has them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from qpr_jax.errors import UnavailableError, UserError
from qpr_jax.extras import needs

PREFIX = "milvus://"
CONSISTENCY = ("session", "strong", "bounded", "eventual")
_PORT = 19530
_ADDRESS = re.compile(
    r"milvus://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?"
    r"/(?P<name>[A-Za-z_][A-Za-z0-9_]{0,199})"
)
_MISSING = 100  # the code of a collection that is not there
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED", "auth check failure", "permission deny")
_POLL = 0.2  # seconds between two looks at a work of the server
_PATIENCE = 60  # times that a call is repeated which the server does not finish in time


@dataclass(frozen=True)
class Address:
    """A collection of a server; as text it has no credentials."""

    host: str
    port: int
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address of a text; a UserError for another does not repeat it: it may have a key."""
        match = _ADDRESS.fullmatch(text)
        if not match:
            got = "credentials in it" if "@" in text else "something else"
            raise UserError(
                f"expected an address milvus://HOST:{_PORT}/COLLECTION, its collection of letters, "
                f"digits and underscores, got {got}",
                remedy="write it as milvus://localhost:19530/questions; credentials belong into "
                "QPR_MILVUS_TOKEN, or QPR_MILVUS_USER and QPR_MILVUS_PASSWORD",
            )
        return cls(match["host"], int(match["port"] or _PORT), match["name"])

    def __str__(self) -> str:
        return f"{PREFIX}{self.host}:{self.port}/{self.name}"


def is_address(named: object) -> bool:
    """Whether this is meant to be the address of a collection, not a folder."""
    return isinstance(named, str) and named.startswith(PREFIX)


@dataclass(frozen=True)
class Settings:
    """The settings of the environment; each is `QPR_MILVUS_` and the name in capitals.

    Attributes:
      timeout: seconds after which a call ends with an error.
      consistency: what a search sees: "session", all that this process wrote; "strong", all that
        anyone did; "bounded", all but the last seconds; "eventual", what has arrived.
      token, user, password: of the server.
      tls: whether to encrypt, "1" or "0".
      ca: the file of the certificate authority of the server, unless it is a public one (PEM).
      certificate, key: the files of the client's own, where the server asks for one; with `ca`.
      database: of the server.
    """

    timeout: float = 10.0
    consistency: str = "session"
    token: str = dataclasses.field(default="", repr=False)
    user: str = dataclasses.field(default="", repr=False)
    password: str = dataclasses.field(default="", repr=False)
    tls: str = "0"
    ca: str = ""
    certificate: str = ""
    key: str = ""
    database: str = ""

    @classmethod
    def read(cls) -> Self:
        """Those of the environment; UserError for a value that makes no sense."""
        fields = [field.name for field in dataclasses.fields(cls)]
        given: dict[str, Any] = {
            name: value for name in fields if (value := os.environ.get(_variable(name)))
        }
        _check("consistency", given, CONSISTENCY)
        _check("tls", given, ("0", "1"))
        if "timeout" in given:
            text = given["timeout"]
            try:
                given["timeout"] = float(text)
            except ValueError:
                given["timeout"] = 0.0
            if not 0 < given["timeout"] < 1e6:
                raise UserError(f"{_variable('timeout')}: expected seconds, as 10, got {text!r}")
        settings = cls(**given)
        settings.check_files()
        return settings

    def check_files(self) -> None:
        """UserError for a file of TLS that is missing, or that would not be used."""
        files = {name: getattr(self, name) for name in ("ca", "certificate", "key")}
        for name, path in files.items():
            if path and self.tls != "1":
                raise UserError(
                    f"expected {_variable('tls')}=1 with {_variable(name)}, got {self.tls}"
                )
            if path and not os.access(path, os.R_OK):
                raise UserError(f"{_variable(name)}: expected a file that can be read, got {path}")
        if (self.certificate or self.key) and not all(files.values()):
            missing = ", ".join(_variable(name) for name, path in files.items() if not path)
            raise UserError(f"expected all files of a client with a certificate, got no {missing}")

    def files(self) -> dict[str, str]:
        """The files of TLS as pymilvus's client takes them."""
        if self.certificate:
            own = {"client_pem_path": self.certificate, "client_key_path": self.key}
            return own | {"ca_pem_path": self.ca}
        # It reads `ca_pem_path` with a client's certificate alone.
        return {"server_pem_path": self.ca} if self.ca else {}


def _variable(name: str) -> str:
    return f"QPR_MILVUS_{name.upper()}"


def _check(name: str, given: dict[str, Any], choices: Sequence[str]) -> None:
    if (value := given.get(name, choices[0])) not in choices:
        expected = f"expected one of {', '.join(choices)}"
        raise UserError(f"{_variable(name)}: {expected}, got {value!r}")


class MissingError(UserError):
    """A collection that is not there."""


class Server:
    """The server of an address; safe to use from several threads.

    Every call ends within `settings.timeout`: an UnavailableError where the server is gone or slow.
    """

    def __init__(self, address: Address) -> None:
        """Connect."""
        self.address, self.settings = address, Settings.read()
        with needs(f"{address}", "qpr_jax[milvus]"):
            import grpc
            import pymilvus
        # It logs every failed call with a traceback; the errors that are raised say the same.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.types = pymilvus.DataType
        self._bug = pymilvus.exceptions.ParamError, pymilvus.exceptions.DataNotMatchException
        self._failed = pymilvus.MilvusException, grpc.RpcError
        self._client = self._answer(self._connect)

    def _connect(self) -> Any:
        import pymilvus

        own = self.settings
        secure = own.tls == "1"
        return pymilvus.MilvusClient(
            f"{'https' if secure else 'http'}://{self.address.host}:{self.address.port}",
            user=own.user,
            password=own.password,
            token=own.token,
            db_name=own.database,
            timeout=own.timeout,
            secure=secure,
            **own.files(),
        )

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of pymilvus's client; `timeout`: other seconds than of the settings."""
        seconds = {"timeout": self.settings.timeout}
        return self._answer(getattr(self._client, method), *args, **(seconds | kwargs))

    def now(self) -> int:
        """The server's present timestamp: a search of this guarantee sees all writes before it.

        pymilvus has its sessions see what they inserted, but not what they deleted.
        """
        handler = self._client._get_connection()
        return int(self._answer(handler.alloc_timestamp, timeout=self.settings.timeout))

    def _answer(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except self._bug:
            raise
        except self._failed as error:
            code = getattr(error, "code", None)
            reason = " ".join(str(getattr(error, "message", error)).split())[:300]
            if code == _MISSING or "collection not found" in reason:
                raise MissingError(f"{self.address}: found no collection ({reason})") from None
            # Of a connection that is refused only the cause says why.
            if any(word in f"{reason} {error} {error.__cause__}" for word in _REFUSED):
                raise UserError(
                    f"{self.address}: Milvus refuses the credentials",
                    remedy="set QPR_MILVUS_TOKEN, or QPR_MILVUS_USER and QPR_MILVUS_PASSWORD",
                ) from None
            raise UnavailableError(
                f"{self.address}: Milvus does not answer as it should ({reason})",
                remedy="see whether it runs; QPR_MILVUS_TIMEOUT is how many seconds it may take",
            ) from None

    def describe(self, name: str) -> dict[str, Any] | None:
        """The facts of a collection, by its name or alias; None where there is none."""
        try:
            found: dict[str, Any] = self.call("describe_collection", name)
        except MissingError:
            return None
        return found

    def count(self, name: str, where: str = "", **how: Any) -> int:
        """How many entities of a collection there are for an expression; how: as of `call`."""
        (found,) = self.call("query", name, filter=where, output_fields=["count(*)"], **how)
        return int(found["count(*)"])

    def collections(self) -> list[str]:
        """The names of all collections."""
        return [*self.call("list_collections")]

    def drop(self, name: str) -> None:
        """Remove a collection, if it is there."""
        self.call("drop_collection", name)

    def set_properties(self, name: str, properties: dict[str, str]) -> None:
        """Set properties of a collection; the others stay."""
        self.call("alter_collection_properties", name, properties)

    def create(
        self, name: str, fields: Sequence[tuple[str, str, dict[str, Any]]], **properties: str
    ) -> None:
        """Make a collection with dynamic fields, without an index.

        fields: name, type and parameters of each; the first is the primary key.
        """
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=True)
        for i, (field, kind, parameters) in enumerate(fields):
            schema.add_field(field, getattr(self.types, kind), is_primary=i == 0, **parameters)
        level = {"consistency_level": "Session", "properties": properties}
        self.call("create_collection", name, schema=schema, **level)

    def segments(self, name: str) -> int:
        """How many segments a collection has on disk."""
        return len(self.call("list_persistent_segments", name))

    def settle(self, name: str) -> None:
        """Have what was inserted in as few segments as the server makes, before it is indexed.

        A segment has lists of its own, so that more of them cost more time a search.
        """
        self._flush(name)
        if self.segments(name) < 2:
            return
        # Milvus compacts what is indexed, and an index that is none takes no time.
        self._index(name, {"index_type": "FLAT", "metric_type": "L2"})
        job = self._compact(name)
        for state in self._poll("get_compaction_state", job):
            if "Completed" in str(state):
                return

    def _flush(self, name: str) -> None:
        """Have what was inserted written to segments, which may take longer than a call."""
        for left in reversed(range(_PATIENCE)):
            try:
                self.call("flush", name)
            except UnavailableError:
                self.call("list_collections")  # an error where the server is gone
                if not left:
                    raise
            else:
                return

    def _compact(self, name: str) -> int:
        """Begin a compaction. Milvus before 2.4 asks for the number of a collection."""
        from pymilvus.grpc_gen import milvus_pb2

        number = self.call("describe_collection", name)["collection_id"]
        request = milvus_pb2.ManualCompactionRequest(collectionID=number, collection_name=name)
        call = self._client._get_connection()._stub.ManualCompaction
        return int(self._answer(call, request, timeout=self.settings.timeout).compactionID)

    def _index(self, name: str, index: dict[str, Any]) -> None:
        """Index `vector`, in place of another index, and wait until that is done."""
        if self.call("list_indexes", name):
            present = self.call("describe_index", name, "vector")
            asked = {"index_type": index["index_type"], **index.get("params", {})}
            if any(present.get(key) != str(value) for key, value in asked.items()):
                self.call("release_collection", name)
                self.call("drop_index", name, "vector")
        how = self._client.prepare_index_params()
        how.add_index("vector", **index)
        self.call("create_index", name, index_params=how, sync=False)
        for facts in self._poll("describe_index", name, "vector"):
            if facts.get("state") == "Failed":
                raise UserError(f"{self.address}: Milvus cannot build the index {index}")
            if not facts.get("pending_index_rows") and facts.get("state") != "InProgress":
                return

    def load(self, name: str, index: dict[str, Any]) -> None:
        """Index `vector`, and have the collection in the server's memory, however long it takes."""
        self._index(name, index)
        self.call("load_collection", name, sync=False, _async=True)
        for state in self._poll("get_load_state", name):
            if "Loaded" in str(state["state"]):
                return

    def _poll(self, method: str, *args: Any) -> Iterator[Any]:
        while True:
            yield self.call(method, *args)
            time.sleep(_POLL)
