"""What is read by columns is what the schema reads record by record, and what it refuses is refused in its words."""

import json
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing_jobs import reading
from billing_jobs.columns import Columned
from billing_jobs.reading import (
    MAX_EVENT_AGE_MS,
    MAX_EVENT_AHEAD_MS,
    Logged,
    Unusable,
    read_one,
    read_records,
)
from schemas.codec import Undecodable
from schemas.usage import UsageEvent
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, presence, usage_event

STAGES = {"gateway": NOON_MS, "admission": NOON_MS + 3}
SOUND = [
    usage_event(1, stage_ms=STAGES, first_token_at_ms=0),
    usage_event(2, billable=False, ending="cancelled"),
    compute_record(3),
    delivered_count(4),
    presence(),
]
EDGES = [
    0, -1, 1, 2**31, 2**31 + 1, 2**32, 2**53, 2**53 + 1, 2**63, 2**64, 10**30, NOON_MS - MAX_EVENT_AGE_MS,
    NOON_MS - MAX_EVENT_AGE_MS - 1, NOON_MS + MAX_EVENT_AHEAD_MS, NOON_MS + MAX_EVENT_AHEAD_MS + 1,
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(EDGES),
    st.sampled_from([1.0, 1.5, 1e3, 1e300, -0.0, float("nan"), float("inf")]),
    st.sampled_from(["", "5", "true", "usage", "completed", "x" * 200, "x" * 201, "é" * 200, "🙂" * 201, "\0", "a\nb"]),
    st.sampled_from([None, True, False, [], {}, [1], {"a": 1}, {"a": "1"}, {"a": -1}, {"a": True}, {"a": 2**53}]),
    st.text(max_size=5),
    st.integers(),
)
RAW: list[Callable[[bytes], bytes]] = [
    lambda value: value + b" \n",
    lambda value: value + b"}",
    lambda value: value[:-1],
    lambda value: b"\xef\xbb\xbf" + value,
    lambda value: b"[" + value + b"]",
    lambda value: value.replace(b'"acme"', b'"\xff"'),
    lambda value: value.replace(b'"acme"', b'"\\ud800"'),
    lambda value: value.replace(b'"acme"', b'"\\ud83d\\ude42"'),
    lambda value: value.replace(b'"type":', b'"type":"compute","type":'),
    lambda value: value.replace(b'"model":', b'"model":7,"model":'),
    lambda value: value.replace(b'"tenant_id":', b'"tenant_id":"","tenant_id":'),
    lambda value: value[:-1] + b',"more":' + b"[" * 300 + b"]" * 300 + b"}",
    lambda value: value[:-1] + b',"more":NaN}',
    lambda _: b"",
    lambda _: b"null",
    lambda _: b"\x00",
]


def paths_of(told: dict[str, Any]) -> list[tuple[str, ...]]:
    return [*((name,) for name in told), *(("scope", name) for name in told["scope"]), ("stage_ms", "gateway")]


@st.composite
def values(draw: st.DrawFn) -> bytes | None:
    """A record as it is written, with one or two things that are otherwise, or with none."""
    told = json.loads(draw(st.sampled_from(SOUND)).encode())
    for _ in range(draw(st.integers(0, 2))):
        *way, name = draw(st.sampled_from(paths_of(told)))
        place = told
        for step in way:
            place = place.get(step)
        if not isinstance(place, dict):
            break
        what = draw(st.sampled_from(["set", "set", "set", "drop", "add"]))
        if what == "set":
            place[name] = draw(VALUES)
        elif what == "drop":
            place.pop(name, None)
        else:
            place["more"] = draw(VALUES)
        if not isinstance(told.get("scope"), dict) or not isinstance(told.get("stage_ms"), dict):
            break
    value = json.dumps(told, ensure_ascii=draw(st.booleans()), separators=(",", ":")).encode()
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(RAW))(value)
    return value if draw(st.integers(0, 30)) else None


def logged(values: list[bytes | None], partition: int = 0) -> list[LogRecord]:
    return [
        LogRecord("local.usage", partition, 10 + offset, None, value, (), NOON_MS + offset % 3)
        for offset, value in enumerate(values)
    ]


def one_by_one(records: list[LogRecord]) -> tuple[list[Logged[Any]], list[Unusable]]:
    rows, unusable = [], []
    for record in records:
        try:
            event = read_one(record)
        except Undecodable as error:
            unusable.append(Unusable(record, error.reason, error.detail))
        else:
            rows.append(Logged(event, record.partition, record.offset, record.timestamp_ms))
    return rows, unusable


@settings(max_examples=400, deadline=None)
@given(st.lists(values(), max_size=12))
def test_it_takes_and_refuses_what_the_schema_takes_and_refuses(raw: list[bytes | None]) -> None:
    records = logged(raw, partition=3)
    rows, unusable = one_by_one(records)
    read = read_records(records)
    assert read.unusable == unusable
    for name in ("usage", "compute", "delivered", "presence"):
        found: Columned[Any] = getattr(read, name)
        wanted = [row for row in rows if row.event.type == name]
        assert found == wanted
        assert [row.event.encode() for row in found] == [row.event.encode() for row in wanted]
        for path, column in found.columns.items():
            where = path if path in ("partition", "offset", "logged_at_ms") else f"event.{path}"
            assert list(column) == [attrgetter(where)(row) for row in wanted], path


def test_what_our_writers_write_is_never_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "read_one", None)
    read = read_records(logged([each.encode() for each in SOUND]))
    assert (len(read.usage), len(read.compute), len(read.delivered), len(read.presence)) == (2, 1, 1, 1)


def test_one_that_is_not_sound_costs_its_neighbours_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(record: LogRecord) -> Any:
        asked.append(record.offset)
        return read_one(record)

    monkeypatch.setattr(reading, "read_one", noted)
    bad = usage_event(5).encode().replace(b'"output_tokens":30', b'"output_tokens":-1')
    read = read_records(logged([SOUND[0].encode(), bad, SOUND[1].encode()]))
    assert asked == [11]
    assert [row.offset for row in read.usage] == [10, 12]


def test_an_event_that_is_read_by_columns_is_an_event_like_any_other() -> None:
    [row] = read_records(logged([SOUND[0].encode()])).usage
    assert row.event == SOUND[0]
    assert isinstance(row.event, UsageEvent)
    assert row.event.model_copy(update={"choice": 1}).choice == 1
    assert row.event.model_fields_set == set(UsageEvent.model_fields)


def test_a_field_of_a_kind_that_no_column_checks_is_noticed_when_the_program_starts() -> None:
    class Newer(UsageEvent):
        ratio: float = 0.0

    with pytest.raises(TypeError, match="float"):
        reading._check_of(Newer.model_fields["ratio"], 2**64)


@pytest.mark.parametrize("event", SOUND, ids=[f"{type(each).__name__}-{number}" for number, each in enumerate(SOUND)])
@pytest.mark.parametrize("wide", [2**32, 2**53, 2**63, 2**70])
def test_a_number_that_no_column_takes_is_a_dead_letter_and_stops_nothing(event: Any, wide: int) -> None:
    told = json.loads(event.encode())
    of_policy = {**told, "scope": {**told["scope"], "policy_version": wide}}
    of_stage = {**told, "stage_ms": {"worker": max(wide, 2**53)}}
    for bad in (of_policy, of_stage):
        read = read_records(logged([SOUND[0].encode(), json.dumps(bad).encode(), SOUND[1].encode()]))
        assert [each.record.offset for each in read.unusable] == [11]
        assert [row.offset for row in read.usage] == [10, 12]
