"""The pump: a first token leaves at once, later ones join only while the loop is busy; what cannot be read is kept."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from schemas.base import Scope
from schemas.codec import Undecodable
from schemas.responses import Release, Started, Terminal
from streams.gateway.closing import CloseReason
from streams.gateway.fan_out import pump as pump_module
from streams.gateway.fan_out.backlog import SLICE_RESPONSES, Backlog, HistoryEntry
from streams.gateway.fan_out.hub import Hub
from streams.gateway.fan_out.pump import BUSY_RATIO, CALM_RATIO, Pump
from streams.gateway.fan_out.spans import Span
from streams.gateway.fan_out.stream import Closed, Viewer
from streams.gateway.history.log_history import LogHistory
from streams.gateway.history.store import History, RedisHistory, connect_history
from streams.gateway.metrics import GatewayMetrics
from streams.log.port import Committed, LogError, LogRecord, TopicPartition
from streams.settings import RedisSettings
from tests.unit.streams.gateway.gateway_stack import release, started, terminal, until

ACME = Scope(tenant_id="acme")
SOURCE = TopicPartition("local.responses", 0)


class Told:
    """A pump before a hub, and how often each viewer was woken."""

    def __init__(self, coalesce_ms: int) -> None:
        self.registry = CollectorRegistry()
        self.hub = Hub(max_lag_bytes=100_000, stall_ms=10_000, disconnect_grace_ms=10_000)
        redis = connect_history(RedisSettings(url="redis://127.0.0.1:1/0"))  # never asked
        near = RedisHistory(redis, "local", retention_s=1, response_timeout_ms=1)

        async def dead_letter(_: LogRecord, error: Undecodable) -> None:
            if self.failures:
                raise self.failures.pop(0)
            self.refused.append((error.reason, error.detail))

        async def commit(offsets: Mapping[TopicPartition, int]) -> None:
            self.commits.append(offsets[SOURCE])

        async def committed(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Committed]:
            return dict.fromkeys(partitions, Committed(None))

        def no_reader() -> None:
            raise AssertionError("nothing is read")

        self.pump = Pump(
            self.hub, History(near, LogHistory(no_reader, SOURCE.topic)),  # type: ignore[arg-type]
            GatewayMetrics(self.registry), dead_letter=dead_letter, commit=commit, committed=committed,
            coalesce_ms=coalesce_ms,
        )  # fmt: skip
        self.wakes: list[str] = []
        self.commits: list[int] = []
        self.failures: list[LogError] = []
        self.refused: list[tuple[str, str]] = []
        self._offset = 0

    def watch(self, response_id: str, after: int = 0) -> Viewer:
        self.hub.open(response_id, 0, ACME, "continue", 0)
        return self.hub.attach(response_id, 0, ACME, after, lambda _: self.wakes.append(response_id), 0)

    def read(self, *records: Started | Release | Terminal | bytes) -> None:
        batch = []
        for record in records:
            value = record if isinstance(record, bytes) else record.encode()
            batch.append(LogRecord(SOURCE.topic, 0, self._offset, None, value, (), 0))
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
    assert told.hub.unmet(10) == []


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


async def test_a_dead_letter_that_fails_is_sent_again_and_nothing_is_committed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pump_module, "DEAD_LETTER_RETRY_S", 0.0)
    monkeypatch.setattr(pump_module, "DEAD_LETTER_WAIT_S", 0.0)
    told = Told(coalesce_ms=0)
    await told.pump.assigned([SOURCE], 0)
    told.failures = [LogError("away", retriable=True)] * 2
    told.read(b"?")
    await told.pump.flush()
    assert told.commits == []
    await until(lambda: told.refused, "the letter is written")
    await told.pump.flush()
    assert told.commits == [1]


async def test_a_dead_letter_that_the_log_refuses_ends_the_gateway() -> None:
    told = Told(coalesce_ms=0)
    await told.pump.assigned([SOURCE], 0)
    told.failures = [LogError("no such topic", retriable=False)]
    told.read(b"?")
    with pytest.raises(LogError, match="no such topic"):
        await told.pump.flush()
    assert told.commits == []


async def test_more_dead_letters_than_can_wait_end_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "MAX_UNWRITTEN_DEAD_LETTERS", 2)
    monkeypatch.setattr(pump_module, "DEAD_LETTER_WAIT_S", 0.0)
    told = Told(coalesce_ms=0)
    told.failures = [LogError("away", retriable=True)] * 3
    told.read(b"?", b"?")
    await told.pump.flush()
    told.read(b"?")
    with pytest.raises(LogError, match="3 dead letters of 3 bytes wait"):
        await told.pump.flush()


async def test_dead_letters_that_wait_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "MAX_UNWRITTEN_BYTES", 2_000)
    monkeypatch.setattr(pump_module, "DEAD_LETTER_WAIT_S", 0.0)
    told = Told(coalesce_ms=0)
    told.failures = [LogError("away", retriable=True)] * 2
    told.read(b"?" * 1_500)
    await told.pump.flush()
    told.read(b"?" * 1_500)
    with pytest.raises(LogError, match="2 dead letters of 3000 bytes wait"):
        await told.pump.flush()


async def test_letters_that_are_written_are_not_kept_while_history_is_away() -> None:
    told = Told(coalesce_ms=0)
    await told.pump.assigned([SOURCE], 0)
    told.read(release("resp_local-0_" + "0" * 32, ACME, 1, ["one "]))
    for number in range(1, 4):
        told.read(b"?")
        await told.pump.flush()
        assert (len(told.refused), told.pump.unwritten_dead_letters, told.commits) == (number, 0, [])


async def test_a_flush_goes_in_slices_and_leaves_the_loop_to_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(coalesce_ms=0)
    ids = [f"resp_local-0_{number:032}" for number in range(5 * SLICE_RESPONSES)]
    told.read(*(release(response_id, ACME, 1, ["one "]) for response_id in ids))
    order: list[str] = []
    kept: list[str] = []

    async def append(_history: History, entries: Sequence[HistoryEntry]) -> None:
        order.append("slice")
        kept.extend(entry.stream.response_id for entry in entries)
        assert len(entries) <= SLICE_RESPONSES

    async def others() -> None:
        while len(kept) < len(ids):
            order.append("others")
            await asyncio.sleep(0)

    monkeypatch.setattr(History, "append", append)
    waiting = asyncio.ensure_future(others())
    await told.pump.flush()
    await waiting
    assert kept == ids
    assert "slice slice" not in " ".join(order)


@pytest.mark.parametrize(("heard_ms", "told_ms"), [(None, 60_000), (30_000, 90_000)])
async def test_viewers_of_a_partition_that_went_wait_as_long_as_the_log_says_nothing(
    heard_ms: int | None, told_ms: int
) -> None:
    told = Told(coalesce_ms=0)
    await told.pump.assigned([SOURCE], 0)
    viewer = told.watch("a")
    told.pump.revoked([SOURCE], 0)
    following = told.pump.following
    if heard_ms is not None:
        following.told(following.asked(), {0: Committed(0)}, heard_ms)
    await told.pump.assigned([], 50_000)
    following.sweep(told_ms - 1)
    assert not viewer.closed
    following.sweep(told_ms)
    assert viewer.take() == Closed(CloseReason.PARTITION_MOVED)


async def test_what_a_slow_history_cannot_follow_is_left_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(coalesce_ms=0)
    await told.pump.assigned([SOURCE], 0)
    told.hub.backlog = Backlog(max_bytes=50_000, max_ended=10)
    ids = [f"resp_local-0_{number:032}" for number in range(2 * SLICE_RESPONSES)]
    told.read(*(release(response_id, ACME, 1, ["one "]) for response_id in ids))
    slices: list[int] = []

    async def append(_history: History, entries: Sequence[HistoryEntry]) -> None:
        slices.append(len(entries))
        told.read(*(release(response_id, ACME, 2, ["x" * 1_000]) for response_id in ids))

    monkeypatch.setattr(History, "append", append)
    await told.pump.flush()
    assert (len(slices), told.commits, told.hub.backlog.unkept_bytes) == (1, [], 0)
    assert told.hub.bytes_left_to_log > 50_000


def test_each_ending_counts_once() -> None:
    told = Told(coalesce_ms=0)
    told.hub.open("a", 0, ACME, "continue", 0)
    told.read(terminal("a", ACME, 1), terminal("a", ACME, 1))
    assert told.registry.get_sample_value("sluice_gateway_endings_total", {"code": "completed"}) == 1


def test_busy_is_entered_and_left_at_different_loads() -> None:
    told = Told(coalesce_ms=1)
    seen = []
    for ratio in (CALM_RATIO, BUSY_RATIO, BUSY_RATIO + 0.01, BUSY_RATIO, CALM_RATIO + 0.01, CALM_RATIO, BUSY_RATIO):
        told.pump.measure(ratio)
        seen.append(told.pump.busy)
    assert seen == [False, False, True, True, True, False, False]
