"""What a request of a client is read to be, without a server."""

import gzip
from collections.abc import Callable
from typing import Any

import backports.zstd as zstd
import lz4.frame
import pytest

from billing_jobs.clickhouse import blocks, requests
from billing_jobs.clickhouse.blocks import MAX_PIECES, in_blocks, out_of_blocks
from billing_jobs.clickhouse.errors import Refused
from billing_jobs.clickhouse.gate import MAX_STATEMENT_BYTES
from billing_jobs.clickhouse.requests import unpacked

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "lz4": lz4.frame.compress, "zstd": zstd.compress}
BODY_BYTES = 1_048_576


@pytest.mark.parametrize("encoding", PACK)
def test_a_statement_may_come_in_as_many_pieces_as_clients_send(encoding: str) -> None:
    pieces = [PACK[encoding](b"%d," % number) for number in range(MAX_PIECES)]
    said = unpacked(b"".join(pieces), encoding, {}, MAX_STATEMENT_BYTES)
    assert said == b"".join(b"%d," % number for number in range(MAX_PIECES))
    assert unpacked(b"", encoding, {}, MAX_STATEMENT_BYTES) == b"", "all of it is in the address"


@pytest.mark.parametrize("encoding", PACK)
def test_of_a_body_of_nothing_but_pieces_few_are_read(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs about as much as all that is left of the body."""
    made = _counted(monkeypatch, requests, "_reader")
    empty = PACK[encoding](b"")
    with pytest.raises(Refused, match="pieces") as refused:
        unpacked(empty * (BODY_BYTES // len(empty)), encoding, {}, MAX_STATEMENT_BYTES)
    assert refused.value.name == "CANNOT_DECOMPRESS"
    assert len(made) == MAX_PIECES


def test_of_a_body_of_nothing_but_blocks_few_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _counted(monkeypatch, blocks, "_unpacked")
    block = in_blocks(b" ")
    assert out_of_blocks(block * MAX_PIECES, MAX_STATEMENT_BYTES) == b" " * MAX_PIECES
    made.clear()
    with pytest.raises(Refused, match="blocks") as refused:
        unpacked(block * (BODY_BYTES // len(block)), "", {"decompress": "1"}, MAX_STATEMENT_BYTES)
    assert refused.value.name == "CANNOT_DECOMPRESS"
    assert len(made) == MAX_PIECES


def _counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[None]:
    """One more for each call."""
    calls: list[None] = []
    as_it_was = getattr(module, name)

    def call(*args: Any) -> Any:
        calls.append(None)
        return as_it_was(*args)

    monkeypatch.setattr(module, name, call)
    return calls
