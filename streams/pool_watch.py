"""What the log says of how pools stand, look by look. It blocks."""

from streams.drain import DrainWindow, learned
from streams.heartbeats import Heartbeats
from streams.log.port import LogConsumer
from streams.pool_levels import read_levels
from streams.pools_now import PoolsSeen, pools_seen
from streams.service_shares import ServiceShares
from streams.topics import Topics


class PoolWatch:
    """The first look takes in the heartbeats that the log still has: of the last minute these are mostly all."""

    def __init__(self, reader: LogConsumer, topics: Topics) -> None:
        self._reader = reader
        self._topics = topics
        self._heartbeats = Heartbeats(reader, topics.workers.name)
        self._drains: dict[str, DrainWindow] = {}
        self._shares = ServiceShares()

    def look(self, at_ms: int) -> PoolsSeen:
        """Raises LogError."""
        said = self._heartbeats.read()
        workers = self._heartbeats.workers
        self._drains = learned(self._drains, said, workers)
        self._shares.hear(said, workers, at_ms)
        levels = read_levels(self._reader, self._topics.brownout.name)
        return pools_seen(self._topics.pools, workers, self._drains, self._shares, levels, at_ms)

    def close(self) -> None:
        self._heartbeats.close()
