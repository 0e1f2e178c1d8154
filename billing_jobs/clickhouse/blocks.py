"""ClickHouse's own compressed blocks (`compress=1`): LZ4, each with its sizes and a CityHash128 over them.

The layout is that of `CompressedWriteBuffer`: 16 bytes of checksum, the method, the size of the block with these nine
bytes, the size that it had before.
"""

import struct
from collections.abc import Iterator

import backports.zstd as zstd
import lz4.block
from clickhouse_cityhash.cityhash import CityHash128

_LZ4 = 0x82
_HEAD = struct.Struct("<BII")
_CHECKSUM = struct.Struct("<QQ")
BLOCK_BYTES = 1_048_576
MAX_PIECES = 128
"""Of a body, each packed by itself: clients pack a statement in one or a few. An empty one takes nine bytes to send,
and as much of a processor as one that says something.
"""
MAX_WINDOW_LOG = 23
"""What a packed statement may make its reader hold: 8 MiB."""


def in_blocks(body: bytes) -> bytes:
    """Nothing for nothing."""
    return b"".join(_blocks(body))


def _blocks(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), BLOCK_BYTES):
        plain = body[at : at + BLOCK_BYTES]
        packed = lz4.block.compress(plain, store_size=False)
        block = _HEAD.pack(_LZ4, len(packed) + _HEAD.size, len(plain)) + packed
        yield _CHECKSUM.pack(*_halves(CityHash128(block))) + block


def out_of_blocks(body: bytes, most: int) -> bytes:
    """What stands in blocks of LZ4, ZSTD or plain bytes; no more than `most` and one more, whatever it would become.

    Raises ValueError: they are no blocks, or too many.
    """
    plain, at, blocks = bytearray(), 0, 0
    while at < len(body) and len(plain) <= most:
        if (blocks := blocks + 1) > MAX_PIECES:
            raise ValueError(f"there are more than {MAX_PIECES} blocks")
        start = at + _CHECKSUM.size
        if start + _HEAD.size > len(body):
            raise ValueError("a block is cut off")
        method, packed_bytes, plain_bytes = _HEAD.unpack_from(body, start)
        at = start + packed_bytes
        if packed_bytes < _HEAD.size or at > len(body):
            raise ValueError("a block is cut off")
        if _CHECKSUM.pack(*_halves(CityHash128(body[start:at]))) != body[start - _CHECKSUM.size : start]:
            raise ValueError("a block has another checksum")
        if plain_bytes > most:
            return bytes(most + 1)
        plain += _unpacked(method, body[start + _HEAD.size : at], plain_bytes)
    return bytes(plain)


def _unpacked(method: int, packed: bytes, plain_bytes: int) -> bytes:
    match method:
        case 0x02:
            return packed[:plain_bytes]
        case 0x82:
            return bytes(lz4.block.decompress(packed, uncompressed_size=plain_bytes))
        case 0x90:
            return bytes(zstd_decompressor().decompress(packed, max_length=plain_bytes))
    raise ValueError(f"a block is packed in the way {method}")


def zstd_decompressor() -> zstd.ZstdDecompressor:
    """With a bounded window."""
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})


def _halves(checksum: int) -> tuple[int, int]:
    """As they are written: the half that this number has on top goes first."""
    return checksum >> 64, checksum & 0xFFFF_FFFF_FFFF_FFFF
