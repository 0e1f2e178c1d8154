"""Fixtures: settings with a region of their own, and a served gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant

from streams.gateway import watches
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import Stack, gateway_settings, memory_log, serving
from tests.unit.streams.gateway.messages_clients import package

_regions = iter(f"t{number}" for number in range(10_000))


class Hurried:
    """asyncio for uvicorn's server, which looks ten times a second whether it is to stop, and waits as long again."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / 10)


@pytest.fixture(scope="session", autouse=True)
def routes_are_read_once() -> Iterator[None]:
    """FastAPI takes a tenth of a second for what the routes of a gateway take, and most tests here make one."""
    known: dict[object, Dependant] = {}

    def once(*, path: str, call: Callable[..., Any], **more: Any) -> Dependant:
        """A route's function is made anew for each gateway; what is read is written in it, and the same."""
        written = (call.__code__, *map(repr, (call.__annotations__, call.__defaults__, call.__kwdefaults__, more)))
        if (path, written) not in known:
            known[path, written] = get_dependant(path=path, call=call, **more)
        return replace(known[path, written], call=call)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fastapi.routing.get_dependant", once)
        yield


@pytest.fixture(autouse=True)
def servers_stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests here serve a gateway of their own."""
    monkeypatch.setattr("uvicorn.server.asyncio", Hurried())


@pytest.fixture
def leases_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """For so long nothing is ended by a gateway that has just begun: it cannot know who watches elsewhere."""
    monkeypatch.setattr(watches, "LEASE_S", 1)


@pytest.fixture
def settings(redis_url: str) -> Settings:
    """Each with a region, so with Redis keys, of its own."""
    return gateway_settings(redis_url, next(_regions))


@pytest.fixture
def stored() -> MemoryStoredResponses:
    """What the served gateway keeps of responses and conversations."""
    return MemoryStoredResponses()


@pytest.fixture
async def stack(settings: Settings, stored: MemoryStoredResponses) -> AsyncIterator[Stack]:
    async with serving(settings, memory_log(settings), stored=stored) as served:
        yield served


@pytest.fixture
async def api(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's package, of the stack's tenant."""
    async with package(stack) as given:
        yield given
