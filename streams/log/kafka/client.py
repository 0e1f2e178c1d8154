"""What every client of librdkafka shares: its errors as ours, its positions."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as NativePartition

from streams.log.port import LogError, RecordTooLarge, TopicPartition
from streams.seldom import Seldom

T = TypeVar("T")

SETTLE_TIMEOUT_S = 15.0
"""How long a look-up is repeated while leaders move, as they do just after a topic was made, or a broker has died."""
FIRST_TRY_S, LONGEST_TRY_S = 1.0, 10.0
"""How long one try of a look-up may take: the first one, and after it twice as long as the one before."""
_RETRY_S = 0.05

logger = logging.getLogger(__name__)

# Beyond what librdkafka itself calls retriable: the same call may succeed once the brokers or the balance settle.
_RETRIABLE_CODES = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        # What was asked of a broker that the cluster has since taken out of its list.
        KafkaError._DESTROY_BROKER,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # Of a leader that has just taken over: it does not know yet how far the others have come, or is not known yet.
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
    }
)


class ClientEnded(LogError):
    """The client is of no use any more. A static member's is when it was fenced: its place went to a newer one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retriable=False)


def log_error(error: KafkaError, what: str) -> LogError:
    """`what` says what was attempted."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(f"{what}: {error.str()}")
    if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID):
        return ClientEnded(f"{what}: {error.name()}: {error.str()}")
    retriable = error.retriable() or error.code() in _RETRIABLE_CODES
    return LogError(f"{what}: {error.name()}: {error.str()}", retriable=retriable)


def settled(look_up: Callable[[float], T], find_leaders: Callable[[], None]) -> T:
    """The answer of a look-up, which is told how long it may take. It is tried again for `SETTLE_TIMEOUT_S` while its
    error is retriable, each time after `find_leaders`. Raises LogError.

    A client that neither reads nor writes a partition keeps for minutes whom it took for its leader: while that broker
    is away, a look-up would wait for it in vain, although another one leads by now.
    """
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    may_take_s = FIRST_TRY_S
    while True:
        try:
            return look_up(may_take_s)
        except LogError as error:
            if not error.retriable or time.monotonic() >= deadline_s:
                raise
        with contextlib.suppress(LogError):  # the next try finds out
            find_leaders()
        may_take_s = min(2 * may_take_s, LONGEST_TRY_S)
        time.sleep(_RETRY_S)


class ClientErrors:
    """Keeps the error that ends a client; logs those from which librdkafka recovers by itself.

    While a broker is away, the same error comes back many times a second.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._fatal: LogError | None = None
        self._seldom = Seldom()

    def __call__(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = log_error(error, self._client_id)
            return
        if self._seldom.left_out(error.name()) is not None:
            logger.warning("%s: %s: %s", self._client_id, error.name(), error.str())

    def begin_anew(self) -> None:
        """The client that ended has a successor."""
        self._fatal = None

    def raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal


class translated:
    """Turns librdkafka's exceptions into LogError.

    `looks_up`: a broker that has just come back may not know its own partitions for a moment, so that is retriable.
    """

    __slots__ = ("_looks_up", "_what")

    def __init__(self, what: str, *, looks_up: bool = False) -> None:
        self._what = what
        self._looks_up = looks_up

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, KafkaException):
            failure = log_error(error.args[0], self._what)
            if self._looks_up and error.args[0].code() == KafkaError._UNKNOWN_PARTITION:
                failure = LogError(str(failure), retriable=True)
            raise failure from None
        if isinstance(error, RuntimeError):  # "Consumer closed"
            raise LogError(f"{self._what}: {error}", retriable=False) from error


def native_position(partition: TopicPartition, offset: int | None = None, metadata: str = "") -> NativePartition:
    if offset is None:
        return NativePartition(partition.topic, partition.partition)
    if metadata:
        return NativePartition(partition.topic, partition.partition, offset, metadata)
    return NativePartition(partition.topic, partition.partition, offset)


def require_success(positions: Iterable[NativePartition], what: str) -> None:
    for position in positions:
        if position.error is not None:
            raise log_error(position.error, f"{what} {position.topic}-{position.partition}")
