"""What is watched elsewhere is known to its owner while it is, and nothing is ended while nobody can know."""

import asyncio
from collections.abc import AsyncIterator
from unittest import mock

import pytest
import redis
from redis.asyncio import Redis

from streams import redis_keys
from streams.gateway import watches
from streams.gateway.fan_out.following import Following
from streams.gateway.history.store import connect_history
from streams.gateway.service.unwatched import Unwatched
from streams.gateway.watches import AT_ONCE, LEASE_S, Watches, WatchesUnknown
from streams.log.port import Committed
from streams.settings import RedisSettings, Settings
from tests.unit.streams.gateway.gateway_stack import release, until
from tests.unit.streams.gateway.hub_stories import ACME, OWNED, R, hub, open_with, viewer_of


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[Redis]:
    client = connect_history(settings.redis)
    yield client
    await client.aclose()


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def known(client: Redis, region: str) -> tuple[Watches, Clock]:
    """Who has seen Redis' memory for as long as a lease lives."""
    clock = Clock()
    watches = Watches(client, region, clock)
    await watches.known_for_s()
    clock.now_s += LEASE_S
    return watches, clock


async def test_a_lease_is_seen_by_every_gateway_of_the_region_and_runs_out(settings: Settings, client: Redis) -> None:
    ids = [f"r{number}" for number in range(AT_ONCE + 1)]
    said, (asking, _) = Watches(client, settings.region), await known(client, settings.region)
    await said.say(ids[1:])
    assert await asking.watched(ids) == set(ids[1:])
    assert await (await known(client, "elsewhere"))[0].watched(ids) == set()
    for response_id in (ids[1], ids[-1]):
        assert 0 < await client.ttl(redis_keys.watched(settings.region, response_id)) <= LEASE_S


async def test_a_memory_that_was_lost_is_not_believed_before_all_have_said_again(
    settings: Settings, client: Redis
) -> None:
    said, (asking, clock) = Watches(client, settings.region), await known(client, settings.region)
    await said.say([R])
    with redis.Redis.from_url(settings.redis.url) as server:
        server.delete(redis_keys.watched(settings.region, R), redis_keys.watches_epoch(settings.region))
    with pytest.raises(WatchesUnknown):
        await asking.watched([R])
    clock.now_s += LEASE_S - 0.1
    with pytest.raises(WatchesUnknown):
        await asking.watched([R])
    await said.say([R])
    clock.now_s += 0.1
    assert await asking.watched([R]) == {R}


async def test_a_gateway_says_what_is_watched_there_at_once_and_again(
    settings: Settings, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SAY_NEW_S", 0.01)
    monkeypatch.setattr(watches, "SAY_AGAIN_S", 0.05)
    watched, said = hub(), Watches(client, settings.region)
    following = Following(watched)
    following.want(0, 0)
    following.told(following.asked(), {0: Committed(0)}, 0)
    watched.apply_release(release(R, ACME, 1, ["a"]), 0, 0)
    saying = asyncio.ensure_future(said.tend(watched))
    viewer = viewer_of(watched, 1)
    key = redis_keys.watched(settings.region, R)

    with redis.Redis.from_url(settings.redis.url) as server:
        await until(lambda: server.exists(key), "it is said at once")
        server.delete(key)
        await until(lambda: server.exists(key), "and again")
        watched.detach(viewer, 0)
        await asyncio.sleep(0.2)
        server.delete(key)
        await asyncio.sleep(0.2)
        assert not server.exists(key)
    saying.cancel()
    await asyncio.wait((saying,))


async def test_while_redis_is_away_it_goes_on_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "SAY_NEW_S", 0.01)
    monkeypatch.setattr(watches, "SAY_AGAIN_S", 0.01)
    client = connect_history(RedisSettings(url="redis://127.0.0.1:1/0"))
    away = Watches(client, "local")
    with pytest.raises(WatchesUnknown):
        await away.watched(["r"])
    tried = 0

    async def known_for_s(_: Watches) -> float:
        nonlocal tried
        tried += 1
        raise WatchesUnknown("away")

    monkeypatch.setattr(Watches, "known_for_s", known_for_s)
    saying = asyncio.ensure_future(away.tend(hub()))
    await until(lambda: tried > 2, "it was tried again")
    assert not saying.done()
    saying.cancel()
    await asyncio.wait((saying,))
    await client.aclose()


@pytest.mark.parametrize("why", ["watched elsewhere", "nobody knows", "a viewer came", "not its owner any more"])
async def test_what_may_have_a_viewer_is_not_ended_and_comes_up_again(why: str) -> None:
    watched = open_with(["a"], disconnect_grace_ms=500)
    watched.detach(viewer_of(watched), 0)
    [stream] = watched.sweep(500, OWNED).cancel
    asked = mock.Mock(spec=Watches)
    asked.watched = mock.AsyncMock(return_value={R} if why == "watched elsewhere" else set())
    if why == "nobody knows":
        asked.watched.side_effect = WatchesUnknown("away")
    if why == "a viewer came":
        viewer_of(watched)
    cancels, owned = mock.Mock(), [] if why == "not its owner any more" else OWNED
    await Unwatched(watched, cancels, asked, lambda: owned).end([stream])
    cancels.write_soon.assert_not_called()
    assert stream.on_disconnect == "cancel"
    if why == "a viewer came":
        assert stream.unwatched_since_ms is None
        return
    stream.unwatched_since_ms = 1_000  # not the wall clock's
    assert watched.sweep(1_999, OWNED).cancel == []
    assert watched.sweep(2_000, OWNED).cancel == [stream]
    asked.watched = mock.AsyncMock(return_value=set())
    await Unwatched(watched, cancels, asked, lambda: OWNED).end([stream])
    cancels.write_soon.assert_called_once_with(stream)
