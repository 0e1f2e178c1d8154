"""What answers are held against is written down before a response is opened under it."""

from collections.abc import Sequence

import pytest

from agents.admission.publisher import PublishFailed
from agents.safety.output_policies import KEEP_AGAIN_MS, MISS_REMEMBERED_S, OutputPolicyReader
from schemas.codec import decode
from schemas.generated import Opened
from schemas.policy import NOTHING_DENIED, OutputPolicy
from streams.log.memory import MemoryConsumer, MemoryLog
from streams.log.port import TopicPartition
from streams.safety_policy import SafetyPolicy
from streams.topics import WORK_RETENTION_MS
from tests.unit.agents.admission.world import World


def deny(world: World, *phrases: str) -> None:
    tenant = world.directory.all["acme"]
    policy = tenant.policy.model_copy(update={"output_deny": list(phrases)})
    world.directory.all["acme"] = tenant.model_copy(update={"policy": policy})


async def admit(world: World) -> str:
    """Admits a request; returns the policy that its `opened` names."""
    world.beat()
    await world.pipeline.handle_request(world.record(world.request("hello", deadline_ms=world.now_ms + 60_000)))
    return world.log.of(Opened, "local.generated")[-1][1].output_policy


def kept(world: World) -> Sequence[OutputPolicy]:
    records = [record for record in world.log.records if record.topic == "local.policies"]
    policies = [decode(OutputPolicy, record.value) for record in records]
    assert [record.key for record in records] == [policy.key.encode() for policy in policies]
    return policies


async def test_the_phrases_are_written_before_the_response_is_opened(world: World) -> None:
    deny(world, "make tea")
    digest = await admit(world)
    assert [policy.output_deny for policy in kept(world)] == [["make tea"]]
    assert kept(world)[0].digest == digest
    assert world.log.kinds.index("policies") < world.log.kinds.index("generated")


async def test_they_are_written_again_when_they_changed_and_before_they_could_be_forgotten(world: World) -> None:
    deny(world, "make tea")
    first = await admit(world)
    assert await admit(world) == first
    assert len(kept(world)) == 1
    deny(world, "make coffee")
    second = await admit(world)
    assert second != first
    assert [policy.digest for policy in kept(world)] == [first, second]
    world.now_ms += KEEP_AGAIN_MS
    assert await admit(world) == second
    assert [policy.digest for policy in kept(world)] == [first, second, second]
    retention_ms = world.topics.policies.retention_ms
    assert retention_ms is not None
    assert retention_ms > WORK_RETENTION_MS + KEEP_AGAIN_MS


async def test_a_tenant_that_denies_nothing_costs_no_record(world: World) -> None:
    assert await admit(world) == NOTHING_DENIED
    assert not kept(world)


async def test_nothing_is_opened_under_phrases_that_were_not_written(world: World) -> None:
    deny(world, "make tea")
    world.log.fail_after = 0
    with pytest.raises(PublishFailed):
        await admit(world)
    assert not world.log.of(Opened, "local.generated")
    world.log.fail_after = None
    await admit(world)
    assert len(kept(world)) == 1, "what was not acknowledged is written again"


class CountingConsumer(MemoryConsumer):
    looks = 0

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        self.looks += 1
        return super().watermarks(partition)


def test_what_nobody_kept_is_not_asked_for_again_for_a_while() -> None:
    now_s = 1_000.0
    log = MemoryLog(lambda: int(now_s * 1_000))
    log.create_topic("local.policies", 1)
    consumer = CountingConsumer(log, None, "reader", "earliest")
    reader = OutputPolicyReader(consumer, "local.policies", monotonic_s=lambda: now_s)
    policy = OutputPolicy.of("acme", ["make tea"])
    for _ in range(1_000):
        assert reader.policy("acme", policy.digest) is None
    assert consumer.looks == 1
    log.append("local.policies", policy.encode(), key=policy.key)
    now_s += MISS_REMEMBERED_S
    assert reader.policy("acme", policy.digest) == policy


def test_phrases_kept_in_the_meantime_are_found_when_anything_is_read() -> None:
    log = MemoryLog(lambda: 0)
    log.create_topic("local.policies", 1)
    reader = OutputPolicyReader(log.consumer(None, "reader"), "local.policies", monotonic_s=lambda: 0.0)
    tea, coffee = (OutputPolicy.of("acme", [f"make {drink}"]) for drink in ("tea", "coffee"))
    assert reader.policy("acme", tea.digest) is None
    for policy in (tea, coffee):
        log.append("local.policies", policy.encode(), key=policy.key)
    assert reader.policy("acme", coffee.digest) == coffee
    assert reader.policy("acme", tea.digest) == tea


def test_phrases_that_would_not_fit_into_a_record_are_refused() -> None:
    with pytest.raises(ValueError, match="500000 characters"):
        SafetyPolicy(output_deny=["x" * 500_001])
    assert len(OutputPolicy.of("acme", ["\x01" * 500_000]).encode()) < 4_000_000
