"""Usage is read and priced a second time, by a program that shares nothing with the sink, and comes to the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.cut import cut_of, parse_batch
from billing_jobs.pricing import PriceBook, PriceRow
from billing_jobs.reconciliation.figures import Bill, Delivered
from billing_jobs.reconciliation.own_bills import OwnPrices, Price, Unreadable, read
from schemas.base import Scope
from schemas.usage import UsageEvent
from streams.log.port import LogRecord
from tests.unit.billing_jobs.events import NOON_MS, compute_record, delivered_count, presence, usage_event

FOR_ALL = ("", "", "", "")
ROWS = [
    PriceRow("tiny", "USD", 0, 100, 20, 400, 400),
    PriceRow("tiny", "USD", NOON_MS, 200, 40, 800, 800),
    PriceRow("tiny", "EUR", NOON_MS, 1, 1, 1, 1),
    PriceRow("large", "EUR", NOON_MS + 5, 2**40, 3, 2**62, 7),
    PriceRow("tiny", "USD", NOON_MS - 5, 1, 2, 3, 4, tenant_id="acme"),
    PriceRow("tiny", "EUR", NOON_MS + 2, 5, 6, 7, 8, tenant_id="acme", endpoint="chat.completions"),
    PriceRow("tiny", "", NOON_MS + 4, 0, 0, 0, 0, tenant_id="acme", endpoint="chat.completions", withdrawn=True),
    PriceRow("tiny", "USD", 0, 9, 9, 9, 9, endpoint="embeddings", lane="batch"),
    PriceRow("tiny", "USD", 0, 8, 8, 8, 8, lane="batch", region="eu1"),
    PriceRow("tiny", "USD", 0, 7, 7, 7, 7, region="eu1"),
]
OWN = OwnPrices(
    Price(
        row.model, (row.tenant_id, row.endpoint, row.lane, row.region), row.currency, row.valid_from_ms,
        (row.uncached_input_pico, row.cached_input_pico, row.output_pico, row.reasoning_pico), row.withdrawn,
    )
    for row in ROWS
)  # fmt: skip
TOKENS = st.integers(0, 2**31)


def own_bill(value: bytes, written_at_ms: int = NOON_MS) -> Bill:
    bill = read(value, 0, 7, written_at_ms, OWN)
    assert isinstance(bill, Bill)
    return bill


@given(
    model=st.sampled_from(["tiny", "large", "unknown", ""]), billable=st.booleans(), tokens=st.tuples(*[TOKENS] * 5),
    accepted_at_ms=st.integers(NOON_MS - 10, NOON_MS + 10), version=st.integers(1, 2),
    tenant=st.sampled_from(["acme", "globex"]), region=st.sampled_from(["local", "eu1"]),
    endpoint=st.sampled_from(["chat.completions", "embeddings"]), lane=st.sampled_from(["batch", "standard", ""]),
)  # fmt: skip
def test_whatever_was_used_both_programs_charge_the_same(
    model: str, billable: bool, tokens: tuple[int, int, int, int, int], accepted_at_ms: int, version: int,
    tenant: str, region: str, endpoint: str, lane: str,
) -> None:  # fmt: skip
    uncached, cached, output, reasoning, released = tokens
    event = usage_event(
        model=model, billable=billable, accepted_at_ms=accepted_at_ms, uncached_input_tokens=uncached,
        cached_input_tokens=cached, output_tokens=output, reasoning_tokens=reasoning, released_tokens=released,
        billing_rule_version=version, endpoint=endpoint, lane=lane, scope=Scope(tenant_id=tenant, region=region),
    )  # fmt: skip
    record = LogRecord("local.usage", 0, 7, None, event.encode(), (), NOON_MS)
    [charged] = parse_batch(cut_of([record], NOON_MS), [record], PriceBook(ROWS)).charges
    bill = own_bill(event.encode())
    assert (bill.charge_state, bill.cost_pico, bill.currency) == (charged.state, charged.cost_pico, charged.currency)
    assert bill.tokens == sum(tokens[:4])
    assert bill.released_tokens == released


def test_of_prices_for_some_the_one_that_names_more_is_charged_until_it_is_withdrawn() -> None:
    of_all, of_acme, of_its_chats, of_eu = FOR_ALL, ("acme", "", "", ""), ("acme", "chat", "", ""), ("", "", "", "eu1")
    one = (1, 1, 1, 1)
    prices = OwnPrices([
        Price("tiny", of_all, "USD", 0, one), Price("tiny", of_eu, "USD", 0, one),
        Price("tiny", of_acme, "USD", 5, one), Price("tiny", of_its_chats, "USD", 7, one),
        Price("tiny", of_its_chats, "", 9, one, withdrawn=True),
    ])  # fmt: skip
    used = ("acme", "chat", "batch", "eu1")
    found = [prices.at("tiny", used, at_ms) for at_ms in (4, 6, 8, 10)]
    assert [price and price.of for price in found] == [of_eu, of_acme, of_its_chats, of_acme]
    for others, of in ((("globex", "chat", "batch", "local"), of_all), (("globex", "chat", "", "eu1"), of_eu)):
        price = prices.at("tiny", others, 10)
        assert price is not None
        assert price.of == of
    assert prices.at("large", used, 10) is None


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(usage_event().encode()) | fields).encode()


POISON = {
    "no JSON": b"{",
    "nothing": b"",
    "a list": b"[]",
    "another version": changed(schema_version=2),
    "an unknown type": changed(type="gift"),
    "no tenant": changed(scope={}),
    "a negative count": changed(output_tokens=-1),
    "more than a column holds": changed(output_tokens=2**31 + 1),
    "a count of any size": changed(reasoning_tokens=10**30),
    "a fraction": changed(output_tokens=1.5),
    "attempts beyond their column": changed(attempts=2**32),
    "billable or not, nobody knows": changed(billable=None),
    "of the year before last": changed(accepted_at_ms=NOON_MS - 401 * 86_400_000),
    "of the day after tomorrow": changed(ended_at_ms=NOON_MS + 2 * 86_400_000),
    "a first token of tomorrow's tomorrow": changed(first_token_at_ms=NOON_MS + 2 * 86_400_000),
}


@pytest.mark.parametrize("value", POISON.values(), ids=POISON.keys())
def test_what_the_sink_gives_to_the_dead_letters_is_no_bill_here(value: bytes) -> None:
    record = LogRecord("local.usage", 0, 7, None, value, (), NOON_MS)
    assert len(parse_batch(cut_of([record], NOON_MS), [record], PriceBook(ROWS)).unusable) == 1
    with pytest.raises(Unreadable) as refused:
        read(value, 0, 7, NOON_MS, OWN)
    assert len(str(refused.value)) < 40, "it names a field, and shows no value"


def test_what_a_viewer_had_is_known_by_its_place_and_what_workers_say_is_passed_over() -> None:
    assert read(delivered_count(3).encode(), 2, 9, NOON_MS, OWN) == Delivered(
        "2-9", delivered_count(3).response_id, "acme", 30
    )
    for other in (compute_record(), presence()):
        assert read(other.encode(), 2, 9, NOON_MS, OWN) is None


def test_of_two_bills_of_one_id_the_one_that_tells_more_counts_as_in_the_table() -> None:
    refused = usage_event(model="", attempts=0, billable=False)
    stories: list[UsageEvent] = [
        refused, usage_event(attempts=0, billable=False), usage_event(billable=False), usage_event(),
    ]  # fmt: skip
    assert [own_bill(event.encode()).precedence for event in stories] == [0, 1, 2, 3]
