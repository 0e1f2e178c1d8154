"""Prices are changed by the operator's word alone, and what was accepted before keeps its price."""

from collections.abc import AsyncIterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from billing_jobs import price_tables
from billing_jobs.__main__ import append_first_prices
from billing_jobs.cut import Batch, cut_of, parse_batch
from billing_jobs.metrics import BillingMetrics
from billing_jobs.native_rows import insert_rows
from billing_jobs.price_changes import Comparison, PriceRefused, compare, plan
from billing_jobs.price_desk import PriceDesk, PricesApplied, PricesAsked
from billing_jobs.price_tables import MadeChange
from billing_jobs.price_topic import LostPrices, PriceSource, PriceTeller
from billing_jobs.pricing import PRICES_SETTLE_MS, PriceBook, PriceRow, PriceScope, TokenCounts, withdrawal
from billing_jobs.rows import TableRows
from billing_jobs.server import create_app, price_desk
from billing_jobs.store import ClickHouseStore, Database
from schemas.base import Scope
from schemas.usage import UsageEvent
from streams.clocks import now_ms
from streams.keyring import Keyring
from streams.log.memory import MemoryLog
from streams.settings import Settings
from tests.unit.billing_jobs.events import usage_event
from tests.unit.billing_jobs.test_store import log_record

SECRET = "s" * 40
TIMES = ("accepted_at_ms", "first_token_at_ms", "ended_at_ms")
OLD = PriceRow("tiny", "USD", 0, 100_000, 20_000, 400_000, 400_000)
DEARER = PriceRow("tiny", "USD", 0, 100_000, 20_000, 800_000, 400_000)
ACMES = PriceRow("tiny", "USD", 0, 50_000, 10_000, 200_000, 200_000, tenant_id="acme")
AT_MS = 500 + PRICES_SETTLE_MS


def test_a_change_begins_when_it_is_asked_to_and_a_new_model_is_charged_from_the_beginning() -> None:
    new = PriceRow("new", "EUR", 0, 1, 1, 1, 1)
    planned = plan([DEARER, new], [OLD], version=4, valid_from_ms=AT_MS, now_ms=500)
    assert planned.version == 4
    assert [(each.before, each.after.price_id) for each in planned.changes] == [(OLD, f"tiny@{AT_MS}"), (None, "new@0")]


def test_what_is_in_force_is_no_change() -> None:
    assert plan([OLD], [OLD], version=0, valid_from_ms=AT_MS, now_ms=500).changes == ()


@pytest.mark.parametrize(
    ("valid_from_ms", "why"),
    [
        (499, "cannot begin in the past"),
        (AT_MS - 1, "cannot begin within 60 s"),
        (99_000, "tiny@100000 begins at that time or after it"),
        (100_000, "tiny@100000 begins"),
    ],
)
def test_no_change_begins_in_the_past_or_before_one_that_was_made(valid_from_ms: int, why: str) -> None:
    later = DEARER.starting_at(100_000)
    other = PriceRow("tiny", "USD", 0, 7, 7, 7, 7)
    with pytest.raises(PriceRefused, match=why):
        plan([other], [OLD, later], version=1, valid_from_ms=valid_from_ms, now_ms=500)


ACMES_LATER = replace(ACMES, output_pico=7).starting_at(AT_MS + 3_000)
ACMES_END = withdrawal(ACMES.scope, AT_MS + 5_000)


@pytest.mark.parametrize(
    ("wanted", "known", "until", "said"),
    [
        (OLD, [DEARER.starting_at(AT_MS + 1)], None, f"tiny: tiny@{AT_MS + 1} begins at that time or after it"),
        (OLD, [DEARER.starting_at(AT_MS + 1), OLD.starting_at(AT_MS + 2)], None, f"tiny: tiny@{AT_MS + 1} begins"),
        (ACMES, [ACMES, ACMES_LATER], None, f"tiny@{AT_MS + 3_000}/tenant_id=acme begins"),
        (ACMES, [ACMES, ACMES_LATER], AT_MS + 5_000, f"tiny@{AT_MS + 3_000}/tenant_id=acme begins"),
        (ACMES, [ACMES, ACMES_END], None, f"tiny@{AT_MS + 5_000}/tenant_id=acme begins"),
        (ACMES, [ACMES, ACMES_END], AT_MS + 6_000, f"tiny@{AT_MS + 5_000}/tenant_id=acme begins"),
        (withdrawal(ACMES.scope, 0), [ACMES_LATER], None, f"tiny@{AT_MS + 3_000}/tenant_id=acme begins"),
    ],
)
def test_what_holds_by_now_and_would_not_last_is_refused_as_what_is_to_come_cannot_be_called_off(
    wanted: PriceRow, known: list[PriceRow], until: int | None, said: str
) -> None:
    """It was told to be in force, and the other one began all the same."""
    with pytest.raises(PriceRefused, match=f"{said}.*cannot be called off"):
        plan([wanted], [OLD, *known], 1, AT_MS, 500, until)


