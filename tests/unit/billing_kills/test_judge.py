"""What is found where billing stored other than was written, and what naive ways to bill are told to have done."""

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tests.billing_kills.judge import NaiveError, difference, errors_of
from tests.billing_kills.parts import told_of
from tests.billing_kills.run import Part
from tests.billing_kills.stream import PRICES, Stream, months_before
from tests.history.bills import BILLED, charge_of
from tests.history.violation import Violation

MONTHS = months_before(datetime(2027, 5, 3, tzinfo=UTC))


def written(seed: int = 1, records: int = 300) -> tuple[Stream, list[dict[str, Any]]]:
    stream = Stream(seed, MONTHS)
    return stream, [json.loads(value) for _, value in stream.take(records, 0.5)]


def bills(stream: Stream) -> list[dict[str, Any]]:
    """As billing stores them."""
    rows = []
    for event in stream.events.values():
        told = event.model_dump(mode="json")
        state, pico = charge_of(told, PRICES)
        rows.append(
            {name: told[name] for name in ("usage_id", "accepted_at_ms", *BILLED)}
            | {"tenant_id": told["scope"]["tenant_id"], "charge_state": state, "cost_pico": pico}
        )
    return rows


def kinds(stream: Stream, rows: list[dict[str, Any]]) -> set[str]:
    events = [event.model_dump(mode="json") for event in stream.events.values()]
    return {violation.kind for violation in difference(events, rows, [], {}, {}, {})["raw"]}


def test_rows_that_are_missing_doubled_or_dear_are_found() -> None:
    stream, _ = written()
    rows = bills(stream)
    assert kinds(stream, rows) == set()
    assert kinds(stream, rows[1:]) == {"lost"}
    assert kinds(stream, [*rows, rows[0]]) == {"doubled"}
    assert kinds(stream, [{**rows[0], "cost_pico": -1}, *rows[1:]]) == {"billed"}


def test_hours_that_nobody_summed_are_found() -> None:
    stream, _ = written()
    events = [event.model_dump(mode="json") for event in stream.events.values()]
    found = difference(events, bills(stream), [], {}, {}, {})["hours"]
    assert {violation.kind for violation in found} == {"billed"}


def test_a_seed_writes_the_same_with_repeats_of_the_same_bytes_and_late_hours() -> None:
    stream, values = written()
    assert written()[1] == values
    assert written(2)[1] != values
    usage = [value for value in values if value["type"] == "usage"]
    by_id: dict[str, set[str]] = {}
    for value in usage:
        by_id.setdefault(value["usage_id"], set()).add(json.dumps(value))
    assert by_id.keys() == stream.events.keys()
    assert all(len(texts) == 1 for texts in by_id.values())
    assert len(values) > 300, "some are written again"
    others = stream.computed + stream.delivered + stream.present
    assert stream.again == len(values) - (len(stream.events) + others)
    times = [value["accepted_at_ms"] for value in usage]
    assert times != sorted(times)


def test_the_months_are_those_that_are_over() -> None:
    assert months_before(datetime(2027, 5, 3, tzinfo=UTC)) == (
        datetime(2027, 3, 1, tzinfo=UTC), datetime(2027, 4, 1, tzinfo=UTC),
    )  # fmt: skip
    assert months_before(datetime(2027, 1, 31, tzinfo=UTC)) == (
        datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC),
    )  # fmt: skip


def test_a_naive_table_is_held_against_the_log_place_by_place() -> None:
    event: dict[str, Any] = {
        "type": "usage", "usage_id": "a/0", "model": "tiny", "billable": True, "uncached_input_tokens": 1_000_000,
        "cached_input_tokens": 0, "output_tokens": 0, "reasoning_tokens": 0,
    }  # fmt: skip
    log: dict[tuple[int, int], dict[str, Any]] = {
        (0, 0): event, (0, 1): {**event, "usage_id": "b/0"}, (1, 0): event, (1, 1): {"type": "compute"},
    }  # fmt: skip
    exact = errors_of(log, list(log))
    assert (exact.lost_records, exact.doubled_records) == (0, 0)
    assert (exact.lost, exact.doubled) == ({}, {"USD": Decimal(0)})
    assert exact.charged_for_repeats == {"USD": Decimal("0.10")}
    wrong = errors_of(log, [(0, 0), (0, 0), (0, 0), (1, 1), (1, 0)])
    assert (wrong.lost_records, wrong.doubled_records) == (1, 2)
    assert (wrong.lost, wrong.doubled) == ({"USD": Decimal("0.10")}, {"USD": Decimal("0.20")})


def test_what_is_told_of_several_parts_is_their_sum() -> None:
    naive = NaiveError(3, 0, {"USD": Decimal("0.1")}, {}, {})
    parts = [
        Part(
            kills=Counter({"read": 2, "at random": number}), records=100, naive={"commit first": naive},
            differences={"raw": [Violation("lost", "a", "b")]}, start_s=[float(number)],
        )
        for number in (1, 2)
    ]  # fmt: skip
    told = told_of(parts, 10.4)
    assert (told["kills"], told["records"], told["took_s"]) == (7, 200, 10)
    assert told["by_point"] == {"at random": 3, "read": 4}
    assert told["differences"] == {"raw": 2, "hours": 0, "invoices": 0, "ledger": 0}
    assert told["naive"]["commit first"] | {"lost": {"USD": "0.2"}} == told["naive"]["commit first"]
    assert told["naive"]["commit first"]["lost_records"] == 6
