"""What a batch costs by columns is what each of its events costs alone."""

from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.charges import charges_of
from billing_jobs.cut import cut_of, parse_batch
from billing_jobs.pricing import PriceBook, PriceRow, charge
from billing_jobs.reading import read_records
from schemas.base import Scope
from schemas.billing_rules import BILLING_RULE_VERSION
from schemas.usage import UsageEvent
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import NOON_MS, usage_event

SOMETIMES = [PriceRow("tiny", "EUR", NOON_MS + 5, 7, 1, 11, 13), PriceRow("tiny", "EUR", NOON_MS + 9, 2**60, 0, 1, 1)]
ALWAYS = [
    PriceRow("tiny", "USD", 0, 100, 20, 400, 400),
    PriceRow("tiny", "USD", 0, 90, 20, 300, 300, tenant_id="acme", lane="batch"),
    PriceRow("dear", "EUR", 0, 2**62, 1, 2**50, 3, region="eu"),
]
BOOKS = [PriceBook([]), PriceBook(ALWAYS), PriceBook(ALWAYS + SOMETIMES), PriceBook(SOMETIMES)]


@st.composite
def events(draw: st.DrawFn) -> UsageEvent:
    return usage_event(
        scope=Scope(tenant_id=draw(st.sampled_from(["acme", "globex"])), region=draw(st.sampled_from(["eu", "us"]))),
        model=draw(st.sampled_from(["tiny", "dear", "gone"])),
        lane=draw(st.sampled_from(["batch", "standard"])),
        billable=draw(st.booleans()),
        billing_rule_version=draw(st.sampled_from([BILLING_RULE_VERSION, BILLING_RULE_VERSION + 1])),
        accepted_at_ms=NOON_MS + draw(st.sampled_from([0, 4, 5, 8, 9])),
        output_tokens=draw(st.sampled_from([0, 1, 2**31])),
        reasoning_tokens=draw(st.integers(0, 9)),
    )


def logged(used: list[UsageEvent]) -> list[LogRecord]:
    return [LogRecord("local.usage", 0, offset, None, each.encode(), (), NOON_MS) for offset, each in enumerate(used)]


@given(st.lists(events(), max_size=8), st.sampled_from(BOOKS))
def test_each_costs_what_it_costs_alone(used: list[UsageEvent], book: PriceBook) -> None:
    charges = charges_of(read_records(logged(used)).usage, book)
    assert list(charges) == [charge(event, book) for event in used]


def test_a_batch_that_is_read_again_is_the_same_and_another_is_not() -> None:
    records = logged([usage_event(1), usage_event(2)])
    cut, book = cut_of(records, NOON_MS), BOOKS[1]
    assert parse_batch(cut, records, book) == parse_batch(cut, records, book)
    assert parse_batch(cut, records, book) != parse_batch(cut, records, BOOKS[0])
