"""The pump's rhythm: a first token leaves at once, later ones join only while the loop is busy."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from schemas.base import Scope
from schemas.codec import Undecodable
from schemas.responses import Release, Started, Terminal
from streams.gateway.history import History, LogHistory, RedisHistory, connect_history
from streams.gateway.hub import Hub, Viewer
from streams.gateway.metrics import GatewayMetrics
from streams.gateway.pump import BUSY_RATIO, CALM_RATIO, Pump
from streams.gateway.spans import Span
from streams.log import Committed, LogRecord, TopicPartition
from streams.settings import RedisSettings
from tests.unit.streams.gateway.gateway_stack import release, started, terminal, until

ACME = Scope(tenant_id="acme")
SOURCE = TopicPartition("local.responses", 0)


class Told:
    """A pump before a hub, and how often each viewer was woken."""

    def __init__(self, coalesce_ms: int) -> None:
        self.hub = Hub(max_lag_chars=10_000, stall_ms=10_000, disconnect_grace_ms=10_000)
        redis = connect_history(RedisSettings(url="redis://127.0.0.1:1/0"))  # never asked
        near = RedisHistory(redis, "local", retention_s=1, response_timeout_ms=1)

        async def dead_letter(_: LogRecord, error: Undecodable) -> None:
            self.refused.append((error.reason, error.detail))

        async def commit(_: Mapping[TopicPartition, int]) -> None: ...

        async def committed(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
            return dict.fromkeys(partitions, Committed(None))

        def no_reader() -> None:
            raise AssertionError("nothing is read")

        self.pump = Pump(
            self.hub, History(near, LogHistory(no_reader, SOURCE.topic)),  # type: ignore[arg-type]
            GatewayMetrics(CollectorRegistry()), dead_letter=dead_letter, commit=commit, committed=committed,
            coalesce_ms=coalesce_ms,
        )  # fmt: skip
        self.wakes: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self._offset = 0

    def watch(self, response_id: str, after: int = 0) -> Viewer:
        self.hub.open(response_id, 0, ACME, "continue", 0)
        return self.hub.attach(response_id, 0, ACME, after, lambda _: self.wakes.append(response_id), 0)

    def read(self, *records: Started | Release | Terminal) -> None:
        batch = []
        for record in records:
            batch.append(LogRecord(SOURCE.topic, 0, self._offset, None, record.encode(), (), 0))
            self._offset += 1
        self.pump.handle(batch, 0, 0)


def span_of(viewer: Viewer) -> Span:
    event = viewer.take()
    assert isinstance(event, Span)
    return event


async def test_while_the_loop_is_calm_every_batch_leaves_at_once() -> None:
    told = Told(coalesce_ms=10_000)
    viewer = told.watch("a")
    for number in range(1, 4):
        told.read(release("a", ACME, number, [f"{number} "]))
        assert told.wakes == ["a"] * number
        assert span_of(viewer).text == f"{number} "


async def test_while_the_loop_is_busy_later_tokens_join_and_a_first_one_does_not_wait() -> None:
    told = Told(coalesce_ms=1)
    told.pump.measure(1.0)
    old, new = told.watch("old"), told.watch("new")
    told.read(release("old", ACME, 1, ["one "]))
    assert told.wakes == ["old"], "a first token leaves at once"
    assert span_of(old).text == "one "
    told.read(release("old", ACME, 2, ["two "]))
    told.read(release("old", ACME, 3, ["three "]), release("new", ACME, 1, ["first "]))
    assert told.wakes == ["old", "new"], "only the first token of the other one has left"
    assert span_of(new).text == "first "
    await until(lambda: told.wakes == ["old", "new", "old"], "what waited leaves after a while")
    assert span_of(old).text == "two three "
    told.read(release("old", ACME, 4, ["four "]))
    assert len(told.wakes) == 3
    await until(lambda: len(told.wakes) == 4, "and so does what comes later")
    assert span_of(old).text == "four "


async def test_who_resumed_waits_no_longer_for_its_next_token_than_others() -> None:
    told = Told(coalesce_ms=1)
    told.pump.measure(1.0)
    told.watch("a")
    told.read(release("a", ACME, 1, ["one "]))
    resumed = told.hub.attach("a", 0, ACME, 1, lambda _: told.wakes.append("resumed"), 0)
    span_or_none = resumed.take()
    assert span_or_none is None
    told.wakes.clear()
    told.read(release("a", ACME, 2, ["two "]))
    await asyncio.sleep(0)
    await until(lambda: "resumed" in told.wakes, "it is woken with the others")
    assert span_of(resumed).text == "two "


@pytest.mark.parametrize("record", [release("what", ACME, 1, ["x"]), started("what", ACME), terminal("what", ACME, 1)])
async def test_a_record_of_what_is_no_response_id_is_refused_and_the_others_are_told(
    record: Started | Release | Terminal,
) -> None:
    told = Told(coalesce_ms=0)
    viewer = told.watch("a")
    told.read(record, release("a", ACME, 1, ["one "]))
    await told.pump.flush()
    assert told.refused == [("invalid", "response_id: not a response id")]
    assert span_of(viewer).text == "one "
    assert told.hub.strangers(10) == []


async def test_the_rows_beside_one_of_what_is_no_response_id_are_told() -> None:
    told = Told(coalesce_ms=0)
    viewer = told.watch("a")
    rows = release("what", ACME, 1, ["x"]).model_dump(mode="json")
    for column, values in release("a", ACME, 1, ["one "]).model_dump(mode="json").items():
        if isinstance(values, list) and column != "scopes":
            rows[column] += values
    told.read(Release.model_validate(rows))
    await told.pump.flush()
    assert len(told.refused) == 1
    assert span_of(viewer).text == "one "


def test_busy_is_entered_and_left_at_different_loads() -> None:
    told = Told(coalesce_ms=1)
    seen = []
    for ratio in (CALM_RATIO, BUSY_RATIO, BUSY_RATIO + 0.01, BUSY_RATIO, CALM_RATIO + 0.01, CALM_RATIO, BUSY_RATIO):
        told.pump.measure(ratio)
        seen.append(told.pump.busy)
    assert seen == [False, False, True, True, True, False, False]
