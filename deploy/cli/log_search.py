"""Finds the records of one response in the log: by what its id tells, then by what the records tell of each other.

Bounded: only stretches of time that may hold them are read, and nothing after the deadline. Nothing is written, and no
group is joined.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from deploy.cli.timeline import Timeline
from schemas.base import Record
from schemas.codec import Undecodable, decode
from schemas.generated import Ending, Frame, Opened
from schemas.responses import Release, Terminal
from streams.ids import ResponseId
from streams.log.port import LogConsumer, LogError, LogRecord, TopicPartition
from streams.log.reading import read_offsets
from streams.topics import Topic, Topics

LOOKED_BESIDE_MS = 10_000
"""So much earlier and later than clocks say it is looked: those of brokers, gateways and this machine differ."""
REQUEST_MS = 60_000
"""From a request's id to its record, at most: then its gateway has given up."""
BILLED_WITHIN_MS = 60_000
"""From a response's end to the last record of it on `usage`."""


class LogSearch:
    """One search. `since_ms` says where to begin for an id that tells no time; `request_timeout_ms` when a response is
    past its deadline whose request the log no longer has.
    """

    def __init__(
        self,
        consumer: LogConsumer,
        topics: Topics,
        *,
        now_ms: int,
        since_ms: int,
        request_timeout_ms: int,
        timeout_s: float,
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._now_ms = now_ms
        self._since_ms = since_ms
        self._request_timeout_ms = request_timeout_ms
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self.notes: list[str] = []
        """What was not read, or could not be."""

    def find(self, response_id: ResponseId) -> Timeline:
        """What the log tells, empty if nothing. Raises LogError where it cannot be asked."""
        told = Timeline(str(response_id))
        minted_at_ms = response_id.minted_at_ms
        begin_ms = (self._since_ms if minted_at_ms is None else minted_at_ms) - LOOKED_BESIDE_MS
        end_ms = self._now_ms + LOOKED_BESIDE_MS
        if minted_at_ms is not None:
            self._request(told, begin_ms, minted_at_ms + REQUEST_MS)
            due_ms = told.request.deadline_ms if told.request else minted_at_ms + self._request_timeout_ms
            end_ms = min(end_ms, due_ms + REQUEST_MS)
        self._responses(told, response_id.partition, begin_ms, end_ms)
        ended_ms = end_ms if told.terminal is None else told.terminal.ended_at_ms + LOOKED_BESIDE_MS
        if len(told) or minted_at_ms is None:
            known_ms = told.first_released_ms
            self._generated(told, begin_ms, ended_ms if known_ms is None else known_ms + LOOKED_BESIDE_MS, ended_ms)
        if told.opened is not None:
            self._lane(told, told.opened)
            self._all_of(told, self._topics.control, begin_ms, ended_ms)
        self._all_of(told, self._topics.usage, begin_ms, min(end_ms, ended_ms + BILLED_WITHIN_MS))
        return told

    def _request(self, told: Timeline, begin_ms: int, end_ms: int) -> None:
        topic = self._topics.requests
        self._take(told, topic, self._between(topic, begin_ms, end_ms), until=lambda _: True)

    def _responses(self, told: Timeline, number: int, begin_ms: int, end_ms: int) -> None:
        topic = self._topics.responses
        places = self._between(topic, begin_ms, end_ms, [number])
        self._take(told, topic, places, until=lambda event: isinstance(event, Terminal))

    def _generated(self, told: Timeline, begin_ms: int, opened_by_ms: int, end_ms: int) -> None:
        topic = self._topics.generated
        # Which partition it is, only what stands first in it tells.
        first = self._take(
            told, topic, self._between(topic, begin_ms, opened_by_ms),
            only=(Opened, Ending), until=lambda _: True,
        )  # fmt: skip
        if first is not None:
            end = self._between(topic, begin_ms, end_ms, [first.partition]).get(first.source, range(0)).stop
            self._take(told, topic, {first.source: range(first.offset + 1, end)})

    def _lane(self, told: Timeline, opened: Opened) -> None:
        if opened.pool not in self._topics.pools:
            self.notes.append(f"the settings know no pool {opened.pool}: its lanes were not read")
            return
        topic = self._topics.lane(opened.pool, opened.lane)
        begin_ms, end_ms = opened.admitted_at_ms - LOOKED_BESIDE_MS, opened.admitted_at_ms + REQUEST_MS
        places = self._between(topic, begin_ms, end_ms, [opened.lane_partition])
        self._take(told, topic, places, until=lambda _: True)

    def _all_of(self, told: Timeline, topic: Topic, begin_ms: int, end_ms: int) -> None:
        self._take(told, topic, self._between(topic, begin_ms, end_ms))

    def _between(
        self, topic: Topic, begin_ms: int, end_ms: int, numbers: Iterable[int] | None = None
    ) -> dict[TopicPartition, range]:
        """The offsets of these partitions, or of all, that were written in that time."""
        offsets = {}
        for place in self._consumer.partitions(topic.name):
            if numbers is None or place.partition in numbers:
                _, end = self._consumer.watermarks(place)
                first = self._consumer.offset_at(place, max(begin_ms, 0))
                if end_ms < self._now_ms:
                    end = min(end, self._consumer.offset_at(place, end_ms))
                offsets[place] = range(first, end)
        return offsets

    def _take(
        self,
        told: Timeline,
        topic: Topic,
        offsets: Mapping[TopicPartition, range],
        *,
        only: tuple[type[Any], ...] = (object,),
        until: Callable[[Any], bool] = lambda _: False,
    ) -> LogRecord | None:
        """Tells what names the response, of these kinds alone, up to what `until` is true of; returns that record."""
        response_id = told.response_id.encode()
        try:
            for record in read_offsets(self._consumer, offsets, self._deadline_s):
                # Of all that passes by, little is ours: only that is decoded.
                if record.value is None or (record.key != response_id and response_id not in record.value):
                    continue
                event = self._decoded(topic.schema, record)
                # Another's record may have the id in its text.
                is_ours = record.key == response_id or isinstance(event, Frame | Release)
                if is_ours and isinstance(event, Record) and isinstance(event, only):
                    told.take(record, event)
                    if until(event):
                        return record
        except LogError:
            if time.monotonic() < self._deadline_s:
                raise
            self.notes.append(f"{topic.name} was not read to the end within {self._timeout_s:g} s")
        finally:
            self._consumer.assign({})
        return None

    def _decoded(self, schema: type[Any] | TypeAdapter[Any], record: LogRecord) -> Any:
        try:
            return decode(schema, record.value)
        except Undecodable as error:
            self.notes.append(f"{record.topic}-{record.partition}@{record.offset} cannot be read: {error.reason}")
            return None
