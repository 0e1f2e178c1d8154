"""`/v1/models` tells each tenant what it is charged, as the price list has it."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from streams.clocks import now_ms
from streams.gateway import prices
from streams.gateway.prices import KnownPrices
from streams.log.port import LogConsumer, LogError
from streams.price_list import told_of
from streams.pricing import PriceRow
from tests.unit.streams.gateway.gateway_stack import OTHER_KEY, Stack
from tests.unit.streams.gateway.http_clients import client

FOR_ALL = PriceRow("tiny", "USD", 0, 300_000, 30_000, 1_250_000, 1_500_000)
OWN = replace(FOR_ALL, currency="EUR", output_pico=900_000, tenant_id="acme", valid_from_ms=1)


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "READ_EVERY_MS", 0)


def tell(stack: Stack, *rows: PriceRow) -> None:
    for row in rows:
        stack.log.append(stack.settings.topics.prices.name, told_of(row).encode(), key=row.price_id)


async def told(stack: Stack, path: str = "/v1/models/tiny", **headers: str) -> tuple[str, str, str]:
    async with client(stack, **headers) as http:
        found = (await http.get(path)).json()["prices"]
    return found["currency"], found["per_1m_tokens"]["output"], found["per_1k_tokens"]["output"]


async def test_each_tenant_sees_the_price_in_force_for_it_and_the_others_the_one_for_all(stack: Stack) -> None:
    other = {"authorization": f"Bearer {OTHER_KEY}"}
    assert await told(stack) == ("USD", "0.40", "0.0004"), "the settings', before billing has told any"
    tell(stack, FOR_ALL)
    assert await told(stack) == ("USD", "1.25", "0.00125")
    tell(stack, OWN, replace(OWN, output_pico=1, valid_from_ms=2**42))
    tell(stack, replace(OWN, output_pico=2, lane="batch"), replace(OWN, output_pico=3, region="elsewhere"))
    assert await told(stack) == ("EUR", "0.9", "0.0009"), "as it holds now, here, whatever it is used for"
    assert await told(stack, "/api/models/small") == ("EUR", "0.9", "0.0009"), "of an alias too"
    assert await told(stack, **other) == ("USD", "1.25", "0.00125")
    tell(stack, replace(OWN, valid_from_ms=now_ms() - 1, withdrawn=True))
    assert await told(stack) == ("USD", "1.25", "0.00125")


class _Away:
    """A log that does not answer at first."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.asked = 0
        self.is_away = True

    def __call__(self) -> LogConsumer:
        self.asked += 1
        if self.is_away:
            raise LogError("no broker", retriable=True)
        return self.stack.log.consumer(None, "prices")


async def test_while_the_log_is_away_nothing_is_known_and_one_read_is_for_all_who_ask(stack: Stack) -> None:
    tell(stack, FOR_ALL)
    away = _Away(stack)
    known = KnownPrices(away, stack.settings.topics.prices.name)

    async def asked() -> list[Any]:
        return await asyncio.gather(*(known.book() for _ in range(5)))

    assert await asked() == [None] * 5
    assert away.asked == 1
    away.is_away = False
    assert all(await asked())
    await known.close()
