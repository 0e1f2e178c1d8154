"""The sink's surroundings: a log and tables in memory, members that may die at any point, a clock to set."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from types import MethodType
from typing import Any

from prometheus_client import CollectorRegistry

from billing_jobs.metrics import BillingMetrics
from billing_jobs.pricing import PriceRow
from billing_jobs.sink import GROUP, Sink
from billing_jobs.store import StoreError
from schemas.dead_letter import DeadLetter
from streams.log.memory import Crashed, MemoryConsumer, MemoryLog
from streams.log.port import TopicPartition
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.stores import MemoryStore

TOPIC, DEAD_LETTERS, PARTITIONS = "local.usage", "local.dead-letters", 3
PRICE = PriceRow("tiny", "USD", 0, 100, 20, 400, 400)
COST_PICO = 10 * 100 + 4 * 20 + 32 * 400
WAIT_MS = 500


@dataclass
class Clock:
    now_ms: int = NOON_MS
    set_back_ms: int = 0

    def __call__(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms + self.set_back_ms

    def set_back(self, by_ms: int) -> None:
        self.now_ms -= by_ms
        self.set_back_ms += by_ms


class _Done(Future[Any]):
    """Done when it is asked for, at the latest."""

    def __init__(self, do: Callable[[], Any]) -> None:
        super().__init__()
        self._do = do

    def do(self) -> None:
        if not self.done():
            try:
                self.set_result(self._do())
            except BaseException as error:  # noqa: BLE001 - whoever asks for it is told
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.do()
        return super().result(timeout)


class Beside(Executor):
    """What it is given is done at once, or as late as it may be: of a member that dies before, never."""

    def __init__(self, late: Callable[[], bool] = lambda: False) -> None:
        self._late = late
        self._given: list[_Done] = []

    def submit(self, do: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self._given.append(_Done(partial(do, *arguments, **named)))
        if not self._late():
            self._given[-1].do()
        return self._given[-1]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for each in self._given:
            each.do()


@dataclass
class Member:
    """A billing process: its sink, its consumer and its metrics."""

    sink: Sink
    consumer: MemoryConsumer
    registry: CollectorRegistry

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@dataclass
class World:
    """One log, one store, any number of billing processes."""

    batch_rows: int = 4
    batch_wait_ms: int = WAIT_MS
    clock: Clock = field(default_factory=Clock)
    store: MemoryStore = field(default_factory=MemoryStore)
    prices: list[PriceRow] = field(default_factory=lambda: [PRICE])
    price_reads: int = 0
    waiting_rows: int = 0
    repricings: list[int] = field(default_factory=list)
    prices_away: bool = False
    price_error: Exception | None = None
    log_id: str = "first-cluster/first-topic"
    is_insert_late: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.new_log()

    def new_log(self) -> None:
        self.log = MemoryLog(self.clock)
        self.log.create_topic(TOPIC, PARTITIONS)
        self.log.create_topic(DEAD_LETTERS, 1)

    def member(self, client_id: str = "a") -> Member:
        registry = CollectorRegistry()
        consumer = self.log.consumer(GROUP, client_id)
        sink = Sink(
            consumer=consumer,
            producer=self.log.producer(f"{client_id}-producer"),
            store=self.store,
            load_prices=self.load_prices,
            reprice=self.reprice,
            usage_waits=lambda: self.store.usage_waits(),
            log_id=lambda: self.log_id,
            usage_topic=TOPIC,
            dead_letter_topic=DEAD_LETTERS,
            batch_rows=self.batch_rows,
            batch_wait_ms=self.batch_wait_ms,
            quick_wait_ms=WAIT_MS,
            clock_ms=self.clock,
            monotonic_ms=self.clock.monotonic_ms,
            metrics=BillingMetrics(registry),
            beside=Beside(self.is_insert_late),
        )
        return Member(sink, consumer, registry)

    def load_prices(self) -> list[PriceRow]:
        self.price_reads += 1
        if self.prices_away:
            raise StoreError("away")
        if self.price_error is not None:
            raise self.price_error
        return list(self.prices)

    def reprice(self, max_rows: int) -> int:
        """`waiting_rows` wait for a price that is known."""
        if self.prices_away:
            raise StoreError("away")
        rows = min(max_rows, self.waiting_rows)
        self.waiting_rows -= rows
        if rows:
            self.store.give_prices(rows)
        self.repricings.append(rows)
        return rows

    def unpriced(self) -> list[dict[str, Any]]:
        return self.store.unpriced()

    def append(self, value: bytes, partition: int = 0) -> int:
        return self.log.append(TOPIC, value, partition=partition)

    def steps(self, member: Member, count: int = 30, each_ms: int = 200) -> None:
        for _ in range(count):
            member.sink.step()
            self.clock.now_ms += each_ms

    def stored_offsets(self, partition: int = 0) -> list[int]:
        rows = self.store.tables.get("usage_events", ())
        return sorted(row["log_offset"] for row in rows if row["log_partition"] == partition)

    def dead_letters(self) -> list[DeadLetter]:
        return [DeadLetter.model_validate_json(record.value or b"") for record in self.log.records(DEAD_LETTERS)]


def put_usage(world: World, first: int, last: int, partition: int = 0) -> None:
    for number in range(first, last + 1):
        world.append(usage_event(number).encode(), partition)


def on_commit(consumer: MemoryConsumer, before: Callable[[], None], after: Callable[[], None] = lambda: None) -> None:
    """Puts something around the consumer's next commit."""
    commit = consumer.commit

    def struck(
        _self: MemoryConsumer,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        consumer.__dict__.pop("commit", None)
        before()
        commit(offsets, metadata=metadata)
        after()

    consumer.__dict__["commit"] = MethodType(struck, consumer)


def crash(member: Member) -> Callable[[], None]:
    def die() -> None:
        member.consumer.crash()
        raise Crashed("a")

    return die
