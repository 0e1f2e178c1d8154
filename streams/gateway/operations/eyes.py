"""What looks at the log while somebody watches: how far it reaches, and what workers say in it. It blocks."""

import time
from collections.abc import Collection
from contextlib import ExitStack

import structlog

from schemas.codec import Undecodable
from schemas.request import LANES
from schemas.worker import WorkerState
from streams import heartbeats
from streams.access import process_roles
from streams.log.port import LogConsumer, TopicPartition
from streams.log.reading import read_offsets
from streams.log.watch import LogWatch, Sight
from streams.topics import Topic, Topics

READ_TIMEOUT_S = 5.0

_log = structlog.get_logger()


def shown_topics(topics: Topics) -> list[Topic]:
    """Those that the flow is drawn of."""
    return [
        topics.requests, topics.intake_batch, topics.generated, topics.responses, topics.usage,
        *(topics.jobs(pool) for pool in topics.pools),
        *(topics.lane(pool, lane) for pool in topics.pools for lane in LANES),
    ]  # fmt: skip


def groups_of(topics: Topics) -> dict[str, str]:
    """Each consumer group of a region's processes, and the process's name."""
    return {group: role.name for role in process_roles(topics) for group in role.groups}


class Eyes:
    """Opened when the first one looks, closed when the last one has gone."""

    def __init__(self, watch: LogWatch, reader: LogConsumer, topics: Topics) -> None:
        self._watch = watch
        self._reader = reader
        self._heartbeats = TopicPartition(topics.workers.name, 0)
        self._read = 0
        self._groups: Collection[str] = list(groups_of(topics))
        self._places = [
            TopicPartition(topic.name, number) for topic in shown_topics(topics) for number in range(topic.partitions)
        ]
        self.workers: dict[str, WorkerState] = {}

    def look(self) -> Sight:
        """Raises LogError."""
        sight = self._watch.look(self._places, self._groups)
        self._read_heartbeats()
        return sight

    def _read_heartbeats(self) -> None:
        first, end = self._reader.watermarks(self._heartbeats)
        # A log that was lost and made anew begins again.
        start = max(first, self._read if self._read <= end else first)
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        for record in read_offsets(self._reader, {self._heartbeats: range(start, end)}, deadline_s):
            try:
                heartbeats.take(record, self.workers)
            except Undecodable as error:
                _log.warning("heartbeat_unreadable", offset=record.offset, why=str(error), repeats=True)
        self._read = end

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._watch.close)
            closing.callback(self._reader.close)