def test_what_is_to_come_as_it_is_asked_is_no_change() -> None:
    assert plan([DEARER], [OLD, DEARER.starting_at(AT_MS)], 1, AT_MS, 500).changes == ()
    assert plan([ACMES], [OLD, ACMES, ACMES_END], 1, AT_MS, 500, AT_MS + 5_000).changes == ()


TENANTS = st.sampled_from(["", "acme", "globex"])
LANES = st.sampled_from(["", "batch"])


@given(
    st.lists(
        st.tuples(
            st.integers(1, 50), st.integers(0, 50), st.sampled_from(["a", "b"]), TENANTS, LANES, st.integers(0, 3),
            st.sampled_from([None, 10, 40]),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_whatever_is_changed_what_was_accepted_keeps_its_price(
    asked: list[tuple[int, int, str, str, str, int, int | None]],
) -> None:
    """`asked`: so much later, for so far ahead, of which model, for whom, at which price (0: withdrawn), until when."""
    known: list[PriceRow] = []
    now, charged = 0, dict[tuple[PriceScope, int], PriceRow]()
    for later, ahead, model, tenant, lane, price, until in asked:
        now += later
        begins = now + PRICES_SETTLE_MS + ahead
        scope = PriceScope(model, tenant, lane=lane)
        row = PriceRow(model, "USD", 0, price, price, price, price, *scope[1:]) if price else withdrawal(scope, 0)
        try:
            planned = plan([row], known, 0, begins, now, None if until is None else begins + until)
        except PriceRefused:
            continue
        known += planned.rows
        book = PriceBook(known)
        own = book.of(scope, begins)
        assert own.same_terms(row) if own else row.withdrawn
        lasts_until = 2**43 if until is None else begins + until
        begin = [each.valid_from_ms for each in known if each.scope == scope]
        assert not any(begins < each_ms < lasts_until for each_ms in begin), "what was asked lasts"
        assert until is None or row.withdrawn or book.of(scope, begins + until) == withdrawal(scope, begins + until)
        for (used, accepted), before in charged.items():
            assert book.at(used, accepted) == before
        users = [PriceScope(model, name, "chat", kind, "eu") for name in ("acme", "globex") for kind in ("batch", "x")]
        moments = range(0, now + PRICES_SETTLE_MS, PRICES_SETTLE_MS // 3)
        charged |= {
            (used, moment): found
            for used in users
            for moment in moments
            if (found := book.at(used, moment)) is not None
        }


def test_a_price_for_some_ends_where_it_is_said_to_and_says_what_they_had_before() -> None:
    planned = plan([ACMES], [OLD], 2, AT_MS, 500, AT_MS + 1_000)
    assert [(each.before, each.after.price_id) for each in planned.changes] == [
        (OLD, f"tiny@{AT_MS}/tenant_id=acme"), (ACMES, f"tiny@{AT_MS + 1_000}/tenant_id=acme"),
    ]  # fmt: skip
    assert [row.withdrawn for row in planned.rows] == [False, True]


def test_what_is_withdrawn_is_withdrawn_once() -> None:
    gone = withdrawal(ACMES.scope, 0)
    assert plan([gone], [OLD], 0, AT_MS, 500).changes == ()
    [change] = plan([gone], [OLD, ACMES], 0, AT_MS, 500).changes
    assert (change.before, change.after) == (ACMES, withdrawal(ACMES.scope, AT_MS))
    assert plan([gone], [OLD, ACMES, change.after], 0, AT_MS + 1, 501).changes == ()


@pytest.mark.parametrize(
    ("wanted", "until", "why"),
    [
        ([ACMES, ACMES], None, "named twice"),
        (
            [PriceRow("big", "USD", 0, 1, 1, 1, 1, lane="batch")],
            None,
            "big/lane=batch: no model 'big' is known",
        ),
        ([withdrawal(PriceScope("tiny"), 0)], None, "tiny: what holds for all has no end"),
        ([DEARER], AT_MS + 5, "tiny: what holds for all has no end"),
        ([ACMES], AT_MS, "cannot end before it begins"),
    ],
)
def test_what_would_leave_usage_without_a_price_or_with_two_is_refused(
    wanted: list[PriceRow], until: int | None, why: str
) -> None:
    with pytest.raises(PriceRefused, match=why):
        plan(wanted, [OLD], 0, AT_MS, 500, until)


def tokens(output: int) -> TokenCounts:
    return TokenCounts(0, 0, output, 0)


def test_what_was_used_is_compared_where_its_price_changes_and_once() -> None:
    """The general price rises, acme gets one of its own and loses that of its batches, globex keeps what it has."""
    lane = PriceRow("tiny", "EUR", 0, 7, 7, 7, 7, tenant_id="acme", lane="batch")
    globex = PriceRow("tiny", "USD", 0, 9, 9, 9, 9, tenant_id="globex")
    known = [OLD, lane, globex]
    planned = plan([DEARER, ACMES, withdrawal(lane.scope, 0)], known, 0, AT_MS, 500)
    used = {
        PriceScope("tiny", "acme", "chat.completions", "standard", "eu"): tokens(1),
        PriceScope("tiny", "acme", "chat.completions", "batch", "eu"): tokens(10),
        PriceScope("tiny", "globex", "chat.completions", "batch", "eu"): tokens(100),
        PriceScope("tiny", "initech", "embeddings", "batch", "eu"): tokens(1_000),
    }
    of_all, of_acme, of_lane = compare(planned, known, used)
    assert of_all == Comparison({"USD": 1_000 * 400_000}, {"USD": 1_000 * 800_000})
    assert of_acme == Comparison({"USD": 400_000, "EUR": 70}, {"USD": 200_000 + 10 * 200_000})
    assert of_lane == Comparison(), "its batches are told where their price comes from"
    [alone] = compare(plan([withdrawal(lane.scope, 0)], known, 0, AT_MS, 500), known, used)
    assert alone == Comparison({"EUR": 70}, {"USD": 10 * 400_000})


def nothing_lost(_store: ClickHouseStore) -> None:
    """The tables are complete."""


@pytest.fixture
async def billing(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    unused: Any = None
    with closing(price_desk(lambda: ClickHouseStore(database.connection()), lambda _rows: None, nothing_lost)) as desk:
        app = create_app(
            keyring=Keyring((SECRET.encode(),)), usage_reader=unused, sql=unused, price_desk=desk, progress=unused
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://billing", headers=headers) as client:
            yield client


def batch_of(events: Sequence[UsageEvent], moment_ms: int) -> Batch:
    """Logged then, and priced by the old price."""
    records = [replace(log_record(place, event.encode()), timestamp_ms=moment_ms) for place, event in enumerate(events)]
    batch = parse_batch(cut_of(records, moment_ms), records, PriceBook([OLD]))
    assert len(batch.usage) == len(events)
    return batch


def terms(output: str) -> dict[str, str]:
    return {"currency": "USD", "uncached_input": "0.10", "cached_input": "0.02", "output": output, "reasoning": "0.40"}


def asked(output: str, **more: object) -> dict[str, object]:
    return {"prices": [{"model": "tiny", "price": terms(output)}], **more}


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
        batch = batch_of(events, moment)
        store.insert(batch, again=False)
        planned = (await billing.post("/internal/prices/plan", json=asked("0.80"))).json()
        [change] = planned["changes"]
        assert change["before"]["per_million_tokens"]["output"] == "0.4"
        assert change["after"]["per_million_tokens"]["output"] == "0.8"
        before, after = (int(change[f"cost_{side}_pico"]["USD"]) for side in ("before", "after"))
        assert after - before == 400_000 * sum(row.event.output_tokens for row in batch.usage)
        assert store.prices() == [OLD], "a plan changes nothing"
        named = {"version": planned["version"], "actor": "kim", "reason": "dearer chips"}
        done = (await billing.post("/internal/prices/apply", json=asked("0.80", **named))).json()
        assert done["version"] == 1
        assert [row.output_pico for row in store.prices()] == [400_000, 800_000]
        assert store.prices()[1].valid_from_ms >= moment + 60_000 + PRICES_SETTLE_MS, "when every process knows it"
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


GPU_HOURS = [{"pool": "default", "gpu_hour": {"cost": "2.50"}}]


@pytest.mark.parametrize(
    ("slowly", "hastily"),
    [({"gpu_hours": GPU_HOURS}, asked("0.80")), (asked("0.80"), {"gpu_hours": GPU_HOURS}),
     (asked("0.90", gpu_hours=GPU_HOURS), asked("0.80"))],
)  # fmt: skip
def test_of_two_processes_that_apply_plans_of_one_version_one_is_refused_as_a_whole(
    database: Database, monkeypatch: pytest.MonkeyPatch, slowly: dict[str, object], hastily: dict[str, object]
) -> None:
    def applied(body: dict[str, object], desk: PriceDesk) -> dict[str, Any]:
        return desk.apply(PricesApplied.model_validate({**body, "version": 0, "actor": "kim", "reason": "chips"}))

    stores = [ClickHouseStore(database.connection()) for _ in range(2)]
    with closing(stores[0]), closing(stores[1]):
        stores[0].append_prices([OLD])
        hasty, slow = (PriceDesk(store, now_ms, lambda _rows: None, nothing_lost) for store in stores)
        change_prices = stores[1].change_prices

        def meanwhile(change: MadeChange) -> bool:
            assert applied(hastily, hasty)["version"] == 1
            return change_prices(change)

        monkeypatch.setattr(stores[1], "change_prices", meanwhile)
        with pytest.raises(PriceRefused, match="version 1 was made by another"):
            applied(slowly, slow)
        found = [row.output_pico for row in stores[0].prices()[1:]]
        assert (found, len(stores[0].gpu_prices())) == (([800_000], 0) if "prices" in hastily else ([], 1))


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("who", ["billing begins", "prices are read to charge", "the operator tries again"])
def test_a_change_of_models_and_gpus_that_is_killed_on_the_way_is_made_as_a_whole(
    database: Database, monkeypatch: pytest.MonkeyPatch, after: int, who: str
) -> None:
    """`after` so many of its inserts: 1 that decides, 2 of GPUs, 3 of prices."""
    body = asked("0.80", gpu_hours=GPU_HOURS, version=0, actor="kim", reason="chips")
    inserted: list[str] = []

    def dies(client: Any, rows: TableRows, settings: dict[str, Any]) -> None:
        if len(inserted) == after:
            raise _Killed
        inserted.append(rows.table)
        insert_rows(client, rows, settings)

    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([OLD])
        monkeypatch.setattr(price_tables, "insert_rows", dies)
        with pytest.raises(_Killed) if after < 3 else nullcontext():
            PriceDesk(store, now_ms, lambda _rows: None, nothing_lost).apply(PricesApplied.model_validate(body))
        assert inserted == ["price_changes", "gpu_prices", "prices"][:after]
        monkeypatch.undo()
    with closing(ClickHouseStore(database.connection())) as store:
        if who == "billing begins":
            append_first_prices(store, Settings(), BillingMetrics(CollectorRegistry()))
        elif who == "prices are read to charge":
            log = MemoryLog(now_ms)
            log.create_topic("prices", 1)
            lost = LostPrices(lambda: log.consumer(None, "lost"), "prices")
            PriceSource(store, lost, PriceTeller(log.producer("billing"), "prices")).load()
        else:
            desk = PriceDesk(store, now_ms, lambda _rows: None, nothing_lost)
            planned = desk.plan(PricesAsked.model_validate(asked("0.80", gpu_hours=GPU_HOURS)))
            assert (planned["version"], planned["changes"], planned["gpu_hours"]) == (1, [], [])
        assert [row.output_pico for row in store.prices() if row.model == "tiny"] == [400_000, 800_000]
        assert [row.gpu_hour_pico for row in store.gpu_prices()] == [25 * 10**11]
    with database.connection().client() as client:
        counts = "(SELECT count() FROM prices WHERE version = 1), (SELECT count() FROM gpu_prices)"
        assert client.query(f"SELECT {counts}").first_row == (1, 1), "once"


def test_a_change_whose_rows_were_dropped_with_its_token_kept_is_appended_again(database: Database) -> None:
    """The engine's own crash window: it notes the token first."""
    change = MadeChange(1, "kim", "chips", (OLD,), ())
    with closing(ClickHouseStore(database.connection())) as store:
        assert store.change_prices(change)
        for tables in (["prices"], ["price_changes", "prices"]):
            with database.connection().client() as client:
                for table in tables:
                    client.command(f"ALTER TABLE {table} DELETE WHERE 1", settings={"mutations_sync": 1})
            assert store.change_prices(change)
            assert store.change_prices(change), "asked again"
            assert store.prices() == [OLD]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (asked("0.1234567"), "models.tiny.price.output: 0.1234567 has more than six decimals"),
        (asked("-1"), "greater than or equal to 0"),
        (asked("0.8", valid_from_ms=1), "cannot begin in the past"),
        ({"prices": []}, "at least 1 is needed"),
        ({"prices": 2 * [{"model": "tiny", "price": terms("1")}]}, "named twice"),
        ({"prices": [{"model": "tiny", "price": {"currency": "USD"}}]}, "prices.0: Value error, price.uncached_input"),
        ({"prices": [{"model": "tiny"}]}, "prices.0: Value error, price: is needed, or withdrawn"),
        ({"prices": [{"model": "tiny", "price": terms("1"), "withdrawn": True}]}, "and not both"),
        ({"prices": [{"model": "tiny", "lane": "slow", "price": terms("1")}]}, "prices.0.lane: "),
        ({"prices": [{"model": "tiny", "endpoint": "chat", "price": terms("1")}]}, "prices.0.endpoint: "),
        ({"prices": [{"model": "tiny", "tenant_id": "A@", "price": terms("1")}]}, "prices.0.tenant_id: "),
        ({"prices": [{"model": "tiny", "region": "eu/1", "price": terms("1")}]}, "prices.0.region: "),
        ({"prices": [{"model": "tiny", "version": "2", "price": terms("1")}]}, "prices.0.version: "),
        ({"gpu_hours": [{"pool": "gpu", "gpu_hour": {"cost": "-1"}}]}, "gpu_hours.0.gpu_hour.cost: "),
        ({"gpu_hours": [{"pool": "gpu", "gpu_hour": {"cost": "0.0000000000001"}}]}, "pools.gpu.gpu_hour.cost: "),
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


async def test_a_tenants_own_price_is_planned_over_its_usage_applied_and_listed(
    database: Database, billing: httpx.AsyncClient
) -> None:
    with closing(ClickHouseStore(database.connection())) as store:
        store.append_prices([OLD])
        moment = now_ms() - 60_000
        events = [
            usage_event(number, **dict.fromkeys(TIMES, moment), scope=Scope(tenant_id=name), lane=lane, model=model)
            for number, (name, lane, model) in enumerate(
                [("acme", "batch", "tiny"), ("acme", "standard", "tiny"), ("globex", "batch", "tiny"),
                 ("acme", "batch", "other")]
            )
        ]  # fmt: skip
        batch = batch_of(events, moment)
        store.insert(batch, again=False)
        own = {"model": "tiny", "tenant_id": "acme", "lane": "batch", "price": terms("0.20") | {"currency": "EUR"}}
        body: dict[str, object] = {
            "prices": [own], "gpu_hours": [{"pool": "default", "gpu_hour": {"cost": "2.50"}, "gpus": 4}],
        }  # fmt: skip
        planned = (await billing.post("/internal/prices/plan", json=body)).json()
        [change], [of_gpus] = planned["changes"], planned["gpu_hours"]
        assert (change["before"]["price_id"], change["after"]["tenant_id"]) == ("tiny@0", "acme")
        [before], [after] = change["cost_before_pico"].items(), change["cost_after_pico"].items()
        assert (before[0], after[0]) == ("USD", "EUR")
        assert int(before[1]) - int(after[1]) == 200_000 * batch.usage[0].event.output_tokens, "of one event alone"
        assert (of_gpus["before"], of_gpus["after"]["per_gpu_hour"], of_gpus["after"]["gpus"]) == (None, "2.5", 4)
        named = {"version": planned["version"], "actor": "kim", "reason": "a contract"}
        done = (await billing.post("/internal/prices/apply", json=body | named)).json()
        assert (done["version"], len(done["applied"]), len(done["gpu_hours"])) == (1, 1, 1)
        known = (await billing.get("/internal/prices")).json()
        assert [(row["tenant_id"], row["lane"], row["currency"]) for row in known["prices"]] == [
            ("", "", "USD"), ("acme", "batch", "EUR"),
        ]  # fmt: skip
        assert [(row["pool"], row["per_gpu_hour"]) for row in known["gpu_hours"]] == [("default", "2.5")]
        later = (await billing.post("/internal/prices/plan", json=body)).json()
        assert (later["changes"], later["gpu_hours"]) == ([], [])
