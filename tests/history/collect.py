"""Reads what Kafka holds and what was billed, of a stack that runs; it may have been asked to settle first."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import httpx
from confluent_kafka import Consumer, Message, TopicPartition

from deploy.cli.questions import query
from deploy.local.runner import Stack
from schemas.request import Lane
from tests.history.check import BILLED
from tests.history.log import Logged
from tests.history.saw import Answer, Job

TOPICS = ("requests", "lane", "generated", "responses", "usage", "results")
QUIET_S = 60.0
"""That nothing comes of what is there."""
PAGE_ROWS = 5_000


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
    after = ""
    while True:
        answer = query(
            stack.plan.settings,
            f"SELECT usage_id, {', '.join(BILLED)} FROM usage_events FINAL WHERE usage_id >= '{after}'"
            f" ORDER BY usage_id LIMIT {PAGE_ROWS}",
        )
        rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
        yield from (row for row in rows if row["usage_id"] != after)
        if len(rows) < PAGE_ROWS:
            return
        after = rows[-1]["usage_id"]


def until_settled(stack: Stack, answers: Sequence[Answer], jobs: Sequence[Job], timeout_s: float) -> None:
    """Until whatever was asked has ended and stands in the table of usage, or the time is over: then the history says
    what is missing.
    """
    expected = {answer.response_id for answer in answers if answer.response_id}
    custom_ids = {job.custom_id for job in jobs}
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
            return
        time.sleep(1)


def _rows(stack: Stack) -> int:
    with suppress(httpx.TransportError):  # billing may be starting again
        return int(query(stack.plan.settings, "SELECT uniqExact(usage_id) AS n FROM usage_events")["rows"][0][0])
    return 0
