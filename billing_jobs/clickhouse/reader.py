"""`python -m billing_jobs.clickhouse.reader`: runs statements on a snapshot of the tables, in a process that may be
killed at any moment without a loss.

It holds no secret and no connection but that to billing, ends with it, and ends by itself when nobody has asked for a
while. Nothing that somebody sends is ever run as it stands: the engine makes a syntax tree of it, the gate looks at the
tree, and what runs is a text that the engine writes from that tree. So there is no comment, no second statement and no
other reading of it behind the gate.
"""

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from billing_jobs.clickhouse import native
from billing_jobs.clickhouse.access import (
    OPERATOR,
    SERVER_NAME,
    TENANT_SETTING,
    Limits,
    reach_of,
    rules,
    users,
)
from billing_jobs.clickhouse.asks import Answer, Ask
from billing_jobs.clickhouse.channel import ChannelClosed, receive, send
from billing_jobs.clickhouse.errors import ClickHouseFailed, Refused, of_the_engine
from billing_jobs.clickhouse.fence import fence_in
from billing_jobs.clickhouse.gate import MAX_STATEMENT_BYTES, Rules, check
from billing_jobs.embedded import EMBEDDED_DATABASE, EngineFailed, connect, load_engine, start_engine, statements_of

PR_SET_PDEATHSIG = 1
NICENESS = 5
MAX_FILE_BYTES = 16_777_216
"""Nothing of size is written by who only reads."""
IDLE_S = 60.0
"""Then it ends: what it has open keeps parts on the disk that were merged or dropped since, and memory."""
MAX_LOOKED_AT = 256
MAX_LOOKED_AT_CHARS = 8_192
"""Of a statement, its parameters and what runs in its place. What is longer is looked at each time."""
_Looked = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""All that a verdict depends on, and the tenant."""
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})
_NOT_AS_JSON = re.compile(r"does not support JSON serialization|is not supported by parseQueryToJSON")
_NAME = r"([`\"]?)(\w+)\{quote}"
_DESCRIBES_TABLE = re.compile(
    rf"\s*DESC(?:RIBE)?\s+(?:TABLE\s+)?{_NAME.format(quote=1)}(?:\.{_NAME.format(quote=3)})?"
    r"(?:\s+FORMAT\s+(\w+))?\s*;?\s*",
    re.ASCII | re.IGNORECASE,
)
_DESCRIBES_ROWS = re.compile(
    r"\s*DESC(?:RIBE)?\s+(?:TABLE\s*)?\((.*)\)(?:\s+FORMAT\s+(\w+))?\s*;?\s*", re.ASCII | re.IGNORECASE | re.DOTALL
)
"""The one kind of statement that the engine makes no tree of, taken by its whole text and written anew as well. What
stands in brackets is looked at as a statement of its own.
"""
_TENANT = re.compile(r"[a-z0-9][a-z0-9-]{0,47}")


class Reader:
    """One engine over one snapshot at a time. `views` are statements by the name of a reach, as billing has them."""

    def __init__(self, limits: Limits, server_memory_bytes: int, views: Mapping[str, str], *, gated: bool) -> None:
        self._limits = limits
        self._server_memory_bytes = server_memory_bytes
        self._views = views
        self._gated = gated
        self._rules: Rules | None = None
        self._engine_has: tuple[list[str], ...] | None = None
        """Functions, combinators and formats: the same over each snapshot."""
        self._looked_at: dict[_Looked, tuple[str, str]] = {}
        """Statements that were let through, and what runs in their place: the newest `MAX_LOOKED_AT`, over the one
        snapshot. A tenant's are its own: how soon one is answered tells nobody what others ask.
        """
        self._snapshot: Path | None = None
        self._anchor: Any = None

    def open(self, snapshot: Path, tenant: str) -> None:
        """Takes the place of the one before, whose folder is removed. Raises EngineFailed, RuntimeError."""
        self.close()
        self._snapshot, reach = snapshot, reach_of(tenant)
        self._anchor = start_engine(
            snapshot,
            users(reach, self._limits),
            f"&{TENANT_SETTING}=",
            f"<max_server_memory_usage>{self._server_memory_bytes}</max_server_memory_usage>"
            f"<display_name>{SERVER_NAME}</display_name>",
        )
        for statement in statements_of(self._views[reach.views]):
            self._anchor.query(statement, "Null")
        if self._engine_has is None:
            self._engine_has = tuple(
                str(self._anchor.query(query, "TabSeparatedRaw").bytes().decode()).split()
                for query in (
                    "SELECT lower(name) FROM system.functions",
                    "SELECT lower(name) FROM system.aggregate_function_combinators",
                    "SELECT name FROM system.formats WHERE is_output",
                )
            )
        functions, combinators, formats = self._engine_has
        longest_first = tuple(sorted(combinators, key=len, reverse=True))
        self._rules = rules(reach, frozenset(functions), longest_first, frozenset(formats))

    def close(self) -> None:
        if self._anchor is not None:
            self._anchor.close()
            self._anchor = None
        self._looked_at.clear()
        if self._snapshot is not None:
            shutil.rmtree(self._snapshot, ignore_errors=True)
            self._snapshot = None

    def answer(self, ask: Ask) -> Answer:
        """Raises ClickHouseFailed."""
        if len(ask.statement.encode()) > MAX_STATEMENT_BYTES:
            raise Refused("QUERY_IS_TOO_LARGE", f"the statement is longer than {MAX_STATEMENT_BYTES} bytes")
        if ask.tenant != OPERATOR and not _TENANT.fullmatch(ask.tenant):
            raise Refused("AUTHENTICATION_FAILED", "no such tenant")
        try:
            text, format_name = self._let_through(ask) if self._gated else (ask.statement, ask.format)
            with closing(self._connected(ask.tenant)) as connection:
                connection.query(f"USE {EMBEDDED_DATABASE}", "Null")
                for name, value in ask.settings.items():
                    connection.query(f"SET {name} = {_quoted(self._bounded(name, value))}", "Null")
                result = connection.query(text, format_name, params=ask.parameters)
                if result.size() > self._limits.result_bytes:
                    raise Refused(
                        "TOO_MANY_ROWS_OR_BYTES", f"the answer is larger than {self._limits.result_bytes} bytes"
                    )
                body = result.bytes()
                if format_name == "Native" and ask.protocol >= native.SINCE:
                    body = native.for_protocol(body)
                elapsed_ns = int(result.elapsed() * 1e9)
                return Answer(body, format_name, result.rows_read(), result.bytes_read(), elapsed_ns)
        except RuntimeError as error:
            raise of_the_engine(str(error)) from None

    def _bounded(self, name: str, value: str) -> str:
        """Clients hand on how long they will wait. That is no error where it is longer than a statement may run."""
        try:
            is_longer = name == "max_execution_time" and not 0 < float(value) <= self._limits.time_s
        except ValueError:
            is_longer = False  # the engine says what is wrong with it
        return f"{self._limits.time_s:g}" if is_longer else value

    def _connected(self, tenant: str) -> Any:
        """Read-only, as the tenant, and for one statement: what fails leaves its rest behind."""
        return connect(f"{self._snapshot}?{TENANT_SETTING}={tenant}&readonly=2")

    def _let_through(self, ask: Ask) -> tuple[str, str]:
        """As `_checked`, once for each statement, which the same parameters come with."""
        looked: _Looked = (ask.tenant, ask.statement, ask.format, tuple(sorted(ask.parameters.items())))
        if (known := self._looked_at.get(looked)) is not None:
            return known
        found = self._checked(ask)
        size = len(ask.statement) + len(found[0]) + sum(len(name) + len(value) for name, value in looked[3])
        if size <= MAX_LOOKED_AT_CHARS:
            while len(self._looked_at) >= MAX_LOOKED_AT:
                del self._looked_at[next(iter(self._looked_at))]
            self._looked_at[looked] = found
        return found

    def _checked(self, ask: Ask) -> tuple[str, str]:
        """What runs in the place of the statement, and the format of its answer. Raises Refused, and RuntimeError where
        it is none.
        """
        allowed = self._rules
        assert allowed is not None
        if (named := _DESCRIBES_TABLE.fullmatch(ask.statement)) is not None:
            return _described(named, allowed.tables), allowed.format_of(named[5] or ask.format)
        if (rows := _DESCRIBES_ROWS.fullmatch(ask.statement)) is not None:
            text, _ = self._written_anew(rows[1], allowed, ask.parameters)
            return f"DESCRIBE TABLE ({text})", allowed.format_of(rows[2] or ask.format)
        text, its_format = self._written_anew(ask.statement, allowed, ask.parameters)
        return text, allowed.format_of(its_format or ask.format)

    def _written_anew(self, statement: str, allowed: Rules, parameters: Mapping[str, str]) -> tuple[str, str | None]:
        """By the engine, from its tree of the statement, which the gate has let through; and the format that it names.
        Raises as `_checked` does.
        """
        with closing(self._connected("")) as parser:
            try:
                tree = parser.query(
                    "SELECT parseQueryToJSON({statement:String})",
                    "TabSeparatedRaw",
                    params={"statement": statement.translate(_ESCAPES)},
                ).bytes()
            except RuntimeError as error:
                raise _no_tree(str(error)) from None
            parsed = json.loads(tree)
            check(parsed, allowed, parameters)
            text = parser.query(
                "SELECT formatQueryFromJSON({tree:String})",
                "TabSeparatedRaw",
                params={"tree": tree.decode().rstrip("\n").translate(_ESCAPES)},
            ).bytes()
        named = parsed.get("format_ast")
        return text.decode().rstrip("\n"), None if named is None else str(named["name"])


def _described(found: "re.Match[str]", tables: frozenset[tuple[str, str]]) -> str:
    """Raises Refused."""
    database, table = (found[2], found[4]) if found[4] else (EMBEDDED_DATABASE, found[2])
    if (database, table) not in tables:
        raise Refused("UNKNOWN_TABLE", f"Table {database}.{table} does not exist")
    return f"DESCRIBE TABLE `{database}`.`{table}`"


def _no_tree(said: str) -> ClickHouseFailed:
    if _NOT_AS_JSON.search(said):
        return Refused("ACCESS_DENIED", "statements of this kind are not accepted")
    failed = of_the_engine(said)
    return ClickHouseFailed(failed.code, failed.name, str(failed).split(": In scope SELECT parseQueryToJSON")[0])


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _bound_this_process(folder: Path) -> None:
    """`folder`: where snapshots are, all that it may write."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    os.nice(NICENESS)
    load_engine()
    os.environ["TMPDIR"] = str(folder)
    fence_in(folder)


