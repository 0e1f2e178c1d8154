"""How far billing is stands on its topic: once a minute while all is well, and at once when something is lost."""

import pytest

from billing_jobs.billed_topic import TELL_MS, BilledTeller
from billing_jobs.progress import Progress
from schemas.billed import Billed
from schemas.codec import decode
from streams.log.memory import Fault, FaultKind, MemoryLog
from streams.log.port import LogError
from tests.unit.billing_jobs.events import NOON_MS

TOPIC = "local.billed"


class World:
    def __init__(self) -> None:
        self.now_ms = NOON_MS
        self.log = MemoryLog(lambda: self.now_ms)
        self.log.create_topic(TOPIC, 1)
        self.teller = BilledTeller(self.log.producer("billing"), TOPIC, lambda: self.now_ms)

    def tell(self, through_ms: int, lost: int = 0, later_ms: int = 5_000) -> None:
        self.now_ms += later_ms
        self.teller.tell(Progress(0, through_ms, self.now_ms, lost))

    def told(self) -> list[tuple[int, int]]:
        said = [decode(Billed, record.value) for record in self.log.records(TOPIC)]
        return [(each.through_ms - NOON_MS if each.through_ms else 0, each.lost_records) for each in said]


def test_it_is_told_once_a_minute_and_a_loss_and_its_end_at_once() -> None:
    world = World()
    world.tell(0)
    assert world.told() == [], "nothing is known yet"
    for number in range(TELL_MS // 5_000 + 1):
        world.tell(NOON_MS + number)
    assert world.told() == [(0, 0), (12, 0)]
    world.tell(NOON_MS + 20, lost=3)
    world.tell(NOON_MS + 21, lost=3)
    world.tell(NOON_MS + 22)
    assert world.told()[2:] == [(20, 3), (22, 0)]
    assert {record.key for record in world.log.records(TOPIC)} == {b"usage"}


def test_what_was_lost_is_told_before_anything_else_is_known() -> None:
    world = World()
    world.tell(0, lost=7)
    assert world.told() == [(0, 7)]


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    world = World()
    world.tell(NOON_MS)
    world.tell(NOON_MS + 1, later_ms=-3_600_000)
    assert len(world.told()) == 2


def test_what_the_log_did_not_take_is_told_with_the_next_look() -> None:
    world = World()
    world.log.inject(Fault(FaultKind.FAIL, "billing", at=1))
    with pytest.raises(LogError):
        world.tell(NOON_MS + 1)
    world.tell(NOON_MS + 2)
    assert world.told() == [(2, 0)]
