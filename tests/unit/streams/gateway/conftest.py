"""Fixtures: settings with a region of their own, and a served gateway."""

from collections.abc import AsyncIterator

import pytest

from streams.settings import Settings
from tests.unit.streams.gateway.gateway_stack import Stack, gateway_settings, memory_log, serving

_regions = iter(f"t{number}" for number in range(10_000))


@pytest.fixture
def settings(redis_url: str) -> Settings:
    """Each with a region, so with Redis keys, of its own."""
    return gateway_settings(redis_url, next(_regions))


@pytest.fixture
async def stack(settings: Settings) -> AsyncIterator[Stack]:
    async with serving(settings, memory_log(settings)) as served:
        yield served
