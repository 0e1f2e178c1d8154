"""Prices are changed by the operator's word alone, and what was accepted before keeps its price."""

from collections.abc import AsyncIterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.price_changes import PriceRefused, plan
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.server import create_app, price_desk
from billing_jobs.store import ClickHouseStore, Database
from schemas.base import Scope
from streams.clocks import now_ms
from streams.keyring import Keyring
from tests.unit.billing_jobs.events import usage_event
from tests.unit.billing_jobs.test_store import batch_of

SECRET = "s" * 40
TIMES = ("accepted_at_ms", "first_token_at_ms", "ended_at_ms")
OLD = PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_000)
DEARER = PriceRow("tiny", "USD", 0, 100_000, 20_000, 800_000, 400_000)


def test_a_change_begins_when_it_is_asked_to_and_a_new_model_is_charged_from_the_beginning() -> None:
    new = PriceRow("new", "EUR", 0, 1, 1, 1, 1)
    planned = plan([DEARER, new], [OLD], version=4, valid_from_ms=500, now_ms=500)
    assert planned.version == 4
    assert [(each.before, each.after.price_id) for each in planned.changes] == [(OLD, "tiny@500"), (None, "new@0")]


def test_what_is_in_force_is_no_change() -> None:
    assert plan([OLD], [OLD], version=0, valid_from_ms=500, now_ms=500).changes == ()


@pytest.mark.parametrize(
    ("valid_from_ms", "why"),
    [
        (499, "cannot begin in the past"),
        (900, "tiny@1000 begins at that time or after it"),
        (1_000, "tiny@1000 begins"),
    ],
)
def test_no_change_begins_in_the_past_or_before_one_that_was_made(valid_from_ms: int, why: str) -> None:
    later = DEARER.starting_at(1_000)
    other = PriceRow("tiny", "USD", 0, 7, 7, 7, 7)
    with pytest.raises(PriceRefused, match=why):
        plan([other], [OLD, later], version=1, valid_from_ms=valid_from_ms, now_ms=500)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 50), st.sampled_from(["a", "b"]), st.integers(1, 3)), max_size=30
    )
)
def test_whatever_is_changed_what_was_accepted_keeps_its_price(asked: list[tuple[int, int, str, int]]) -> None:
    """`asked`: so much later, for so far ahead, of which model, at which price."""
    known: list[PriceRow] = []
    now, charged = 0, dict[tuple[str, int], PriceRow]()
    for later, ahead, model, price in asked:
        now += later
        row = PriceRow(model, "USD", 0, price, price, price, price)
        try:
            planned = plan([row], known, version=0, valid_from_ms=now + ahead, now_ms=now)
        except PriceRefused:
            continue
        known += [change.after for change in planned.changes]
        book = PriceBook(known)
        in_force = book.at(model, now + ahead)
        assert in_force is not None
        assert in_force.same_terms(row)
        for (name, accepted), before in charged.items():
            assert book.at(name, accepted) == before
        charged |= {(model, moment): found for moment in range(now) if (found := book.at(model, moment)) is not None}


@pytest.fixture
async def billing(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    unused: Any = None
    with closing(price_desk(lambda: ClickHouseStore(database.connection()), 60)) as desk:
        app = create_app(
            keyring=Keyring((SECRET.encode(),)), usage_reader=unused, sql=unused, price_desk=desk, progress=unused
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://billing", headers=headers) as client:
            yield client


def asked(output: str, **more: object) -> dict[str, object]:
    return {"prices": [{"model": "tiny", "price": {"output": output}}], **more}


async def test_a_plan_says_what_the_last_month_would_have_cost_and_applying_it_makes_it_so(
    database: Database, billing: httpx.AsyncClient
) -> None:
    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([OLD])
        moment = now_ms() - 60_000
        events = [
            usage_event(
                number, accepted_at_ms=moment, first_token_at_ms=moment, ended_at_ms=moment, scope=Scope(tenant_id=name)
            )
            for number, name in enumerate(("acme", "globex"))
        ]
        batch = batch_of([event.encode() for event in events], book=PriceBook([OLD]))
        batch.unusable.clear()
        store.insert(batch, again=False)
        planned = (await billing.post("/internal/prices/plan", json=asked("0.80"))).json()
        [change] = planned["changes"]
        assert change["before"]["per_million_tokens"]["output"] == "0.4"
        assert change["after"]["per_million_tokens"]["output"] == "0.8"
        before, after = int(change["cost_before_pico"]), int(change["cost_after_pico"])
        assert after - before == 400_000 * sum(row.event.output_tokens for row in batch.usage)
        assert store.prices() == [OLD], "a plan changes nothing"
        named = {"version": planned["version"], "actor": "kim", "reason": "dearer chips"}
        done = (await billing.post("/internal/prices/apply", json=asked("0.80", **named))).json()
        assert done["version"] == 1
        assert [row.output_pico for row in store.prices()] == [400_000, 800_000]
        again = (await billing.post("/internal/prices/plan", json=asked("0.80"))).json()
        assert (again["version"], again["changes"]) == (1, [])


async def test_of_two_changes_at_once_the_later_one_is_refused(database: Database, billing: httpx.AsyncClient) -> None:
    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([OLD])
        named = {"version": 0, "actor": "kim", "reason": "dearer chips"}
        assert (await billing.post("/internal/prices/apply", json=asked("0.80", **named))).status_code == 200
        refused = await billing.post("/internal/prices/apply", json=asked("0.90", **named))
        assert refused.status_code == 400
        assert "version 1" in refused.json()["error"]["message"]
        assert len(store.prices()) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (asked("0.1234567"), "models.tiny.price.output: 0.1234567 has more than six decimals"),
        (asked("-1"), "greater than or equal to 0"),
        (asked("0.8", valid_from_ms=1), "cannot begin in the past"),
        ({"prices": []}, "at least 1"),
        ({"prices": 2 * [{"model": "tiny", "price": {}}]}, "named twice"),
        ({**asked("0.8"), "when": "now"}, "when"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    database: Database, billing: httpx.AsyncClient, body: dict[str, object], said: str
) -> None:
    answer = await billing.post("/internal/prices/plan", json=body)
    assert answer.status_code == 400
    assert said in answer.text


async def test_who_changed_what_and_why_is_kept(database: Database, billing: httpx.AsyncClient) -> None:
    named = {"version": 0, "actor": "kim", "reason": "dearer chips"}
    assert (await billing.post("/internal/prices/apply", json=asked("0.80", **named))).status_code == 200
    with database.connection().client() as client:
        rows = client.query("SELECT model, version, actor, reason FROM price_intervals").result_rows
    assert rows == [("tiny", 1, "kim", "dearer chips")]
    known = (await billing.get("/internal/prices")).json()
    assert known["version"] == 1
    assert Decimal(known["prices"][0]["per_million_tokens"]["output"]) == Decimal("0.8")
