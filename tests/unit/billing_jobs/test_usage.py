"""Usage and cost as gateways and the operator's command ask for them, over a real embedded ClickHouse."""

import csv
from collections import Counter
from contextlib import closing
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from billing_jobs.metrics import BillingMetrics
from billing_jobs.queries import Reader, usage_settings
from billing_jobs.rollups.hours import SPAN_MS
from billing_jobs.rollups.roller import LOOK_PERIOD_S, Roller
from billing_jobs.rollups.tables import ROLLER_SETTINGS
from billing_jobs.store import ClickHouseStore, Database
from schemas.base import Scope
from schemas.usage_query import InvalidQuery, UsageQuery
from tests.unit.billing_jobs.events import NOON_MS, usage_event
from tests.unit.billing_jobs.internal_http import BOOK, BOOK_ROWS, DAY_S, HOUR_S, LINE_PICO, NOON_S, Client
from tests.unit.billing_jobs.test_store import batch_of


async def test_usage_stands_in_the_hour_in_which_it_was_accepted(client: Client, store: ClickHouseStore) -> None:
    hour_ms = HOUR_S * 1_000
    at = [NOON_MS, NOON_MS + hour_ms - 1, NOON_MS + 2 * hour_ms, NOON_MS - 1, NOON_MS + 3 * hour_ms]
    events = [usage_event(number, accepted_at_ms=ms, ended_at_ms=ms) for number, ms in enumerate(at)]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    answer = (await client.usage()).json()
    assert [bucket["start_time"] for bucket in answer["data"]] == [NOON_S, NOON_S + HOUR_S, NOON_S + 2 * HOUR_S]
    assert [bucket["end_time"] for bucket in answer["data"]] == [NOON_S + (n + 1) * HOUR_S for n in range(3)]
    first, second, third = (bucket["results"] for bucket in answer["data"])
    assert second == []
    assert [result["requests"] for result in (*first, *third)] == [2, 1]
    assert first == [
        {
            "requests": 2,
            "uncached_input_tokens": 20,
            "cached_input_tokens": 8,
            "output_tokens": 60,
            "reasoning_tokens": 4,
            "released_tokens": 60,
            "suspense_events": 0,
            "cost_pico": str(2 * LINE_PICO),
        }
    ]
    assert (answer["finalized_through"], answer["lag_records"]) == (NOON_MS - 5, 3)


async def test_days_begin_at_midnight_utc_and_the_interval_cuts_the_first_and_last(client: Client) -> None:
    answer = await client.usage(start_time=NOON_S, end_time=NOON_S + DAY_S, bucket_width="1d")
    midnight = NOON_S + 12 * HOUR_S
    assert [(b["start_time"], b["end_time"]) for b in answer.json()["data"]] == [
        (NOON_S, midnight),
        (midnight, NOON_S + DAY_S),
    ]


async def test_a_tenant_sees_its_own_usage_alone(client: Client, store: ClickHouseStore) -> None:
    mine, theirs = usage_event(1), usage_event(2, scope=Scope(tenant_id="globex"))
    store.insert(batch_of([mine.encode(), theirs.encode()], book=BOOK), again=False)
    for tenant, requests in (("acme", 1), ("globex", 1), ("acme' OR '1'='1", 0)):
        data = (await client.usage(tenant_id=tenant)).json()["data"]
        assert sum(result["requests"] for bucket in data for result in bucket["results"]) == requests


