"""Messages between billing and its readers: a header in JSON and a body of bytes, each after its length."""

import socket
import struct
import time
from typing import Any

import orjson

_LENGTHS = struct.Struct("<IQ")
MAX_HEADER_BYTES = 1_048_576
SEND_S = 30.0


class ChannelClosed(Exception):
    """The other side has ended."""


def send(channel: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Blocks for a while. Raises ChannelClosed, TimeoutError."""
    said = orjson.dumps(header)
    try:
        channel.settimeout(SEND_S)
        channel.sendall(_LENGTHS.pack(len(said), len(body)) + said)
        channel.sendall(body)
    except TimeoutError:
        raise
    except OSError as error:
        raise ChannelClosed(str(error)) from error


def receive(
    channel: socket.socket, within_s: float | None = None, max_body_bytes: int = 0
) -> tuple[dict[str, Any], bytes]:
    """Blocks. Raises ChannelClosed, also of a message that nobody sends, and TimeoutError where it is not there whole
    within so long.
    """
    until_s = None if within_s is None else time.monotonic() + within_s
    channel.settimeout(None)
    header_bytes, body_bytes = _LENGTHS.unpack(_exactly(channel, _LENGTHS.size, until_s))
    if header_bytes > MAX_HEADER_BYTES or body_bytes > max_body_bytes:
        raise ChannelClosed("a message that nobody sends")
    return orjson.loads(_exactly(channel, header_bytes, until_s)), _exactly(channel, body_bytes, until_s)


def _exactly(channel: socket.socket, size_bytes: int, until_s: float | None) -> bytes:
    received = bytearray(size_bytes)
    view, at = memoryview(received), 0
    while at < size_bytes:
        if until_s is not None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            channel.settimeout(left_s)
        try:
            count = channel.recv_into(view[at:])
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not count:
            raise ChannelClosed("the other side has ended")
        at += count
    return bytes(received)
