"""The price list is told on its topic, each row once it stands there, and read as it was told."""

from dataclasses import replace

import pytest

from billing_jobs.price_topic import PriceTeller
from schemas.codec import decode
from schemas.price import PriceTold
from streams.log.memory import MemoryLog
from streams.price_list import PriceList, PriceReader
from streams.pricing import PriceRow, PriceScope
from streams.topics import Topics

TOPIC = Topics("local", ["default"]).prices.name
FIRST = PriceRow("tiny", "USD", 0, 1, 2, 3, 4)
OWN = PriceRow("tiny", "EUR", 500, 5, 6, 7, 8, tenant_id="acme", lane="batch")
GONE = PriceRow("tiny", "", 900, 0, 0, 0, 0, tenant_id="acme", lane="batch", withdrawn=True)
OF_ACME = PriceScope("tiny", "acme", "chat.completions", "batch", "local")


def log() -> MemoryLog:
    log = MemoryLog(lambda: 0)
    log.create_topic(TOPIC, 1)
    return log


def reader_of(log: MemoryLog, prices: PriceList) -> PriceReader:
    unreadable: list[object] = []
    return PriceReader(lambda: log.consumer(None, "reader"), TOPIC, prices, lambda *each: unreadable.append(each))


def test_who_reads_the_topic_charges_as_the_table_says() -> None:
    kafka, prices = log(), PriceList()
    reader = reader_of(kafka, prices)
    assert PriceTeller(kafka.producer("billing"), TOPIC).tell([FIRST, OWN])
    assert not prices.are_read
    reader.read_on()
    assert prices.are_read
    assert prices.book.at(OF_ACME, 499) == FIRST
    assert prices.book.at(OF_ACME, 500) == OWN
    assert PriceTeller(kafka.producer("another"), TOPIC).tell([FIRST, OWN, GONE])
    for _ in range(3):
        reader.read_on()
    assert prices.book.at(OF_ACME, 900) == FIRST, "withdrawn"


def test_a_row_is_told_once_by_a_process_and_of_two_with_one_id_the_first() -> None:
    kafka = log()
    teller = PriceTeller(kafka.producer("billing"), TOPIC)
    twin = PriceRow("tiny", "USD", 0, 9, 9, 9, 9)
    assert teller.tell([FIRST, twin])
    assert teller.tell([FIRST, twin])
    [record] = kafka.records(TOPIC)
    assert record.key == FIRST.price_id.encode()
    prices = PriceList()
    reader_of(kafka, prices).read_on()
    assert prices.book.at(OF_ACME, 0) == FIRST


@pytest.mark.parametrize("are_read_together", [False, True])
def test_of_two_that_were_told_with_one_id_every_reader_has_the_last_as_the_log_keeps_it(
    are_read_together: bool,
) -> None:
    kafka, prices = log(), PriceList()
    reader = reader_of(kafka, prices)
    hasty, other = (PriceTeller(kafka.producer(name), TOPIC) for name in ("hasty", "other"))
    earlier = replace(FIRST, output_pico=9)
    for teller, row in ((hasty, FIRST), (other, earlier)):
        assert teller.tell([row])
        if not are_read_together:
            reader.read_on()
    reader.read_on()
    assert prices.book.at(OF_ACME, 0) == earlier
    assert hasty.tell([earlier, FIRST]), "which it has seen in the table by now"
    assert [decode(PriceTold, record.value).output_pico for record in kafka.records(TOPIC)] == [3, 9, 9]


def test_what_is_no_price_is_passed_over_and_told() -> None:
    kafka, prices = log(), PriceList()
    kafka.append(TOPIC, b"{")
    unreadable: list[object] = []
    PriceReader(lambda: kafka.consumer(None, "r"), TOPIC, prices, lambda *each: unreadable.append(each)).read_on()
    assert prices.are_read
    assert len(unreadable) == 1