async def test_groups_currencies_and_what_awaits_a_price_are_kept_apart(client: Client, store: ClickHouseStore) -> None:
    events = [usage_event(1), usage_event(2, model="euro"), usage_event(3, model="unpriced")]
    second_choice = usage_event(
        4, response_id=events[0].response_id, usage_id=f"{events[0].response_id}/1", choice=1, uncached_input_tokens=0
    )
    store.insert(batch_of([event.encode() for event in (*events, second_choice)], book=BOOK), again=False)
    data = (await client.usage(group_by=["model", "project_id", "currency"])).json()["data"]
    results = {result["model"]: result for result in data[0]["results"]}
    assert {name: result["requests"] for name, result in results.items()} == {"tiny": 1, "euro": 1, "unpriced": 1}
    assert {result["project_id"] for result in results.values()} == {"chat"}
    assert (results["euro"]["currency"], results["euro"]["cost_pico"]) == ("EUR", "46")
    assert (results["unpriced"]["currency"], results["unpriced"]["suspense_events"]) == ("", 1)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tenant_id": ""}, "tenant_id"),
        ({"tenant_id": "x" * 201}, "tenant_id"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": -1}, "start_time"),
        ({"end_time": 10**30}, "end_time"),
        ({"end_time": NOON_S}, "end_time"),
        ({"bucket_width": "2h"}, "bucket_width"),
        ({"limit": 0}, "limit"),
        ({"limit": 31 * 24 + 1}, "limit"),
        ({"group_by": ["model", "prompt"]}, "group_by.1"),
        ({"group_by": ["model", "model"]}, "group_by"),
        ({"group_by": ["model) FROM usage_events --"]}, "group_by.0"),
        ({"models": ["x" * 201]}, "models.0"),
        ({"models": ["x"] * 101}, "models"),
        ({"batch": "sometimes"}, "batch"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_field_is_named(client: Client, change: dict[str, Any], param: str) -> None:
    answer = await client.usage(**change)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param in answer.json()["error"]["message"]


async def test_more_groups_in_a_bucket_than_may_be_shown_are_refused(client: Client, store: ClickHouseStore) -> None:
    events = [usage_event(n, scope=Scope(tenant_id="acme", key_id=f"key-{n}")) for n in range(101)]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    answer = await client.usage(group_by=["key_id"])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "group_by")


async def test_a_page_ends_before_a_bucket_of_which_not_all_may_be_shown(
    client: Client, store: ClickHouseStore
) -> None:
    events = [
        usage_event(n, scope=Scope(tenant_id="acme", key_id=f"key-{n}"), accepted_at_ms=NOON_MS + n % 2 * 3_600_000)
        for n in range(120)
    ]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    first = (await client.usage(group_by=["key_id"])).json()
    second = (await client.usage(group_by=["key_id"], start_time=first["next_start"])).json()
    assert [len(bucket["results"]) for bucket in (*first["data"], *second["data"])] == [60, 60, 0]
    assert (first["next_start"], second["next_start"]) == (NOON_S + HOUR_S, None)


async def test_a_question_counts_what_its_filters_name(client: Client, store: ClickHouseStore) -> None:
    scope = Scope(tenant_id="acme", project_id="chat", key_id="key-2", end_user="u2")
    events = [
        usage_event(1),
        usage_event(2, model="euro", lane="batch", scope=scope),
        usage_event(3, endpoint="embeddings"),
    ]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    for fields, requests in (
        ({}, 3), ({"models": ["euro", "none"]}, 1), ({"key_ids": ["key-1"]}, 2), ({"end_users": ["u2"]}, 1),
        ({"project_ids": ["chat"]}, 3), ({"project_ids": ["chat'"]}, 0), ({"endpoints": ["embeddings"]}, 1),
        ({"lanes": ["standard"]}, 2), ({"batch": True}, 1), ({"batch": False}, 2),
        ({"models": ["tiny"], "batch": True}, 0),
        ({"tenant_id": None}, 3),
    ):  # fmt: skip
        data = (await client.usage(**fields)).json()["data"]
        assert sum(result["requests"] for bucket in data for result in bucket["results"]) == requests, fields


async def test_sums_of_hours_and_the_events_themselves_tell_the_same(client: Client, database: Database) -> None:
    """Minutes are read from the events; whole hours from their sums once these are settled."""
    clock_ms = [1]
    events = [
        usage_event(
            n,
            accepted_at_ms=NOON_MS + n * 1_500_000,
            lane=["standard", "batch"][n % 2],
            model=["tiny", "euro"][n % 3 % 2],
        )
        for n in range(7)
    ]

    async def told(width: str, limit: int) -> Counter[tuple[object, ...]]:
        sums: Counter[tuple[object, ...]] = Counter()
        groups = ["model", "batch", "currency"]
        for bucket in (await client.usage(bucket_width=width, group_by=groups, limit=limit)).json()["data"]:
            for result in bucket["results"]:
                group = (bucket["start_time"] // HOUR_S, *(result[name] for name in groups))
                sums[*group, "requests"] += result["requests"]
                sums[*group, "cost"] += int(result["cost_pico"])
                sums[*group, "cached"] += result["cached_input_tokens"]
        return sums

    with (
        closing(ClickHouseStore(database.connection(), lambda: clock_ms[0])) as store,
        closing(
            Roller(database.connection(ROLLER_SETTINGS), BillingMetrics(CollectorRegistry()), lambda: 0.0)
        ) as roller,
    ):
        store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
        before = await told("1h", 3)
        clock_ms[0] += SPAN_MS
        store.rest()
        while roller.step() != LOOK_PERIOD_S:
            pass
        with database.connection().client() as engine:
            assert engine.query("SELECT count() FROM usage_hours WHERE kind = 'figures'").first_row[0] > 0
    assert before == await told("1h", 3) == await told("1m", 1_440)
    assert sum(before.values()) > 0


async def test_line_items_are_the_whole_cost(client: Client, store: ClickHouseStore) -> None:
    events = [
        usage_event(1),
        usage_event(2, model="euro"),
        usage_event(3, model="unpriced"),
        usage_event(4, billable=False),
    ]
    store.append_prices(BOOK_ROWS)
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    [bucket] = (await client.usage(group_by=["line_item", "currency"], end_time=NOON_S + HOUR_S)).json()["data"]
    assert [(each["line_item"], each["quantity"], each["cost_pico"]) for each in bucket["results"]] == [
        ("euro, cached input", 4, "4"), ("euro, input", 10, "10"), ("euro, output", 30, "30"),
        ("euro, reasoning", 2, "2"),
        ("tiny, cached input", 4, "80000"), ("tiny, input", 10, "1000000"), ("tiny, output", 30, "12000000"),
        ("tiny, reasoning", 2, "800000"),
    ]  # fmt: skip


async def test_what_its_price_does_not_explain_is_an_item_too(client: Client, store: ClickHouseStore) -> None:
    """The price that an event names is not there: its cost is told all the same."""
    store.insert(batch_of([usage_event(1).encode()], book=BOOK), again=False)
    [bucket] = (await client.usage(group_by=["line_item", "currency"], end_time=NOON_S + HOUR_S)).json()["data"]
    assert sum(int(each["cost_pico"]) for each in bucket["results"]) == LINE_PICO
    assert ("tiny, other", str(LINE_PICO)) in [(each["line_item"], each["cost_pico"]) for each in bucket["results"]]


async def test_a_bucket_is_an_estimate_while_it_may_grow(client: Client, store: ClickHouseStore) -> None:
    old_ms = NOON_MS - 3 * DAY_S * 1_000
    unpriced = usage_event(1, model="unpriced", accepted_at_ms=old_ms - DAY_S * 1_000, ended_at_ms=old_ms)
    store.insert(batch_of([unpriced.encode()], book=BOOK), again=False)
    data = (await client.usage(bucket_width="1d", start_time=NOON_S - 4 * DAY_S, end_time=NOON_S + 1)).json()["data"]
    assert [bucket["estimate"] for bucket in data] == [True, False, False, True, True], (
        "what waits for a price, two that are over, and the days in which something may still run"
    )


async def test_a_file_holds_each_bucket_and_group_exactly(
    client: Client, store: ClickHouseStore, database: Database, tmp_path: Path
) -> None:
    events = [usage_event(1), usage_event(2), usage_event(3, model="euro", accepted_at_ms=NOON_MS + HOUR_S * 1_000)]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    body = {"tenant_id": "acme", "start_time": NOON_S, "end_time": NOON_S + DAY_S, "bucket_width": "1h",
            "group_by": ["model", "currency"]}  # fmt: skip

    async def exported(file_format: str) -> bytes:
        answer = await client.http.post("/internal/usage/export", params={"file_format": file_format}, json=body)
        assert answer.status_code == 200, answer.text
        return answer.content

    rows = list(csv.DictReader(StringIO((await exported("csv")).decode())))
    assert [(row["model"], row["requests"], row["cost_pico"], row["cost"]) for row in rows] == [
        ("tiny", "2", str(2 * LINE_PICO), "0.00002776"), ("euro", "1", "46", "0.000000000046"),
    ]  # fmt: skip
    assert rows[0]["bucket_start"] == "2025-11-21 12:00:00"
    (tmp_path / "usage.parquet").write_bytes(await exported("parquet"))
    with database.connection().client() as engine:
        columns = "toUnixTimestamp(bucket_start), model, requests, cost_pico, cost"
        found = engine.query(f"SELECT {columns} FROM file('{tmp_path}/usage.parquet')").result_rows
    assert found == [
        (NOON_S, "tiny", 2, Decimal(2 * LINE_PICO), Decimal("0.00002776")),
        (NOON_S + HOUR_S, "euro", 1, Decimal(46), Decimal("0.000000000046")),
    ]


async def test_a_file_of_all_times_is_refused(client: Client) -> None:
    body = {"tenant_id": "acme", "start_time": 0, "end_time": 2**33, "bucket_width": "1m", "group_by": ["end_user"]}
    answer = await client.http.post("/internal/usage/export", params={"file_format": "csv"}, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "end_time")


def test_a_question_about_usage_leaves_cores_and_memory_to_the_sink(database: Database) -> None:
    with closing(database.connection(usage_settings(100, 60))) as connection, connection.client() as engine:
        names = "('max_threads', 'max_memory_usage', 'readonly')"
        found = dict(engine.query(f"SELECT name, value FROM system.settings WHERE name IN {names}").result_rows)
    assert found == {"max_threads": "1", "max_memory_usage": str(512 * 1_048_576), "readonly": "1"}


def test_a_question_that_takes_more_memory_than_it_may_is_refused_by_name(
    database: Database, store: ClickHouseStore
) -> None:
    store.insert(batch_of([usage_event(1).encode()], book=BOOK), again=False)
    little = {"max_untracked_memory": 0, **usage_settings(100, 60), "max_memory_usage": 1_000}
    asked = UsageQuery.asked(tenant_id="acme", start_time=NOON_S, end_time=NOON_S + 60, group_by=("key_id",))
    with closing(Reader(database.connection(little), 100)) as reader:
        for look in (lambda: reader.usage(asked), lambda: reader.export(asked, "csv")):
            with pytest.raises(InvalidQuery, match="group by less"):
                look()


async def test_a_file_of_more_rows_than_may_be_shown_is_refused(client: Client, store: ClickHouseStore) -> None:
    events = [usage_event(n, scope=Scope(tenant_id="acme", key_id=f"key-{n}")) for n in range(101)]
    store.insert(batch_of([event.encode() for event in events], book=BOOK), again=False)
    body: dict[str, Any] = {"tenant_id": "acme", "start_time": NOON_S, "end_time": NOON_S + DAY_S}
    for groups, status in ((["key_id"], 400), ([], 200)):
        answer = await client.http.post(
            "/internal/usage/export", params={"file_format": "csv"}, json={**body, "group_by": groups}
        )
        assert answer.status_code == status
    assert (await client.usage()).status_code == 200, "the connection answers again"
