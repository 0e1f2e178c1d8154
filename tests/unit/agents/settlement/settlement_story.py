"""Settlement over a log in memory, with quota by its model."""

import asyncio
from collections.abc import Callable, Sequence

from agents.quota.port import Reserved
from agents.settlement.core import Settlement
from agents.settlement.spending import Prices, Spending
from schemas.admission import Decision
from schemas.base import Scope
from schemas.codec import Undecodable
from schemas.endings import EndingCode
from schemas.request import Lane
from schemas.usage import AnyUsage, UsageEvent
from streams.directory import Limits, Tenant
from streams.log.memory import MemoryLog
from streams.log.port import LogProducer, TopicPartition
from streams.price_list import PriceList, PriceReader, told_of
from streams.pricing import PriceRow
from streams.topics import Topics
from tests.unit.agents.admission.world import Directory
from tests.unit.agents.quota.quota_model import ModelQuota

NOW = 1_790_000_000_000
LIMITS = Limits(tokens_per_minute=1_000, requests_per_minute=10_000, concurrent_responses=1_000)
ROUTE = Decision(pool="default", lane=Lane.STANDARD, lane_partition=1, generated_partition=2)


def usage(response_id: str = "r1", *, output: int = 40, billable: bool = True, choice: int = 0) -> UsageEvent:
    return UsageEvent(
        response_id=response_id, scope=Scope(tenant_id="acme"), usage_id=f"{response_id}/{choice}", choice=choice,
        endpoint="chat.completions", model="m", requested_model="m", pool="default", lane="standard", worker_id="w",
        attempts=1, ending=EndingCode.COMPLETED, finish_reason="stop", billable=billable, accepted_at_ms=NOW,
        first_token_at_ms=NOW, ended_at_ms=NOW, uncached_input_tokens=5, cached_input_tokens=3, output_tokens=output,
        reasoning_tokens=2, released_tokens=output, reserved_tokens=100,
    )  # fmt: skip


class Story:
    """Settlement over a log in memory, with quota by its model."""

    def __init__(self, tenant: Tenant | None = None, prices: Sequence[PriceRow] = ()) -> None:
        self.now_ms = NOW
        self.log_id = "cluster/usage"
        self.tenant = Tenant(tenant_id="acme", limits=LIMITS) if tenant is None else tenant
        self.directory = Directory(self.tenant)
        self.prices = PriceList()
        self.topics = Topics("local", ["default"])
        self.log = MemoryLog(lambda: self.now_ms)
        for topic in self.topics.all([]):
            self.log.create_topic(topic.name, topic.partitions)
        for row in prices:
            self.log.append(self.topics.prices.name, told_of(row).encode())
        self.quota = ModelQuota(NOW)
        self.loop = asyncio.Runner()
        self.queued: bool | Callable[[Decision, int], bool] = False
        self.waited: list[float] = []
        self.unreadable: list[Undecodable] = []
        self.settlement = self.incarnation()

    def spending(self, reader: Prices, producer: LogProducer | None = None) -> Spending:
        return Spending(
            topics=self.topics, producer=self.log.producer("p") if producer is None else producer, quota=self.quota,
            region="local", directory=self.directory, prices=self.prices, reader=reader, clock_ms=lambda: self.now_ms,
            log_id=lambda: self.log_id,
        )  # fmt: skip

    def incarnation(self, client_id: str = "settlement") -> Settlement:
        producer = self.log.producer(f"{client_id}-producer")
        reader = PriceReader(
            lambda: self.log.consumer(None, f"{client_id}-prices"), self.topics.prices.name, self.prices,
            lambda _record, error: self.unreadable.append(error),
        )  # fmt: skip
        spending = self.spending(reader, producer)
        settlement = Settlement(
            topics=self.topics, consumer=self.log.consumer("settlement", client_id), producer=producer,
            quota=self.quota, directory=self.directory, queued=self, spending=spending,
            clock_ms=lambda: self.now_ms, wait=self.waited.append, run=self.loop.run,
        )  # fmt: skip
        settlement.start()
        return settlement

    def may_be(self, decision: Decision, deadline_ms: int) -> bool:
        return self.queued if isinstance(self.queued, bool) else self.queued(decision, deadline_ms)

    def reserve(
        self, response_id: str = "r1", deadline_ms: int = NOW + 1_000, *, tokens: int = 100, route: Decision = ROUTE
    ) -> None:
        call = self.quota.reserve("acme", LIMITS, response_id, tokens=tokens, deadline_ms=deadline_ms)
        assert self.loop.run(call) == Reserved(tokens)
        self.loop.run(self.quota.decide("acme", LIMITS, response_id, route, tokens=tokens, deadline_ms=deadline_ms))

    def used(self, event: AnyUsage | bytes, partition: int = 0) -> None:
        value = event if isinstance(event, bytes) else event.encode()
        self.log.append(self.topics.usage.name, value, partition=partition)

    @property
    def committed(self) -> int | None:
        return self.log.committed("settlement", TopicPartition(self.topics.usage.name, 0)).offset

    @property
    def tokens(self) -> int:
        return self.quota.tenants["acme"].tokens

    def settle(self, steps: int = 5) -> None:
        for _ in range(steps):
            self.settlement.step()
