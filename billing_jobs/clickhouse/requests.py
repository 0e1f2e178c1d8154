"""What a client of ClickHouse's HTTP interface asks, read out of its address, heads and body. No I/O."""

import base64
import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import backports.zstd as zstd
import lz4.block
import lz4.frame

from billing_jobs.clickhouse.access import SETTINGS
from billing_jobs.clickhouse.asks import Ask
from billing_jobs.clickhouse.blocks import MAX_PIECES, out_of_blocks, zstd_decompressor
from billing_jobs.clickhouse.errors import Refused
from billing_jobs.clickhouse.gate import MAX_STATEMENT_BYTES
from billing_jobs.embedded import EMBEDDED_DATABASE

DEFAULT_FORMAT = "TabSeparated"
_DATABASES = (EMBEDDED_DATABASE, "default")
"""The one in which statements are asked, and what clients call it that were told none."""
_WORD = re.compile(r"[A-Za-z0-9]{1,64}")
DEFAULT_USER = "default"
"""Whom clients name who were told no user."""
_ENCODINGS = ("zstd", "lz4", "gzip")
"""In the order in which they are preferred, where a client takes several."""
_VERSION = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class Wish:
    """How the answer is to come. `encoding` as in `Content-Encoding`, empty: none; `native`: in ClickHouse's own
    compressed blocks.
    """

    encoding: str = ""
    native: bool = False


def credentials(headers: Mapping[str, str], address: Mapping[str, str]) -> Credentials:
    """As ClickHouse looks for them: its own heads, then `Authorization: Basic`, then the address."""
    user, key = headers.get("x-clickhouse-user", ""), headers.get("x-clickhouse-key", "")
    if user or key:
        return Credentials(user or DEFAULT_USER, key)
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, key = base64.b64decode(given.strip(), validate=True).decode().partition(":")
        except ValueError:  # no base64, not even ASCII, or no UTF-8 in it
            raise Refused("AUTHENTICATION_FAILED", "Invalid HTTP Basic authorization") from None
        return Credentials(user or DEFAULT_USER, key)
    if scheme.lower() == "bearer":
        return Credentials(DEFAULT_USER, given.strip())
    return Credentials(address.get("user", "") or DEFAULT_USER, address.get("password", ""))


def read_ask(
    tenant: str, address: Sequence[tuple[str, str]], headers: Mapping[str, str], body: bytes
) -> tuple[Ask, Wish]:
    """The statement is in the address, the body, or begins in the one and goes on in the other. What is no setting
    that may be set is passed over, as unknown heads are: clients send some for servers of every age. Raises Refused.
    """
    said = dict(address)
    statement = said.get("query", "")
    text = _text(unpacked(body, headers.get("content-encoding", ""), said, MAX_STATEMENT_BYTES))
    if text:
        statement = f"{statement}\n{text}" if statement else text
    if "\0" in statement:
        raise Refused("SYNTAX_ERROR", "the statement has a zero byte")
    database = said.get("database") or headers.get("x-clickhouse-database") or EMBEDDED_DATABASE
    if database not in _DATABASES:
        raise Refused("UNKNOWN_DATABASE", f"Database {database[:64]} does not exist")
    ask = Ask(
        tenant,
        statement,
        _format_of(said.get("default_format") or headers.get("x-clickhouse-format") or DEFAULT_FORMAT),
        parameters(address),
        {name: value for name, value in address if name in SETTINGS},
        int(version) if _VERSION.fullmatch(version := said.get("client_protocol_version", "")) else 0,
    )
    return ask, read_wish(said, headers)