def serve(channel: socket.socket) -> None:
    """Until billing ends, or nobody asks any more."""
    header, _ = receive(channel)
    _bound_this_process(Path(header["folder"]))
    reader = Reader(Limits(**header["limits"]), header["server_memory_bytes"], header["views"], gated=header["gated"])
    with closing(reader):
        while True:
            try:
                header, _ = receive(channel, IDLE_S)
            except (ChannelClosed, TimeoutError):
                return
            _answer(channel, reader, header)


def _answer(channel: socket.socket, reader: Reader, header: dict[str, Any]) -> None:
    try:
        if "snapshot" in header:
            reader.open(Path(header["snapshot"]), header["tenant"])
            send(channel, {"opened": True})
            return
        answer = reader.answer(Ask(**header))
    except ClickHouseFailed as error:
        send(channel, _told(error))
    except (EngineFailed, RuntimeError, OSError) as error:
        send(channel, _told(Refused("NETWORK_ERROR", f"no snapshot: {error}"[:1_000])))
    else:
        told = {"format": answer.format, "read_rows": answer.read_rows, "read_bytes": answer.read_bytes}
        send(channel, {**told, "elapsed_ns": answer.elapsed_ns}, answer.body)


def _told(error: ClickHouseFailed) -> dict[str, Any]:
    return {"error": {"code": error.code, "name": error.name, "message": str(error)}}


def main() -> int:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before it was asked to take this process with it
        return 1
    serve(socket.socket(fileno=int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
