from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url, retry=None) as client:
        yield client
