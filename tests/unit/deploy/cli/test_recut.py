"""What is billed again counts once, but for months whose events were dropped: that is said, and refused."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from billing_jobs.reconciliation.dropped import BROKERS_APART_MS, LOGGED_WITHIN_MS, DroppedMonth, brought_back
from deploy.cli import billing
from deploy.cli.app import app
from deploy.cli.billing import Desk, Position
from schemas.month import Month
from streams.clocks import HOUR_MS
from streams.log.memory import MemoryLog
from streams.log.port import TopicPartition

TOPIC = "local.usage"
OCTOBER, NOVEMBER = Month(2026, 10), Month(2026, 11)
DROPPED = DroppedMonth(OCTOBER, NOVEMBER.start_ms + HOUR_MS)


class DeskOfOne(Desk):
    """Over a partition of one record of October, one of before the drop and one of long after it."""

    def __init__(self) -> None:
        self.now_ms = 0
        log = MemoryLog(lambda: self.now_ms)
        log.create_topic(TOPIC, 1)
        for self.now_ms in (OCTOBER.start_ms + 1, DROPPED.dropped_at_ms - 1, DROPPED.dropped_at_ms + HOUR_MS):
            log.append(TOPIC, b"{}", partition=0)
        self.consumer: Any = log.consumer(None, "recut")
        self.topic = TOPIC
        self.dropped = (DROPPED,)
        self.decided: list[int] = []

    def inspect(self, place: TopicPartition) -> Position:
        return Position(place.partition, 0, 3, 3, "", 3, "")

    def decide(self, place: TopicPartition, next_offset: int, reason: str) -> None:
        self.decided.append(next_offset)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeskOfOne]:
    desk = DeskOfOne()

    @contextmanager
    def opened(_settings: object) -> Iterator[Desk]:
        yield desk

    monkeypatch.setattr(billing, "settings_at", lambda _data: None)
    monkeypatch.setattr(billing, "_desk", opened)
    with closing(desk.consumer):
        yield desk


def sluice(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["billing", *arguments])


def test_usage_of_a_dropped_month_is_not_brought_back_unless_that_is_asked_for_by_name(desk: DeskOfOne) -> None:
    for offset in ("0", "1"):
        refused = sluice("recut", "0", "--from", offset, "--yes")
        assert "usage of 2026-10 would be shown twice" in str(refused.exception)
    assert desk.decided == []
    done = sluice("recut", "0", "--from", "0", "--yes", "--shown-twice")
    assert (done.exit_code, desk.decided) == (0, [0])
    assert "2026-10 was dropped" in done.stderr


def test_what_was_logged_after_the_drop_is_billed_again_as_ever(desk: DeskOfOne) -> None:
    assert sluice("recut", "0", "--from", "2", "--yes").exit_code == 0
    assert sluice("skip", "0", "--yes").exit_code == 0
    assert desk.decided == [2, 3]


def test_a_partition_that_is_not_there_is_still_named(desk: DeskOfOne) -> None:
    assert "has no partition 9" in str(sluice("recut", "9", "--from", "0", "--yes").exception)


def test_a_month_whose_usage_left_the_log_long_ago_hinders_nobody(desk: DeskOfOne) -> None:
    old = DroppedMonth(Month(2025, 1), DROPPED.dropped_at_ms)

    def offset_at(at_ms: int) -> int:
        assert at_ms in (
            old.month.end_ms + LOGGED_WITHIN_MS + BROKERS_APART_MS,
            DROPPED.dropped_at_ms + BROKERS_APART_MS,
        )
        offset: int = desk.consumer.offset_at(TopicPartition(TOPIC, 0), at_ms)
        return offset

    assert brought_back((old, DROPPED), 0, offset_at) == [OCTOBER]
