"""What looks at the log while somebody watches: how far it reaches, and what workers say in it. It blocks."""

from collections.abc import Collection
from contextlib import ExitStack

from schemas.request import LANES
from streams.access import process_roles
from streams.clocks import now_ms
from streams.log.port import LogConsumer, TopicPartition
from streams.log.watch import LogWatch, Sight
from streams.pool_watch import PoolWatch
from streams.pools_now import PoolsSeen
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
        self._pools = PoolWatch(reader, topics)
        self._groups: Collection[str] = list(groups_of(topics))
        self._places = [
            TopicPartition(topic.name, number) for topic in shown_topics(topics) for number in range(topic.partitions)
        ]

    def look(self) -> tuple[Sight, PoolsSeen]:
        """Raises LogError."""
        return self._watch.look(self._places, self._groups), self._pools.look(now_ms())

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(self._watch.close)
            closing.callback(self._pools.close)
