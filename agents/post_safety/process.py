"""Post-safety's process: reads `generated` and `control`, publishes what the core decides, commits.

A crash is repaired by reading again from the commit: the core then decides alike, and readers of `responses`, `usage`
and `results.<tenant>` recognise what they have seen.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import structlog

from agents.post_safety.commits import CommitGate, OpenCommit
from agents.post_safety.core import PostSafety
from agents.post_safety.effects import Effect, Emit, Released, names_of, told
from agents.post_safety.metrics import Metrics
from agents.post_safety.parking import Position, plan_restart
from agents.post_safety.policies import ResponseRules
from agents.post_safety.regroup import Group, Regrouper
from agents.post_safety.result_lines import shortened
from agents.post_safety.unreadable import named_responses
from agents.post_safety.watching import WorkersWatch
from agents.safety.output_policies import OutputPolicyReader
from schemas.batch import BatchResult
from schemas.codec import Undecodable, decode
from schemas.control import CONTROL, Cancel
from schemas.dead_letter import DeadLetter
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from schemas.responses import Terminal
from schemas.usage import UsageEvent
from streams.clocks import now_ms
from streams.dead_letters import letter_of
from streams.directory import TenantDirectory
from streams.log.port import (
    COMMIT_TIMEOUT_S,
    LogConsumer,
    LogError,
    LogProducer,
    LogRecord,
    OnDelivery,
    ProducerQueueFull,
    TopicPartition,
)
from streams.log.reading import kept_offsets, read_offsets
from streams.recent_ids import KEEP_MS
from streams.settings import PostSafetySettings
from streams.topics import Topics
from streams.tracing.tracing import Tracing

GROUP = "post-safety"
STAGE = "post-safety"
ENDED_READ_BACK_RECORDS = 5_000
"""Below the commit, to recognise late records of responses that ended there."""
COMMIT_EVERY_MS = 500
QUEUE_FULL_TIMEOUT_S = 10.0
REVOKE_TIMEOUT_S = 2.0
"""Shorter than the session timeout, so that a rebalance is not held up by deliveries."""
CLOSE_TIMEOUT_S = 10.0
PARKED_READ_TIMEOUT_S = 10.0
"""For all entries of the partitions that come. Then they are rebuilt as if nothing were parked."""
_IDLE_POLL_S = 0.02
_MAX_RECORDS = 500

_log = structlog.get_logger()


class DeliveryFailed(Exception):
    """A record that must not be lost was not delivered. The process ends, and is rebuilt from its commit."""


class PostSafetyProcess:
    """One member of group `post-safety`. Single-threaded: everything happens inside `step`.

    `control`, `policies`, `parked` and `workers` are independent readers. `clock_ms` is Unix time, close to the
    brokers'; `monotonic_s` never runs backwards; `new_owner` gives a name that nobody had.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        settings: PostSafetySettings,
        directory: TenantDirectory,
        generated: LogConsumer,
        control: LogConsumer,
        policies: LogConsumer,
        parked: LogConsumer,
        workers: LogConsumer,
        producer: LogProducer,
        metrics: Metrics,
        tracing: Tracing | None = None,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
        new_owner: Callable[[], str] = partial(secrets.token_hex, 8),
    ) -> None:
        self._topics = topics
        self._generated = generated
        self._control = control
        self._parked = parked
        self._producer = producer
        self._metrics = metrics
        self._tracing = tracing
        self._clock_ms = clock_ms
        self._monotonic_s = monotonic_s
        self._new_owner = new_owner
        self._workers = WorkersWatch(workers, topics.workers.name)
        self._policies = OutputPolicyReader(policies, topics.policies.name)
        self._core = PostSafety(settings, ResponseRules(self._policies, directory))
        self._regrouper = Regrouper(settings.regroup_ms)
        self._gate = CommitGate()
        self._names = names_of(topics)
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._gone: set[int] = set()  # during one poll
        self._commit_due_ms = 0.0
        self._open_commit: OpenCommit | None = None
        self._failure: DeliveryFailed | None = None
        self._failed_results: list[tuple[int, str, str, bytes, LogError]] = []
        self._counted: dict[str, int] = {}
        self._joined = False

    def start(self) -> None:
        """Reads the policies, finds its place in `control` and joins the group. Raises LogError."""
        self._policies.read()
        self._parked.partitions(self._topics.parked.name)  # must exist: what waits is written there
        self._generated.subscribe(
            [self._topics.generated.name],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        self._workers.start(self._clock_ms())
        since_ms = self._clock_ms() - KEEP_MS
        partitions = self._control.partitions(self._topics.control.name)
        self._control.assign({place: self._control.offset_at(place, since_ms) for place in partitions})

    def not_ready(self) -> str | None:
        """Why not, for `/readyz`; None when it has joined and is not rebuilding."""
        if not self._joined:
            return "not joined yet"
        return f"rebuilding partitions {sorted(self._ends)}" if self._ends else None

    def step(self) -> None:
        """Read, decide, publish, commit. Raises LogError and DeliveryFailed; the process must end then."""
        # 1 Read. After a crash: nothing happened.
        due_in_ms = self._regrouper.due_in_ms(self._now_ms())
        timeout_s = _IDLE_POLL_S if due_in_ms is None else min(due_in_ms / 1_000, _IDLE_POLL_S)
        records = self._poll(timeout_s)
        # 2 Decide and hand over. After a crash: read again from the commit; what was already sent is sent again, alike.
        for record in self._control.poll(_MAX_RECORDS, 0):
            self._take_control(record)
        for record in records:
            self._take(record)
            # A first token does not wait for the rest of what was read: after a stall that is a lot.
            self._send_due()
        self._workers.read(self._core.heartbeat)
        self._publish(self._core.tick(self._clock_ms()))
        # 3 Publish what is due. After a crash: as in 2.
        self._send_due()
        self._deliver(0)
        # 4 Park what waits. After a crash: the commit is older, and what is parked above it is passed over.
        # 5 Commit below what is ended or parked, and acknowledged; no step waits for the group's coordinator. After a
        # crash: that is not read again, and need not be; entries of what ended there say so.
        # 6 Once it is made, remove entries of what ended there. After a crash: the next owner does.
        self._commit_when_due()
        self._export()

    def close(self) -> None:
        """Publishes and commits what it has, then leaves the group."""
        self._settle(CLOSE_TIMEOUT_S)
        self._generated.close()
        self._control.close()
        self._policies.close()
        self._parked.close()
        self._workers.close()
        if self._tracing is not None:
            self._tracing.close()

    def _now_ms(self) -> float:
        return self._monotonic_s() * 1_000

    # Reading

    def _poll(self, timeout_s: float) -> list[LogRecord]:
        self._gone.clear()
        records = self._generated.poll(_MAX_RECORDS, timeout_s)
        if not self._gone:
            return records
        # What was read before a partition went belongs to nobody here; if it came back, it starts over.
        owned = set(self._core.partitions)
        for number in owned & self._gone & {record.partition for record in records}:
            self._generated.seek(TopicPartition(self._topics.generated.name, number), self._starts[number])
        return [record for record in records if record.partition in owned - self._gone]

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._joined = True
        positions = self._generated.committed(partitions)
        entries = self._read_parked([place.partition for place in partitions])
        for place in partitions:
            number, committed = place.partition, positions[place]
            low, high = self._generated.watermarks(place)
            found = None if entries is None else entries[number]
            restart = plan_restart(committed.offset, committed.metadata, found, high)
            if restart.distrust is not None:
                self._metrics.parked_distrusted.inc()
                _log.error("parked_not_used", partition=number, reason=restart.distrust, rebuilt_from=restart.offset)
            self._publish(self._core.assign(number, restart, self._new_owner()))
            begin = low if restart.offset is None else max(low, restart.offset)
            self._starts[number] = max(low, begin - ENDED_READ_BACK_RECORDS)
            self._generated.seek(place, self._starts[number])
            if begin >= high:
                self._publish(self._core.went_live(number))
            else:
                self._ends[number] = high
        _log.info("partitions_assigned", partitions=[place.partition for place in partitions])

    def _read_parked(self, numbers: Sequence[int]) -> dict[int, dict[str, bytes]] | None:
        """The latest entries of these partitions by key; None if they could not be read."""
        places = [TopicPartition(self._topics.parked.name, number) for number in numbers]
        entries: dict[int, dict[str, bytes]] = {number: {} for number in numbers}
        try:
            offsets = kept_offsets(self._parked, places)
            for record in read_offsets(self._parked, offsets, time.monotonic() + PARKED_READ_TIMEOUT_S):
                key = (record.key or b"").decode(errors="replace")
                if record.value is None:
                    entries[record.partition].pop(key, None)
                else:
                    entries[record.partition][key] = record.value
        except LogError as error:
            _log.error("parked_not_read", error=str(error))
            return None
        return entries

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            self._settle(REVOKE_TIMEOUT_S)
        except LogError as error:
            # The next owner starts from an older commit, and repeats what was done since.
            _log.warning("commit_on_revoke_failed", error=str(error))
        self._lost(partitions)

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        for place in partitions:
            self._gone.add(place.partition)
            self._core.revoke(place.partition)
            self._gate.forget(place.partition)
            if self._open_commit is not None:
                self._open_commit.positions.pop(place.partition, None)
            self._ends.pop(place.partition, None)
        _log.info("partitions_gone", partitions=[place.partition for place in partitions])

    # Deciding

    def _take(self, record: LogRecord) -> None:
        number, offset = record.partition, record.offset
        if offset < self._core.next_offset(number):
            self._remember(record)
            return
        try:
            event = decode(GENERATED, record.value)
            self._check_reply(event)
        except Undecodable as error:
            self._core.skip(number, offset, record.timestamp_ms, named_responses(record.key, record.value))
            self._bury(record, error)
        else:
            self._publish(self._core.fold(event, number, offset, record.timestamp_ms))
        if number in self._ends and offset + 1 >= self._ends[number]:
            del self._ends[number]
            self._publish(self._core.went_live(number))
        self._metrics.records_read.inc()

    def _remember(self, record: LogRecord) -> None:
        """A record below the commit: all that it speaks of has ended."""
        if record.value is None or b'"type":"frame"' in record.value:
            return
        try:
            event = decode(GENERATED, record.value)
        except Undecodable:
            return  # buried when it was read first
        if isinstance(event, Opened | Ending):
            self._core.remember_ended(record.partition, event.response_id)

    def _check_reply(self, event: Opened | Fence | Frame | Ending) -> None:
        """An address that cannot be delivered to would end this process again and again."""
        if not isinstance(event, Opened | Ending):
            return
        reply_to = event.reply_to
        if reply_to.partition >= self._topics.responses.partitions:
            raise Undecodable("invalid", "reply_to.partition: no such partition")
        whole = (self._topics.results(event.scope.tenant_id).name, self._topics.batch_results.name)
        if reply_to.results_topic not in (None, *whole):
            raise Undecodable("invalid", "reply_to.results_topic: not the tenant's")

    def _take_control(self, record: LogRecord) -> None:
        try:
            event = decode(CONTROL, record.value)
        except Undecodable as error:
            self._bury(record, error)
            return
        if isinstance(event, Cancel):
            self._core.cancel(event, record.timestamp_ms)

    # Publishing

    def _publish(self, effects: Iterable[Effect]) -> None:
        now_ms = self._now_ms()
        for effect in told(effects):
            if isinstance(effect, Released):
                for full in self._regrouper.add(effect, now_ms):
                    self._send_group(full)
            else:
                self._emit(effect)

    def _emit(self, effect: Emit) -> None:
        if isinstance(effect.record, BatchResult):
            topic = effect.topic or self._topics.results(effect.record.scope.tenant_id).name
            self._send_result(topic, effect.key, effect.record.encode(), self._gate.sent())
            return
        if isinstance(effect.record, Terminal) and effect.partition is not None:
            # A response's tokens stand before its terminal.
            group = self._regrouper.take(effect.partition)
            if group is not None:
                self._send_group(group)
        value = None if effect.record is None else effect.record.encode()
        self._send(self._names[effect.channel], value, key=effect.key, partition=effect.partition)
        if self._tracing is not None and isinstance(effect.record, UsageEvent):
            self._tracing.billed(effect.record)

    def _send_due(self) -> None:
        for group in self._regrouper.take_due(self._now_ms()):
            self._send_group(group)

    def _send_group(self, group: Group) -> None:
        self._send(self._topics.responses.name, group.value, partition=group.partition)
        self._metrics.released_tokens.inc(group.tokens)
        self._metrics.released_rows.inc(group.rows)
        self._metrics.release_seconds.observe(max(0.0, self._clock_ms() / 1e3 - group.oldest_emitted_at_us / 1e6))

    def _send(
        self, topic: str, value: bytes | None, *, key: str | None = None, partition: int | None = None,
        ticket: int | None = None,
    ) -> None:  # fmt: skip
        """With `ticket` the record stands for one whose ticket is still outstanding."""
        held = self._gate.sent() if ticket is None else ticket

        def delivered(_offset: int | None, error: LogError | None) -> None:
            if error is None:
                self._gate.acknowledged(held)
            elif self._failure is None:
                self._failure = DeliveryFailed(f"{topic}: {error}")

        self._produce(topic, value, key, partition, delivered)

    def _send_result(self, topic: str, key: str, value: bytes, ticket: int) -> None:
        """A tenant's topic may be missing or refuse a record without stopping everybody's answers.

        A failure that may pass ends the process like any other: the result is sent again from the commit.
        """

        def delivered(_offset: int | None, error: LogError | None) -> None:
            if error is None:
                self._gate.acknowledged(ticket)
            elif not error.retriable:
                self._failed_results.append((ticket, topic, key, value, error))
            elif self._failure is None:
                self._failure = DeliveryFailed(f"{topic}: {error}")

        try:
            self._produce(topic, value, key, None, delivered)
        except LogError as error:
            if error.retriable:
                raise
            self._failed_results.append((ticket, topic, key, value, error))

    def _produce(
        self, topic: str, value: bytes | None, key: str | None, partition: int | None, delivered: OnDelivery
    ) -> None:
        """Waits for room in the producer's queue. Raises ProducerQueueFull after `QUEUE_FULL_TIMEOUT_S`."""
        deadline_s = self._monotonic_s() + QUEUE_FULL_TIMEOUT_S
        while True:
            try:
                self._producer.produce(topic, value, key=key, partition=partition, on_delivery=delivered)
            except ProducerQueueFull:
                if self._monotonic_s() >= deadline_s:
                    raise
                self._producer.poll(0.05)
            else:
                return

    def _deliver(self, timeout_s: float) -> None:
        """Hears of deliveries. Raises DeliveryFailed for the first that failed."""
        self._producer.poll(timeout_s)
        if self._failure is not None:
            raise self._failure
        while self._failed_results:
            # Whatever stands for a result has its ticket: nothing is committed before the log has the one or the other.
            ticket, topic, key, value, error = self._failed_results.pop()
            if (shorter := shortened(value, error)) is not None:
                _log.warning("batch_result_shortened", topic=topic, error=str(error))
                self._metrics.shortened_results.inc()
                self._send_result(topic, key, shorter, ticket)
                continue
            _log.error("batch_result_failed", topic=topic, error=str(error))
            self._metrics.failed_results.inc()
            letter = DeadLetter.of(
                topic, 0, 0, value, stage=STAGE, reason="stage_failed", detail=str(error), dead_at_ms=self._clock_ms()
            )
            self._send_letter(letter, ticket=ticket)

    def _bury(self, record: LogRecord, error: Undecodable) -> None:
        _log.error("record_undecodable", topic=record.topic, partition=record.partition, offset=record.offset,
                   reason=error.reason, detail=error.detail)  # fmt: skip
        self._metrics.dead_letters.labels(error.reason).inc()
        self._send_letter(letter_of(record, STAGE, error.reason, error.detail, record.timestamp_ms))

    def _send_letter(self, letter: DeadLetter, *, ticket: int | None = None) -> None:
        self._send(self._topics.dead_letters.name, letter.encode(), key=letter.key, ticket=ticket)

    # Committing

    def _commit_when_due(self) -> None:
        now_ms = self._now_ms()
        self._hear_commit(now_ms)
        if self._open_commit is not None:
            return
        if self._gate.is_idle and now_ms >= self._commit_due_ms:
            self._commit_due_ms = now_ms + COMMIT_EVERY_MS
            self._publish(self._core.park(self._clock_ms()))
            # Rows that still wait are of open responses: a terminal sends what waits in front of it.
            self._gate.propose(self._core.to_commit())
        if positions := self._gate.ready():
            self._gate.done()
            offsets, metadata = self._to_commit(positions)
            try:
                outcome = self._generated.start_commit(offsets, metadata=metadata)
            except LogError as error:
                _say_uncommitted(error)
            else:
                self._open_commit = OpenCommit(positions, outcome, now_ms + COMMIT_TIMEOUT_S * 1_000)

    def _hear_commit(self, now_ms: float) -> None:
        """Whether the commit that is open, if there is one, was made."""
        if self._open_commit is None or not self._open_commit.is_over(now_ms):
            return
        commit, self._open_commit = self._open_commit, None
        try:
            commit.result()
        except LogError as error:
            _say_uncommitted(error)
        else:
            self._committed(commit.positions)

    def _committed(self, positions: Mapping[int, Position]) -> None:
        for number, position in positions.items():
            self._publish(self._core.committed(number, position))

    def _to_commit(
        self, positions: Mapping[int, Position]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, str]]:
        places = {TopicPartition(self._topics.generated.name, number): each for number, each in positions.items()}
        offsets = {place: position.offset for place, position in places.items()}
        return offsets, {place: position.metadata for place, position in places.items()}

    def _settle(self, timeout_s: float) -> None:
        """Publishes everything, and commits if all of it is acknowledged in time. Waits for that commit."""
        deadline_s = self._monotonic_s() + timeout_s
        if self._open_commit is not None:
            self._open_commit.outcome.cancel()
            self._open_commit = None  # this one goes at least as far
        for group in self._regrouper.take_all():
            self._send_group(group)
        self._gate.propose(self._core.to_commit())
        self._deliver(0)
        while self._gate.outstanding and (left_s := deadline_s - self._monotonic_s()) > 0:
            self._deliver(min(left_s, 0.05))
        if positions := self._gate.ready():
            offsets, metadata = self._to_commit(positions)
            try:
                self._generated.commit(offsets, metadata=metadata)
            except LogError as error:
                _say_uncommitted(error)
            else:
                self._committed(positions)
        self._gate.done()

    def _export(self) -> None:
        for name, total in self._core.counts.items():
            if total > (counted := self._counted.get(name, 0)):
                self._metrics.decisions.labels(name).inc(total - counted)
                self._counted[name] = total
        self._metrics.open_responses.set(self._core.open_responses)
        self._metrics.parked_responses.set(self._core.parked_responses)
        self._metrics.outstanding.set(self._gate.outstanding)


def _say_uncommitted(error: LogError) -> None:
    # Tried again with the next proposal; a partition that is lost is taken away by the next poll.
    _log.warning("commit_failed", error=str(error), retriable=error.retriable, repeats=True)
