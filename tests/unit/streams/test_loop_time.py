"""A bound in time on a loop that is late, as asyncio has it and as uvloop does."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop

from streams.loop_time import SLICES, Within

BOUND_S, LATE_S = 0.4, 0.5


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        yield runner


def _be_late() -> None:
    time.sleep(LATE_S)


async def _told(times: int) -> bytes:
    """What another process says, so many times, while this loop does something else each time."""
    own, other = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=own)
    heard = b""
    with other:
        try:
            async with Within(BOUND_S):
                for _ in range(times):
                    other.sendall(b".")
                    asyncio.get_running_loop().call_soon(_be_late)
                    heard += await reader.read(1)
        finally:
            writer.close()
    return heard


def test_what_came_while_the_loop_was_late_is_taken(runner: asyncio.Runner) -> None:
    assert runner.run(_told(1)) == b"."


def test_what_takes_several_turns_is_given_them(runner: asyncio.Runner) -> None:
    assert runner.run(_told(SLICES // 2)) == b"." * (SLICES // 2)


def test_a_loop_that_is_late_for_ever_waits_no_longer_than_for_so_many_of_its_turns(runner: asyncio.Runner) -> None:
    turns = 0

    async def wait_in_vain() -> None:
        nonlocal turns
        async with Within(BOUND_S):
            while True:
                turns += 1
                time.sleep(1.2 * BOUND_S / SLICES)  # noqa: ASYNC251 - late in every turn
                await asyncio.sleep(0)

    with pytest.raises(TimeoutError):
        runner.run(wait_in_vain())
    assert turns <= 2 * SLICES + 2


def test_what_never_comes_is_told_when_the_time_is_up(runner: asyncio.Runner) -> None:
    async def wait_in_vain() -> None:
        async with Within(BOUND_S):
            await asyncio.get_running_loop().create_future()

    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        runner.run(wait_in_vain())
    assert time.monotonic() - began_s >= 0.9 * BOUND_S


def test_no_bound_is_none_and_an_end_in_time_leaves_no_timer(runner: asyncio.Runner) -> None:
    async def end_in_time() -> None:
        async with Within(None):
            await asyncio.sleep(0)
        async with Within(BOUND_S):
            await asyncio.sleep(0)
        await asyncio.sleep(1.5 * BOUND_S)

    runner.run(end_in_time())


def test_who_is_cancelled_is_cancelled_and_not_late(runner: asyncio.Runner) -> None:
    async def cancel() -> None:
        async def wait() -> None:
            async with Within(60):
                await asyncio.get_running_loop().create_future()

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    runner.run(cancel())