def parameters(address: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The values of `{name:Type}`."""
    return {name.removeprefix("param_"): value for name, value in address if name.startswith("param_")}


def read_wish(said: Mapping[str, str], headers: Mapping[str, str]) -> Wish:
    accepted = {each.split(";")[0].strip() for each in headers.get("accept-encoding", "").lower().split(",")}
    wants = _is_on(said, "enable_http_compression")
    return Wish(
        encoding=next((each for each in _ENCODINGS if wants and each in accepted), ""),
        native=_is_on(said, "compress"),
    )


def _is_on(said: Mapping[str, str], name: str) -> bool:
    return said.get(name) in ("1", "true")


def _format_of(name: str) -> str:
    """Whether it is one is seen where the engine is. Raises Refused."""
    if not _WORD.fullmatch(name):
        raise Refused("UNKNOWN_FORMAT", "Unknown format")
    return name


def unpacked(body: bytes, encoding: str, said: Mapping[str, str], most: int) -> bytes:
    """Raises Refused: also where that is more than `most`."""
    try:
        plain = _decompressed(body, encoding.lower().strip(), most + 1)
        if _is_on(said, "decompress"):
            plain = out_of_blocks(plain, most)
    except (OSError, EOFError, ValueError, zlib.error, RuntimeError, zstd.ZstdError, lz4.block.LZ4BlockError) as error:
        raise Refused("CANNOT_DECOMPRESS", f"the body cannot be unpacked: {error}") from None
    if len(plain) > most:
        raise Refused("QUERY_IS_TOO_LARGE", f"the statement is longer than {most} bytes")
    return plain


def _text(plain: bytes) -> str:
    """Raises Refused."""
    try:
        return plain.decode()
    except UnicodeDecodeError:
        raise Refused("SYNTAX_ERROR", "the statement is not UTF-8") from None


def _decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """No more than `most`, whatever it would become. Raises Refused: also where its end is missing, because the first
    half of a statement may be another one.
    """
    if not body or encoding in ("", "identity"):
        return body
    plain = bytearray()
    for _ in range(MAX_PIECES):  # each piece of an insert may be packed by itself
        reader = _reader(encoding)
        plain += reader.decompress(body, most - len(plain))
        if len(plain) >= most:
            return bytes(plain)
        if not reader.eof:
            raise Refused("CANNOT_DECOMPRESS", f"the end of the {encoding} body is missing")
        body = reader.unused_data  # a copy of what is left
        if not body:
            return bytes(plain)
    raise Refused("CANNOT_DECOMPRESS", f"the {encoding} body has more than {MAX_PIECES} pieces")


def _reader(encoding: str) -> Any:
    """Raises Refused."""
    match encoding:
        case "gzip" | "deflate":
            return zlib.decompressobj(wbits=47)
        case "lz4":
            return lz4.frame.LZ4FrameDecompressor()
        case "zstd":
            return zstd_decompressor()
    raise Refused("UNKNOWN_COMPRESSION_METHOD", f"Unknown compression method: {encoding[:32]}")


def compressed(body: bytes, encoding: str) -> bytes:
    """As a client that accepts `encoding` takes it."""
    match encoding:
        case "gzip":
            return gzip.compress(body, compresslevel=3, mtime=0)
        case "lz4":
            return bytes(lz4.frame.compress(body))
        case "zstd":
            return bytes(zstd.compress(body, level=1))
    return body


_TYPES: dict[str, str] = {
    "Arrow": "application/vnd.apache.arrow.file",
    "ArrowStream": "application/vnd.apache.arrow.stream",
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "CSVWithNamesAndTypes": "text/csv; charset=UTF-8; header=present",
    "Native": "application/octet-stream",
    "Parquet": "application/octet-stream",
    "RowBinary": "application/octet-stream",
    "RowBinaryWithNames": "application/octet-stream",
    "RowBinaryWithNamesAndTypes": "application/octet-stream",
    "XML": "application/xml; charset=UTF-8",
}


def content_type(format_name: str) -> str:
    if format_name.startswith(("JSON", "NDJSON", "PrettyJSON")):
        return "application/json; charset=UTF-8"
    if format_name.startswith(("TabSeparated", "TSV")):
        return "text/tab-separated-values; charset=UTF-8"
    return _TYPES.get(format_name, "text/plain; charset=UTF-8")


def summary(read_rows: int, read_bytes: int, body: bytes, elapsed_ns: int) -> dict[str, Any]:
    """`X-ClickHouse-Summary`, whose numbers are strings. What was read is what was given: how much the engine had to
    look at would tell of the rows of others.
    """
    figures = {
        "read_rows": read_rows, "read_bytes": read_bytes, "written_rows": 0, "written_bytes": 0,
        "total_rows_to_read": read_rows, "result_rows": read_rows, "result_bytes": len(body), "elapsed_ns": elapsed_ns,
    }  # fmt: skip
    return {name: str(value) for name, value in figures.items()}
