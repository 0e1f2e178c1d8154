"""Membership in the group that reads a pool's lanes: records to the core, commits from it.

A worker is a member for each lane. The group's partitions are balanced by their number alone, of those who subscribe
to the same: one member for all lanes would be given whole lanes, and another none of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from gpu_consumers.core.worker_core import WorkerCore
from schemas.request import LANES, Lane
from streams.log.consumer_thread import ConsumerThread
from streams.log.port import Committed, LogError, TopicPartition

POLL_S = 0.05
LAST_COMMITS_S = 3.0

_log = structlog.get_logger()


class LaneReading:
    """One lane."""

    def __init__(
        self,
        core: WorkerCore,
        lane: Lane,
        consumer: ConsumerThread,
        now_ms: Callable[[], int],
        after_event: Callable[[], None],
        on_partitions: Callable[[], None],
    ) -> None:
        self._core = core
        self._topic = core.config.topics.lane(core.config.pool, lane).name
        self._consumer = consumer
        self._now_ms = now_ms
        self._after_event = after_event
        self._on_partitions = on_partitions
        self._paused: set[TopicPartition] = set()

    async def read(self, goes_on: Callable[[], bool]) -> None:
        """Joins, and reads while `goes_on`. Raises LogError."""
        await self._consumer.subscribe(
            [self._topic],
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )
        while goes_on():
            await self._share()
            try:
                # Not for longer: shares are to be looked at also when nothing comes.
                records = await self._consumer.poll(POLL_S)
            except LogError as error:
                if not error.retriable:
                    raise
                _log.warning("lanes_poll_failed", error=str(error), repeats=True)
                continue
            if records:
                self._core.lane_records(records, self._now_ms())
                self._after_event()

    async def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        """Of these what is of its lane."""
        own = {source: commit for source, commit in commits.items() if source.topic == self._topic}
        if await self._committed(own):
            self._core.committed(own)

    async def leave(self) -> None:
        await self._consumer.close()

    async def _on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        # One that was paused when it left may still be: what is in this set is resumed when its lane has room.
        self._paused.update(partitions)
        self._core.assigned(await self._last_commits(partitions))
        self._on_partitions()

    async def _on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        await self._committed(self._core.revoked(partitions))
        self._on_partitions()

    async def _on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        self._core.revoked(partitions)
        self._on_partitions()

    async def _committed(self, commits: Mapping[TopicPartition, Committed]) -> bool:
        offsets = {source: commit.offset for source, commit in commits.items() if commit.offset is not None}
        if not offsets:
            return False
        try:
            await self._consumer.commit(
                offsets, metadata={source: commits[source].metadata for source in offsets if commits[source].metadata}
            )
        except LogError as error:
            # Not ours any more, or the group is being balanced: the partition's next owner reads again.
            _log.warning("commit_failed", error=str(error), repeats=True)
            return False
        return True

    async def _last_commits(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        try:
            async with asyncio.timeout(LAST_COMMITS_S):
                return await self._consumer.committed(partitions)
        except (LogError, TimeoutError) as error:
            # They only save work: what has ended is known to the claims, and to the log.
            _log.warning("last_commits_unknown", error=str(error))
            return dict.fromkeys(partitions, Committed(None))

    async def _share(self) -> None:
        """Pauses the partitions of lanes over their share and resumes the others."""
        over = {source for source in self._core.over_share() if source.topic == self._topic}
        if stop := over - self._paused:
            self._paused |= stop
            await self._consumer.pause(stop)
        if go_on := self._paused - over:
            self._paused -= go_on
            await self._consumer.resume(go_on)


class LanesReading:
    """All lanes of the worker's pool. `open_lane` makes a member, which `leave` closes. `on_partitions` is called when
    they changed, `after_event` when the core was told something.
    """

    def __init__(
        self,
        core: WorkerCore,
        open_lane: Callable[[Lane], ConsumerThread],
        now_ms: Callable[[], int],
        after_event: Callable[[], None],
        on_partitions: Callable[[], None],
    ) -> None:
        self._core = core
        self._lanes = [
            LaneReading(core, lane, open_lane(lane), now_ms, after_event, on_partitions) for lane in LANES
        ]  # fmt: skip

    async def read(self, goes_on: Callable[[], bool]) -> None:
        """Joins, and reads while `goes_on`. Raises LogError."""
        tasks = [asyncio.create_task(lane.read(goes_on)) for lane in self._lanes]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def commit(self) -> None:
        """What may be committed now, if there is anything."""
        commits = self._core.to_commit()
        await asyncio.gather(*(lane.commit(commits) for lane in self._lanes))

    async def leave(self) -> None:
        """Raises what a member could not be closed for, once all are."""
        left = await asyncio.gather(*(lane.leave() for lane in self._lanes), return_exceptions=True)
        for error in left:
            if isinstance(error, BaseException):
                raise error
