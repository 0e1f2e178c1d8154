"""Of those who are told where they stand each tenant has a share, and who is told no more is not asked for news."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.base import Scope
from schemas.generated import QueueAhead
from schemas.responses import Started
from streams.clocks import now_ms
from streams.gateway import queues
from streams.gateway.fan_out.delivery import Follower
from streams.gateway.http.dialects.port import Events
from streams.gateway.http.silence import KEEP_ALIVE_S, Silence
from streams.gateway.queues import LOOK_EVERY_S, MAX_TENANT_WAITERS, MAX_WAITERS, Queues, Waiter
from streams.heartbeats import Heartbeats

BEFORE = QueueAhead(worker_id="worker-1", before=6, wait_ms=3_500, left=100, counts_since_ms=7)


def started(tenant_id: str) -> Started:
    return Started(
        response_id="resp_1", scope=Scope(tenant_id=tenant_id), model="tiny", requested_model="small", lane="standard",
        pool="default", prompt_tokens=3, accepted_at_ms=now_ms(), deadline_ms=now_ms() + 60_000, queued=BEFORE,
    )  # fmt: skip


def follower(tenant_id: str) -> Follower:
    """Of a response that waits."""
    viewer = SimpleNamespace(closed=False, after=0, stream=SimpleNamespace(terminal=None))
    return cast(Follower, SimpleNamespace(tenant_id=tenant_id, viewer=viewer, has_more=False))


def not_looked_at() -> Heartbeats:
    raise AssertionError


def enter(queue: Queues, tenant_id: str) -> Waiter:
    waiter = queue.enter(started(tenant_id), follower(tenant_id))
    assert waiter is not None
    assert waiter.place is not None, "everybody is told once"
    return waiter


def test_a_tenants_backlog_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_TENANT_WAITERS * 4 <= MAX_WAITERS
    monkeypatch.setattr(queues, "MAX_TENANT_WAITERS", 2)
    monkeypatch.setattr(queues, "MAX_WAITERS", 4)
    queue = Queues(not_looked_at)
    many = [enter(queue, "acme") for _ in range(9)]
    assert [each.hears_more for each in many] == [True] * 2 + [False] * 7
    others = [enter(queue, "globex") for _ in range(3)]
    assert [each.hears_more for each in others] == [True, True, False]
    assert not enter(queue, "initech").hears_more, "all places are taken"
    for each in (many[0], many[0], many[8]):
        queue.leave(each)
    assert enter(queue, "acme").hears_more, "one has left, however often it said so"
    assert not enter(queue, "acme").hears_more
    for each in [*queue._waiters]:
        queue.leave(each)
    assert (queue._waiters, dict(queue._of_tenant)) == ({}, {}), "of who is gone nothing is kept"


def test_a_stream_that_is_told_no_more_is_not_asked_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_TENANT_WAITERS", 1)
    queue = Queues(not_looked_at)
    events = cast(Events, SimpleNamespace(queued=lambda place: b"%d" % place.before, keep_alive=b"alive"))
    asked: list[Any] = []
    for _ in range(2):
        silence = Silence(queue, follower("acme"), events)
        asked.append((silence.begun(started("acme")), silence.patience_s, silence.told()))
    assert asked == [(b"6", LOOK_EVERY_S, b""), (b"6", KEEP_ALIVE_S, b"alive")]
