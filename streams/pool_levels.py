"""How far each pool is degraded, as it stands on the log."""

import time
from typing import Final

import structlog

from schemas.brownout import PoolLevel
from schemas.codec import Undecodable, decode
from streams.log.port import LogConsumer
from streams.log.reading import kept_offsets, read_offsets

READ_TIMEOUT_S: Final = 5.0

_log = structlog.get_logger()


def read_levels(reader: LogConsumer, topic: str) -> dict[str, PoolLevel]:
    """By pool, the newest that it says. It reads all of the topic, which is short, and blocks. Raises LogError."""
    levels: dict[str, PoolLevel] = {}
    offsets = kept_offsets(reader, reader.partitions(topic))
    for record in read_offsets(reader, offsets, time.monotonic() + READ_TIMEOUT_S):
        try:
            said = decode(PoolLevel, record.value)
        except Undecodable as error:
            _log.warning("pool_level_unreadable", offset=record.offset, why=str(error), repeats=True)
        else:
            levels[said.pool] = said
    return levels
