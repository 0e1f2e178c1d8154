"""The judge: reads what clients saw, what Kafka holds and what was billed. It shares no rule with what it judges."""

import json
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from confluent_kafka import Consumer, TopicPartition

from deploy.cli.questions import query
from deploy.local.runner import Stack
from tests.faults.traffic import Seen

SETTLE_TIMEOUT_S = 120.0


@dataclass
class LogView:
    """All records of a topic's partitions, as JSON."""

    terminals: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    usage: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    results: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def usage_of(self) -> dict[str, dict[str, Any]]:
        """By response, of which each has one choice."""
        return {event["response_id"]: event for event in self.usage_events.values()}

    @property
    def usage_events(self) -> dict[str, dict[str, Any]]:
        """By their ids, one for each choice."""
        events = (json.loads(value) for values in self.usage.values() for value in values)
        return {event["usage_id"]: event for event in events}


def read_topic(stack: Stack, topic: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Every record of the topic from the first to the last one now: raw value and parsed."""
    consumer = Consumer(
        {"bootstrap.servers": stack.plan.settings.kafka.bootstrap, "group.id": "judge", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60) for p in partitions}
        consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in ends.items()])
        open_partitions = {p for p, (low, high) in ends.items() if high > low}
        records = []
        deadline_s = time.monotonic() + 60
        while open_partitions:
            assert time.monotonic() < deadline_s, f"{topic} could not be read"
            message = consumer.poll(1.0)
            if message is None:
                continue
            assert message.error() is None, message.error()
            value = message.value()
            if value is not None:
                records.append((value, json.loads(value)))
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if offset >= ends[partition][1] - 1:
                open_partitions.discard(partition)
        return records
    finally:
        consumer.close()


def view(stack: Stack) -> LogView:
    topics = stack.plan.settings.topics
    seen = LogView()
    for value, record in read_topic(stack, topics.responses.name):
        if record["type"] == "terminal":
            seen.terminals[record["response_id"]].add(value.decode())
    for value, record in read_topic(stack, topics.usage.name):
        if record["type"] == "usage":
            seen.usage[record["usage_id"]].add(value)
    for value, record in read_topic(stack, topics.results("demo").name):
        seen.results[record["custom_id"]].add(value.decode())
    return seen


def _until_settled(stack: Stack, seen: Seen) -> LogView:
    """Also what a gateway has stored and told nobody of, since it was killed: nothing of it ends while one judges."""
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    stored = {record["response_id"] for _, record in read_topic(stack, stack.plan.settings.topics.requests.name)}
    while True:
        log = view(stack)
        missing = [r for r in {*seen.accepted, *stored} if r not in log.terminals]
        missing += [j for j in seen.jobs if j not in log.results]
        missing += set(log.terminals) ^ set(log.usage_of)
        if not missing:
            return log
        assert time.monotonic() < deadline_s, f"lost: {missing[:5]} and {max(0, len(missing) - 5)} more"
        time.sleep(1)


def judge(stack: Stack, seen: Seen) -> Counter[str]:
    """Fails unless every accepted response ended once and is billed once, as its client saw it. Counts endings."""
    log = _until_settled(stack, seen)
    for response_id, terminals in log.terminals.items():
        assert len(terminals) == 1, f"{response_id} has {len(terminals)} different terminals"
    for usage_id, events in log.usage.items():
        assert len(events) == 1, f"{usage_id} has {len(events)} different usage events"
    for custom_id, lines in log.results.items():
        assert len(lines) == 1, f"{custom_id} has {len(lines)} different results"
    usage = log.usage_of
    assert set(log.terminals) == set(usage), "every terminal has its usage event"
    billed_once(stack, usage)
    endings: Counter[str] = Counter()
    for answer in seen.answers:
        if not answer.response_id:
            continue
        assert not answer.gaps, f"{answer.response_id}: {answer.gaps}"
        [terminal] = [json.loads(value) for value in log.terminals[answer.response_id]]
        endings[terminal["code"]] += 1
        assert answer.terminal is not None, f"{answer.response_id}: {answer.error}"
        assert answer.terminal.code == terminal["code"]
        assert answer.sequence_number == terminal["sequence_number"] - 1, "the client saw every released token"
        billed = usage[answer.response_id]
        assert billed["ending"] == terminal["code"]
        assert billed["released_tokens"] == answer.sequence_number
        assert "the silver dragon" not in answer.text or billed["scope"]["tenant_id"] != "guarded"
        if terminal["code"] == "completed":
            assert billed["output_tokens"] == answer.sequence_number
    return endings


def billed_once(stack: Stack, usage: dict[str, dict[str, Any]]) -> None:
    """ClickHouse holds exactly these usage events, one row each."""
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        counted = 0
        with suppress(httpx.TransportError):  # billing may be starting again
            result = query(
                stack.plan.settings,
                "SELECT count() AS n, uniqExact(usage_id) AS ids, sum(output_tokens) AS tokens,"
                " sum(uncached_input_tokens + cached_input_tokens) AS inputs FROM usage_events FINAL",
            )
            counted, distinct, tokens, inputs = (int(value) for value in result["rows"][0])
        if counted >= len(usage):
            break
        assert time.monotonic() < deadline_s, f"billing holds {counted} of {len(usage)} events"
        time.sleep(0.5)
    assert (counted, distinct) == (len(usage), len(usage))
    assert tokens == sum(event["output_tokens"] for event in usage.values())
    asked = (event["uncached_input_tokens"] + event["cached_input_tokens"] for event in usage.values())
    assert inputs == sum(asked)
