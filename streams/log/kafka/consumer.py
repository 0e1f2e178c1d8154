"""The consumer over librdkafka: a member of a group, or an independent reader."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as NativePartition

from streams.access import INDEPENDENT
from streams.log.kafka.client import (
    ClientEnded,
    ClientErrors,
    log_error,
    logger,
    native_position,
    require_success,
    settled,
    translated,
)
from streams.log.kafka.committer import Committer
from streams.log.kafka.config import client_config
from streams.log.port import (
    MAX_RECORD_BYTES,
    Committed,
    LogError,
    LogRecord,
    OnPartitions,
    TopicPartition,
    check_metadata,
)
from streams.settings import KafkaSettings

QUIET_FETCH_WAIT_MS = 500
"""For a reader that follows a quiet topic and looks nothing up meanwhile: it costs an idle broker a fifth."""
UNHURRIED_FETCH_BYTES = 65_536
"""For a reader whose records may wait for `fetch_wait_ms`: a fetch for each costs the broker more than the record."""
_CALL_TIMEOUT_S = 10.0
_COMMITTED_TIMEOUT_S = 5.0
"""Shorter than a hook may take: hooks ask for it."""
_FIND_LEADERS_S = 2.0
_SEEK_TIMEOUT_S = 5.0
_RETRY_S = 0.005
_MAX_POLL_INTERVAL_MS = 120_000
MAX_RENEWALS = 3
RENEWAL_WINDOW_S = 60.0
"""A static member that is fenced more often has a rival: another process goes by its name."""


class KafkaConsumer:
    """A member of `group`, or with `group` None an independent reader that can only `assign`.

    `reset` is where a partition without a commit starts. With `instance_id` the member is static: it may come back
    within the session timeout without a rebalance, and `close` does not give its partitions away. When the coordinator
    fences it, as it may after an outage, it joins anew: what it owned is lost, and usually comes back at once. A record
    waits up to `fetch_wait_ms` at the broker until `fetch_min_bytes` are there.

    Raises LogError where librdkafka refuses it.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str | None,
        client_id: str,
        *,
        instance_id: str | None = None,
        strategy: Literal["cooperative-sticky", "range"] = "cooperative-sticky",
        reset: Literal["earliest", "latest"] = "earliest",
        fetch_wait_ms: int = 100,
        fetch_min_bytes: int = 1,
    ) -> None:
        self._group = group
        self._cooperative = strategy == "cooperative-sticky"
        self._errors = ClientErrors(client_id)
        self._held_error: LogError | None = None
        self._topics: list[str] = []
        self._renewed_at_s: list[float] = []
        self._closed = False
        self._owned: dict[TopicPartition, None] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._released: set[TopicPartition] = set()
        """Since the last record was taken into hand."""
        self._in_callback = False
        # While `on_assign` runs: where the new partitions will start, and which of them paused.
        self._starting: dict[TopicPartition, int] | None = None
        self._starting_paused: set[TopicPartition] = set()
        self._on_assign: OnPartitions | None = None
        self._on_revoke: OnPartitions | None = None
        self._on_lost: OnPartitions | None = None
        self._committer = Committer()
        self._config: dict[str, object] = {
            # librdkafka wants a name even from a reader that never joins.
            "group.id": group if group is not None else f"{INDEPENDENT}{client_id}",
            "group.protocol": "classic",
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": settings.session_timeout_ms,
            # A member learns of a balance from its heartbeat: the interval is the delay of every hand-over.
            "heartbeat.interval.ms": settings.session_timeout_ms // 10,
            "max.poll.interval.ms": max(_MAX_POLL_INTERVAL_MS, settings.session_timeout_ms),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": reset,
            # A reader of its own asks where the end is; a member of a group would be woken for nothing.
            "enable.partition.eof": group is None,
            # An empty queue is refilled at once; without this a fast reader idles (75k instead of 700k records/s).
            "fetch.queue.backoff.ms": 5,
            "fetch.min.bytes": fetch_min_bytes,
            # A broker answers a connection in order: a newly assigned or resumed partition, and every look-up, waits
            # behind the fetch that is out.
            "fetch.wait.max.ms": fetch_wait_ms,
            "fetch.message.max.bytes": MAX_RECORD_BYTES,
            "queued.max.messages.kbytes": 32_768,
            "error_cb": self._errors,
            "on_commit": self._committer.told,
            **client_config(settings, client_id),
        }
        if instance_id is not None:
            self._config["group.instance.id"] = instance_id
        self._open()

    def _open(self) -> None:
        self._errors.begin_anew()
        with translated("open"):
            self._consumer = Consumer(self._config, logger=logger)
        self._committer.open(self._consumer)

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        self._require_group()
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        self._topics = list(topics)
        self._join()

    def _join(self) -> None:
        self._consumer.subscribe(
            self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._partitions_lost
        )

    def _renew(self, fenced: ClientEnded) -> None:
        """Raises `fenced` when it is no static member, or when this happens too often."""
        now_s = time.monotonic()
        self._renewed_at_s = [at_s for at_s in self._renewed_at_s if now_s - at_s < RENEWAL_WINDOW_S]
        is_static = "group.instance.id" in self._config
        if not is_static or not self._topics or len(self._renewed_at_s) >= MAX_RENEWALS:
            raise fenced
        self._renewed_at_s.append(now_s)
        logger.warning("%s; it joins anew", fenced)
        tell, lost = self._on_lost or self._on_revoke, self.assignment()
        try:
            if tell is not None and lost:
                tell(lost)
        finally:
            self._owned.clear()
        self._committer.close()
        hooks = self._on_assign, self._on_revoke, self._on_lost
        self._on_assign = self._on_revoke = self._on_lost = None  # all is told
        try:
            with translated("close"):
                self._consumer.close()
        finally:
            self._on_assign, self._on_revoke, self._on_lost = hooks
        self._open()
        self._join()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._owned = dict.fromkeys(positions)
        self._ends.clear()
        with translated("assign"):
            self._consumer.assign([native_position(partition, offset) for partition, offset in positions.items()])

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        try:
            return self._poll(max_records, timeout_s)
        except ClientEnded as fenced:
            self._renew(fenced)
            return []

    def _poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        self._errors.raise_fatal()
        if self._held_error is not None:
            held, self._held_error = self._held_error, None
            raise held
        self._committer.serve()
        with translated("poll"):
            first = self._consumer.poll(timeout_s)
            if first is None:
                return []
            # One call for the rest: it releases the interpreter lock once, not once per record. It may serve a balance,
            # while librdkafka no longer knows of the record in hand: its partition's next owner reads it.
            self._released.clear()
            rest = self._consumer.consume(max_records - 1, 0) if max_records > 1 else []
            is_ours = not self._released or _source(first) not in self._released
            messages = [first, *rest] if is_ours else rest
        records = [_record(message) for message in messages if message.error() is None]
        if len(records) < len(messages) and (failure := self._failure(messages)) is not None:
            if not records:
                raise failure
            # These records will not come again: they are handed over first, the error with the next call.
            self._held_error = failure
        return records

    def _failure(self, messages: Sequence[Message]) -> LogError | None:
        """The first error among them. That a partition's end is reached comes as one, and is noted."""
        failure = None
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                self._ends[_source(message)] = message.offset()  # type: ignore[assignment]
            elif failure is None:
                failure = log_error(error, "poll")
        return failure

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if self._starting is not None:
            self._starting_paused.update(partition for partition in wanted if partition in self._starting)
            wanted = [partition for partition in wanted if partition not in self._starting]
        if wanted:
            with translated("pause"):
                self._consumer.pause([native_position(partition) for partition in wanted])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if self._starting is not None:
            self._starting_paused.difference_update(wanted)
            wanted = [partition for partition in wanted if partition not in self._starting]
        if wanted:
            with translated("resume"):
                self._consumer.resume([native_position(partition) for partition in wanted])

    def seek(self, position: TopicPartition, offset: int) -> None:
        """Inside `on_assign` it sets where the partition starts. Raises LogError when it is not assigned."""
        if position not in self._owned:
            raise LogError(f"seek {position}: not assigned", retriable=False)
        if self._starting is not None and position in self._starting:
            self._starting[position] = offset
            return
        deadline_s = time.monotonic() + _SEEK_TIMEOUT_S
        while True:
            try:
                self._consumer.seek(native_position(position, offset))
            except KafkaException as error:
                # A partition takes a moment between its assignment and its first fetch.
                if error.args[0].code() != KafkaError._STATE or time.monotonic() >= deadline_s:
                    raise log_error(error.args[0], f"seek {position}") from None
                time.sleep(_RETRY_S)
            else:
                return

    def commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> None:
        self._commit(self._to_commit(offsets, metadata))

    def _commit(self, wanted: list[NativePartition]) -> None:
        if wanted and self._in_callback:
            self._committer.commit_in_callback(wanted)
        elif wanted:
            self._committer.commit_while_nobody_polls(wanted)

    def start_commit(
        self, offsets: Mapping[TopicPartition, int], *, metadata: Mapping[TopicPartition, str] | None = None
    ) -> Future[None]:
        wanted = self._to_commit(offsets, metadata)
        if wanted and not self._in_callback and not self._closed:
            return self._committer.start(wanted)
        self._commit(wanted)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _to_commit(
        self, offsets: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str] | None
    ) -> list[NativePartition]:
        self._require_group()
        metadata = metadata or {}
        check_metadata(offsets, metadata)
        # The broker would accept any partition from a living member; it must not undo another member's position.
        if self._topics and (foreign := [partition for partition in offsets if partition not in self._owned]):
            raise LogError(f"commit: not assigned: {foreign}", retriable=False)
        return [native_position(place, offset, metadata.get(place, "")) for place, offset in offsets.items()]

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        self._require_group()
        wanted = [native_position(partition) for partition in partitions]
        if not wanted:
            return {}
        with translated("committed"):
            found = self._consumer.committed(wanted, timeout=_COMMITTED_TIMEOUT_S)
        require_success(found, "committed")
        result = {}
        for position in found:
            offset = position.offset if position.offset >= 0 else None
            result[TopicPartition(position.topic, position.partition)] = Committed(offset, position.metadata or "")
        return result

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._owned)

    def partitions(self, topic: str) -> list[TopicPartition]:
        with translated(f"partitions of {topic}"):
            metadata = self._consumer.list_topics(topic, timeout=_CALL_TIMEOUT_S).topics[topic]
        if metadata.error is not None:
            raise log_error(metadata.error, f"partitions of {topic}")
        return [TopicPartition(topic, partition) for partition in sorted(metadata.partitions)]

    def _find_leaders(self, topics: Iterable[str]) -> None:
        """Asks the cluster anew who leads their partitions. Raises LogError."""
        for topic in topics:
            with translated(f"leaders of {topic}"):
                self._consumer.list_topics(topic, timeout=_FIND_LEADERS_S)

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        def look_up(may_take_s: float) -> tuple[int, int]:
            with translated(f"watermarks of {partition}", looks_up=True):
                low, high = self._consumer.get_watermark_offsets(native_position(partition), timeout=may_take_s)
            return low, high

        return settled(look_up, lambda: self._find_leaders([partition.topic]))

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        # In the place of a time, -1 asks for the end.
        wanted = [native_position(partition, -1) for partition in partitions]
        topics = sorted({each.topic for each in wanted})

        def look_up(may_take_s: float) -> dict[TopicPartition, int]:
            with translated("ends", looks_up=True):
                found = self._consumer.offsets_for_times(wanted, timeout=may_take_s)
            for each in found:
                if each.error is not None:
                    raise log_error(each.error, f"end of {each.topic}/{each.partition}")
            return {TopicPartition(each.topic, each.partition): each.offset for each in found}

        return settled(look_up, lambda: self._find_leaders(topics)) if wanted else {}

    def end_reached(self, partition: TopicPartition) -> int:
        if self._group is not None:
            raise LogError("only independent readers are told of the end", retriable=False)
        return self._ends.get(partition, 0)

    def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        def look_up(may_take_s: float) -> int:
            what = f"offset_at of {partition}"
            with translated(what, looks_up=True):
                [found] = self._consumer.offsets_for_times(
                    [native_position(partition, timestamp_ms)], timeout=may_take_s
                )
            if found.error is not None:
                raise log_error(found.error, what)
            return found.offset

        offset = settled(look_up, lambda: self._find_leaders([partition.topic]))
        return offset if offset >= 0 else self.watermarks(partition)[1]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # librdkafka may leave the group before it calls back, when a balance is under way: a commit would be too late.
        tell, self._on_revoke, self._on_lost = self._on_revoke, None, None
        try:
            if tell is not None and self._owned:
                tell(self.assignment())
        finally:
            self._owned.clear()
            self._committer.close()
            with translated("close"):
                self._consumer.close()

    def _require_group(self) -> None:
        if self._group is None:
            raise LogError("this reader belongs to no group", retriable=False)

    def _assigned(self, consumer: Consumer, partitions: list[NativePartition]) -> None:
        self._committer.balance_begins()
        added = _own(partitions)
        if not self._cooperative:
            self._owned.clear()
        self._owned.update(dict.fromkeys(added))
        # `on_assign` may look up and seek: nothing is fetched before it has returned.
        self._in_callback = True
        self._starting, self._starting_paused = {}, set()
        self._starting.update((partition, native.offset) for partition, native in zip(added, partitions, strict=True))
        try:
            if self._on_assign is not None:
                self._on_assign(added)
            starting = [native_position(partition, offset) for partition, offset in self._starting.items()]
            if self._cooperative:
                consumer.incremental_assign(starting)
            else:
                consumer.assign(starting)
            # librdkafka remembers a pause from before the partition went away.
            if running := set(added) - self._starting_paused:
                consumer.resume([native_position(partition) for partition in running])
            if self._starting_paused:
                consumer.pause([native_position(partition) for partition in self._starting_paused])
        finally:
            self._in_callback, self._starting = False, None

    def _revoked(self, consumer: Consumer, partitions: list[NativePartition]) -> None:
        self._release(consumer, partitions, self._on_revoke)

    def _partitions_lost(self, consumer: Consumer, partitions: list[NativePartition]) -> None:
        self._release(consumer, partitions, self._on_lost or self._on_revoke)

    def _release(self, consumer: Consumer, partitions: list[NativePartition], tell: OnPartitions | None) -> None:
        self._committer.balance_begins()
        removed = _own(partitions)
        self._released.update(removed)
        self._in_callback = True
        try:
            if tell is not None:
                tell(removed)
        finally:
            self._in_callback = False
            for partition in removed:
                self._owned.pop(partition, None)
            if self._cooperative:
                consumer.incremental_unassign(partitions)
            else:
                consumer.unassign()


def _source(message: Message) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())  # type: ignore[arg-type]


def _record(message: Message) -> LogRecord:
    headers = message.headers()
    # The stubs allow for messages that were made by hand; a consumed one has all of these.
    return LogRecord(
        message.topic(),  # type: ignore[arg-type]
        message.partition(),  # type: ignore[arg-type]
        message.offset(),  # type: ignore[arg-type]
        message.key(),
        message.value(),
        tuple(headers) if headers else (),  # type: ignore[arg-type]
        message.timestamp()[1],
    )


def _own(partitions: Iterable[NativePartition]) -> list[TopicPartition]:
    return [TopicPartition(native.topic, native.partition) for native in partitions]
