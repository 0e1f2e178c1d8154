"""Fixtures: settings with a region of their own, and a served gateway."""

from collections.abc import AsyncIterator

import anthropic
import pytest

from streams.gateway.stored.memory import MemoryStoredResponses
from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import Stack, gateway_settings, memory_log, serving
from tests.unit.streams.gateway.messages_clients import package

_regions = iter(f"t{number}" for number in range(10_000))


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
