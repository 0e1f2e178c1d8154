"""Reads what Kafka holds and what was billed, of a stack that runs; it may have been asked to settle first."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

import httpx
import redis
from confluent_kafka import Consumer, Message, TopicPartition

from deploy.cli.app import CommandError
from deploy.cli.questions import ask_billing, query
from deploy.local.runner import Stack
from schemas.request import Lane
from streams import redis_keys
from tests.history.bills import BILLED, SUMMED, Prices
from tests.history.check import Verdict, check
from tests.history.held import SETTLED_AFTER_MS
from tests.history.log import Log, Logged
from tests.history.saw import Answer, Held, Job

TOPICS = ("requests", "lane", "generated", "responses", "usage", "results", "policies")
QUIET_S = 60.0
"""That nothing comes of what is there."""
PAGE_ROWS = 5_000
SETTLED_TIMEOUT_S = 300.0
"""For all that was asked to end and to be billed."""
RELEASED_TIMEOUT_S = 1.5 * SETTLED_AFTER_MS / 1_000
"""For what quota holds of what has been billed."""
COLUMNS = {
    "usage_id": "usage_id", **{name: name for name in BILLED}, "tenant_id": "tenant_id",
    "accepted_at_ms": "toUnixTimestamp64Milli(accepted_at)", "charge_state": "charge_state", "cost_pico": "cost_pico",
    "log_partition": "log_partition", "log_offset": "log_offset",
}  # fmt: skip
"""Of the table of usage, by the names that they are judged by."""
NUMBERS = ("accepted_at_ms", "cost_pico", "log_offset")
"""Of them those that are told as text, for want of a number of so many digits in JSON."""
HOUR_FIGURES = ("requests", *SUMMED, "cost_pico")
PLACE = ("usage_id", "log_partition", "log_offset")
"""What tells rows apart that the table's engine takes for different ones."""


def read_log(stack: Stack, tenants: Sequence[str] = ("demo",), only: Sequence[str] = TOPICS) -> Iterator[Logged]:
    """Every record of these topics from the first to the last one now, each partition in its order.

    Raises TimeoutError.
    """
    topics = stack.plan.settings.topics
    names = {
        topics.requests.name: "requests",
        topics.generated.name: "generated",
        topics.responses.name: "responses",
        topics.usage.name: "usage",
        topics.policies.name: "policies",
        **{topics.lane(pool, lane).name: "lane" for pool in topics.pools for lane in Lane},
        **{topics.results(tenant).name: "results" for tenant in tenants},
    }
    consumer = Consumer({
        "bootstrap.servers": stack.plan.settings.kafka.bootstrap, "group.id": "history", "enable.auto.commit": False,
        "log_level": 0,
    })  # fmt: skip
    try:
        known = consumer.list_topics(timeout=30).topics
        places = [
            TopicPartition(name, partition)
            for name, topic in names.items() if topic in only
            for partition in known[name].partitions
        ]  # fmt: skip
        ends = {}
        for place in places:
            place.offset, end = consumer.get_watermark_offsets(place, timeout=30)
            if end > place.offset:
                ends[place.topic, place.partition] = end
        consumer.assign([place for place in places if (place.topic, place.partition) in ends])
        for message in _until(consumer, ends):
            yield _logged(names, message)
    finally:
        consumer.close()


def _until(consumer: Consumer, ends: dict[tuple[str, int], int]) -> Iterator[Message]:
    """Up to these ends."""
    quiet_since_s = time.monotonic()
    while ends:
        message = consumer.poll(1.0)
        if message is None:
            if time.monotonic() - quiet_since_s > QUIET_S:
                raise TimeoutError(f"not read to the end: {sorted(ends)[:5]}")
            continue
        quiet_since_s = time.monotonic()
        if (error := message.error()) is not None:
            raise RuntimeError(error.str())
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        end = ends.get((topic, partition), 0)
        if offset < end:
            yield message
        if offset >= end - 1:
            ends.pop((topic, partition), None)


def _logged(names: Mapping[str, str], message: Message) -> Logged:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return Logged(names[topic], partition, offset, message.timestamp()[1], json.loads(message.value() or b"{}"))


def read_bills(stack: Stack) -> Iterator[dict[str, Any]]:
    """What the table has of usage, each row that its engine takes for another one."""
    return bills_of(partial(query, stack.plan.settings), PAGE_ROWS)


