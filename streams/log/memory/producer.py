"""The producer of the log in memory."""

from collections import deque
from dataclasses import dataclass
from itertools import count

from streams.log.memory.broker import MemoryBroker
from streams.log.memory.faults import Crashed, Fault, FaultKind
from streams.log.port import (
    MAX_RECORD_BYTES,
    Headers,
    LogError,
    OnDelivery,
    ProducerQueueFull,
    RecordTooLarge,
    TopicPartition,
)


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's clients choose a key's partition (org.apache.kafka.common.utils.Utils.murmur2)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@dataclass(slots=True)
class _Queued:
    partition: TopicPartition
    key: str | None
    value: bytes | None
    headers: Headers
    on_delivery: OnDelivery | None
    fault: Fault | None


@dataclass(slots=True)
class _Report:
    partition: TopicPartition
    offset: int | None
    error: LogError | None
    on_delivery: OnDelivery | None
    polls_left: int


class MemoryProducer:
    """See `streams.log.port.LogProducer`. Records reach the log in `poll` and `flush`."""

    def __init__(self, log: MemoryBroker, client_id: str, queue_records: int) -> None:
        self._log = log
        self._client_id = client_id
        self._queue_records = queue_records
        self._queue: deque[_Queued] = deque()
        self._reports: list[_Report] = []
        self._crashed = False
        self._keyless = count()

    def __len__(self) -> int:
        """Records whose delivery is outstanding."""
        return len(self._queue) + len(self._reports)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self._require_life()
        if len(self) >= self._queue_records:
            raise ProducerQueueFull
        if len(value or b"") > MAX_RECORD_BYTES:
            raise RecordTooLarge(f"{len(value or b'')} bytes to {topic}")
        fault = None
        if self._log.script.next(self._client_id) is not None:
            fault = self._log.script.take(self._client_id)
            if fault.kind in (FaultKind.REBALANCE, FaultKind.LOST):
                raise ValueError(f"{fault} cannot strike a producer")
        self._log.script.passed(self._client_id)
        if fault is not None and fault.kind is FaultKind.CRASH:
            self.crash()
            raise Crashed(self._client_id)
        place = TopicPartition(topic, self._choose(topic, key) if partition is None else partition)
        self._queue.append(_Queued(place, key, value, tuple(headers), on_delivery, fault))

    def poll(self, timeout_s: float = 0.0) -> int:
        self._require_life()
        while self._queue:
            self._transmit(self._queue.popleft())
        due, held, waiting = [], [], set()
        for report in self._reports:
            if report.polls_left > 0 or report.partition in waiting:
                waiting.add(report.partition)
                report.polls_left -= 1
                held.append(report)
            else:
                due.append(report)
        self._reports = held
        unheard = None
        for report in due:
            if report.on_delivery is not None:
                report.on_delivery(report.offset, report.error)
            elif report.error is not None:
                unheard = report.error
        if unheard is not None:
            raise unheard
        return len(due)

    def flush(self, timeout_s: float) -> int:
        """Delayed reports are waited for, unless `timeout_s` is 0."""
        self.poll()
        while self._reports and timeout_s > 0:
            self.poll()
        return len(self)

    def crash(self) -> None:
        """SIGKILL: what was queued never existed, what was stored stays."""
        self._crashed = True
        self._queue.clear()
        self._reports.clear()

    def _require_life(self) -> None:
        if self._crashed:
            raise Crashed(self._client_id)

    def _choose(self, topic: str, key: str | None) -> int:
        partitions = self._log.partition_count(topic) or 1
        if key is None:
            return next(self._keyless) % partitions
        return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions

    def _transmit(self, queued: _Queued) -> None:
        kind = None if queued.fault is None else queued.fault.kind
        offset, error = None, None
        if kind is FaultKind.FAIL:
            error = LogError("delivery failed by script", retriable=True)
        else:
            place = queued.partition
            try:
                for _ in range(2 if kind is FaultKind.DUPLICATE else 1):
                    offset = self._log.append(
                        place.topic, queued.value, key=queued.key, partition=place.partition, headers=queued.headers
                    )
            except LogError as unknown:
                error = unknown
        polls = queued.fault.polls if queued.fault is not None and kind is FaultKind.DELAY else 0
        self._reports.append(_Report(queued.partition, offset, error, queued.on_delivery, polls))
