"""Peers that acknowledge and never read. Closing does not end such a connection: a close waits for what is unsent."""

import asyncio
import socket
import struct
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux has it.
_BYTES_ACKED = struct.Struct("@Q")
_UP_TO_BYTES_ACKED = 128
"""Where `tcpi_bytes_acked` ends in `struct tcp_info`."""


class DeafPeers(Generic[K]):
    """Which connections have had bytes to send for `stall_s` and got none of them across, as far as calls of `judge`
    can tell. What the peer sends meanwhile counts for nothing, and what is written to it neither."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._across: dict[K, tuple[int, float]] = {}

    def judge(self, unsent: Iterable[tuple[K, int]], now_s: float) -> list[K]:
        """Call about every second, with every connection that has unsent bytes and how many bytes it has taken so far;
        `now_s` never runs backwards."""
        known, self._across = self._across, {}
        deaf: list[K] = []
        for connection, taken in unsent:
            last_taken, since_s = known.get(connection, (-1, now_s))
            if taken != last_taken:
                since_s = now_s
            self._across[connection] = (taken, since_s)
            if now_s - since_s >= self._stall_s:
                deaf.append(connection)
        return deaf


def taken_bytes(transport: asyncio.Transport) -> int:
    """What the peer's machine has acknowledged; where that cannot be told, a figure that moves with the buffer's."""
    if _TCP_INFO is not None:
        peer = transport.get_extra_info("socket")
        info = b"" if peer is None else peer.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _UP_TO_BYTES_ACKED)
        if len(info) == _UP_TO_BYTES_ACKED:
            return int(_BYTES_ACKED.unpack_from(info, _UP_TO_BYTES_ACKED - _BYTES_ACKED.size)[0])
    return -transport.get_write_buffer_size()