def bills_of(ask: Callable[[str], Mapping[str, Any]], most: int) -> Iterator[dict[str, Any]]:
    """`ask`: what the operator's endpoint answers to a query, which gives `most` rows."""
    chosen = ", ".join(f"{column} AS {name}" for name, column in COLUMNS.items())

    def behind(place: tuple[Any, ...]) -> list[dict[str, Any]]:
        answer = ask(
            f"SELECT {chosen} FROM usage_events FINAL WHERE ({', '.join(PLACE)}) > {place!r}"
            f" ORDER BY {', '.join(PLACE)} LIMIT {most}"
        )
        rows = (dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"])
        return [row | {name: int(row[name]) for name in NUMBERS} for row in rows]

    return pages(behind, most)


def read_hours(stack: Stack) -> list[dict[str, Any]]:
    """What analysts are told of each hour of a tenant and a model."""
    return hours_of(partial(query, stack.plan.settings))


def hours_of(ask: Callable[[str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`ask` as in `bills_of`."""
    figures = ", ".join(f"sum({name}) AS {name}" for name in HOUR_FIGURES)
    answer = ask(
        f"SELECT tenant_id, model, toInt64(toUnixTimestamp(hour)) * 1000 AS hour_ms, {figures} FROM usage_by_hour"
        " GROUP BY tenant_id, model, hour_ms",
    )
    assert not answer["truncated"]
    rows = (dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"])
    return [row | {name: int(row[name]) for name in ("hour_ms", *HOUR_FIGURES)} for row in rows]


def read_drafts(stack: Stack) -> list[dict[str, Any]]:
    """What each tenant would be invoiced for each month that was used and is not closed, in each currency."""
    settings = stack.plan.settings
    unclosed = ask_billing(settings, "GET", "/internal/invoices")["open"]
    places = (f"/internal/invoices/{quote(each['tenant_id'], safe='')}/{each['month']}/draft" for each in unclosed)
    return [draft for place in places for draft in ask_billing(settings, "GET", place)["invoices"]]


def read_ledger(stack: Stack) -> list[dict[str, Any]]:
    """Of all tenants with a key."""
    places = (f"/internal/ledger/{quote(tenant, safe='')}" for tenant in stack.keys.api_keys)
    return [entry for place in places for entry in _entries(stack, place)]


def _entries(stack: Stack, place: str) -> list[dict[str, Any]]:
    """None of a tenant that has used nothing yet: billing does not know it."""
    try:
        entries: list[dict[str, Any]] = ask_billing(stack.plan.settings, "GET", place)["entries"]
    except CommandError as error:
        if "no usage of a tenant" in str(error):
            return []
        raise
    return entries


def pages(behind: Callable[[tuple[Any, ...]], list[dict[str, Any]]], most: int) -> Iterator[dict[str, Any]]:
    """All rows in the order of their places, where `behind` gives up to `most` of those behind one."""
    place: tuple[Any, ...] = ("", 0, 0)
    while True:
        rows = behind(place)
        yield from rows
        if len(rows) < most:
            return
        place = tuple(rows[-1][name] for name in PLACE)


def read_held(stack: Stack) -> list[Held]:
    """What quota holds now, for whoever has a key. Raises redis.RedisError."""
    at_ms = time.time_ns() // 1_000_000
    held = []
    with redis.Redis.from_url(stack.plan.settings.redis.url, decode_responses=True) as client:
        for tenant in stack.keys.api_keys:
            for kind in ("active", "jobs"):
                key = redis_keys.quota(stack.plan.settings.region, tenant, kind)
                held += [
                    Held(response_id=response_id, tenant=tenant, deadline_ms=int(deadline_ms), at_ms=at_ms)
                    for response_id, deadline_ms in client.zrange(key, 0, -1, withscores=True)
                ]
    return held


def prices_of(stack: Stack) -> Prices:
    """As the catalogue of its settings has them."""
    classes = ("uncached_input", "cached_input", "output", "reasoning")
    models = stack.plan.settings.models
    return {model.name: {name: str(getattr(model.price, name)) for name in ("currency", *classes)} for model in models}


def judged(
    stack: Stack, answers: Sequence[Answer] | None = None, jobs: Sequence[Job] = (), *,
    endings: Collection[str] | None = None,
) -> tuple[Log, Verdict]:  # fmt: skip
    """What a stack that runs has on its log, once whatever was asked is billed, and what is to be said of it. The
    arguments as in `check`.
    """
    until_settled(stack, answers or (), jobs, SETTLED_TIMEOUT_S)
    log = Log()
    for record in read_log(stack):
        log.take(record)
    bills, prices, held = read_bills(stack), prices_of(stack), read_held(stack)
    return log, check(answers, jobs, log, bills, endings=endings, prices=prices, hours=read_hours(stack), held=held)


def until_settled(stack: Stack, answers: Sequence[Answer], jobs: Sequence[Job], timeout_s: float) -> None:
    """Until whatever was asked has ended and stands in the table of usage, and quota has let go of it, or the time is
    over: then the history says what is missing.
    """
    expected = {answer.response_id for answer in answers if answer.response_id}
    custom_ids = {job.custom_id for job in jobs if not job.failed}
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        asked, billed, results = set(expected), set(), set()
        for record in read_log(stack, only=("requests", "lane", "usage", "results")):
            match record.topic, record.value.get("type"):
                case "requests" | "lane", _:
                    asked.add(record.value["response_id"])
                case "usage", "usage":
                    billed.add(record.value["usage_id"])
                case "results", _:
                    results.add(record.value["custom_id"])
        is_all = asked <= {each.rpartition("/")[0] for each in billed} and custom_ids <= results
        if is_all and _rows(stack) >= len(billed):
            break
        time.sleep(1)
    deadline_s = time.monotonic() + RELEASED_TIMEOUT_S
    while _may_hold(stack) and time.monotonic() < deadline_s:
        time.sleep(0.5)


def _may_hold(stack: Stack) -> bool:
    with suppress(redis.RedisError):
        return bool(read_held(stack))
    return True


def _rows(stack: Stack) -> int:
    with suppress(httpx.TransportError, CommandError):  # billing may be starting again
        return int(query(stack.plan.settings, "SELECT uniqExact(usage_id) AS n FROM usage_events")["rows"][0][0])
    return 0
