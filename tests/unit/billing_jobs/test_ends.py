"""Why billing ends stands in its log, whatever else fails while it does."""

import threading

import pytest
from structlog.testing import capture_logs

from billing_jobs.__main__ import code_of_end, running
from billing_jobs.billed_topic import BilledTeller
from billing_jobs.cut import RecordsLost
from schemas.billed import Billed
from schemas.codec import decode
from streams.entry_point import EXIT_FAILED
from streams.log.memory import Fault, FaultKind, MemoryLog
from streams.log.port import LogError, TopicPartition
from tests.unit.billing_jobs.events import NOON_MS

TOPIC = "local.billed"
LOST = RecordsLost(TopicPartition("local.usage", 0), range(3, 7))


class Lossy:
    """A part of billing that finds what was lost, and cannot even leave its group."""

    def run(self, _stop: threading.Event) -> None:
        raise LOST

    def close(self) -> None:
        raise LogError("nobody answers", retriable=True)


@pytest.mark.parametrize("log_answers", [True, False])
def test_records_that_were_lost_are_the_reason_whether_or_not_the_log_answers(log_answers: bool) -> None:
    log = MemoryLog(lambda: NOON_MS)
    log.create_topic(TOPIC, 1)
    billed = BilledTeller(log.producer("billing"), TOPIC, lambda: NOON_MS)
    if not log_answers:
        log.inject(Fault(FaultKind.FAIL, "billing", at=1))
    ended, errors = threading.Event(), list[Exception]()
    with running(Lossy(), ended, errors):
        assert ended.wait(30)
    with capture_logs() as lines:
        assert code_of_end(errors, billed) == EXIT_FAILED
    assert [line["error"] for line in lines if line["event"] == "billing_ends"] == [f"RecordsLost: {LOST}"]
    told = [decode(Billed, record.value).lost_records for record in log.records(TOPIC)]
    assert told == ([4] if log_answers else [])
    untold = [line["records"] for line in lines if line["event"] == "loss_not_told"]
    assert untold == ([] if log_answers else [4])


def test_who_was_stopped_ends_well() -> None:
    log = MemoryLog(lambda: NOON_MS)
    assert code_of_end([], BilledTeller(log.producer("billing"), TOPIC, lambda: NOON_MS)) == 0
