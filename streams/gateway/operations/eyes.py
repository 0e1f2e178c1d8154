"""What looks at the log while somebody watches: how far it reaches, and what workers say in it. It blocks."""

from collections.abc import Collection
from contextlib import ExitStack

from schemas.brownout import PoolLevel
from schemas.request import LANES
from schemas.worker import WorkerState
from streams.access import process_roles
from streams.drain import DrainWindow, learned
from streams.heartbeats import Heartbeats
from streams.log.port import LogConsumer, TopicPartition
from streams.log.watch import LogWatch, Sight
from streams.pool_levels import read_levels
from streams.topics import Topic, Topics


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
        self._heartbeats = Heartbeats(reader, topics.workers.name)
        self._levels_topic = topics.brownout.name
        self._groups: Collection[str] = list(groups_of(topics))
        self._places = [
            TopicPartition(topic.name, number) for topic in shown_topics(topics) for number in range(topic.partitions)
        ]
        self.drains: dict[str, DrainWindow] = {}
        """By worker."""
        self.levels: dict[str, PoolLevel] = {}
        """By pool."""

    @property
    def workers(self) -> dict[str, WorkerState]:
        return self._heartbeats.workers

    def look(self) -> Sight:
        """Raises LogError."""
        sight = self._watch.look(self._places, self._groups)
        self.drains = learned(self.drains, self._heartbeats.read(), self.workers)
        self.levels = read_levels(self._reader, self._levels_topic)
        return sight

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._watch.close)
            closing.callback(self._heartbeats.close)
