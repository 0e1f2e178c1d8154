"""Look-ups while leaders move, in virtual time."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from streams.log.kafka import settled
from streams.log.kafka.client import SETTLE_TIMEOUT_S, log_error
from streams.log.port import LogError


class World:
    """One partition, which another broker leads from `moved_at_s` on; the client asks whom it believes to lead."""

    def __init__(self, moved_at_s: float) -> None:
        self.now_s = 0.0
        self.moved_at_s = moved_at_s
        self.knows = False
        self.tries_s: list[float] = []

    def look_up(self, may_take_s: float) -> str:
        self.tries_s.append(may_take_s)
        if self.knows:
            return "the end"
        self.now_s += may_take_s
        raise LogError("watermarks: timed out", retriable=True)

    def wait(self, for_s: float) -> None:
        self.now_s += for_s

    def find_leaders(self) -> None:
        self.knows = self.now_s >= self.moved_at_s


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(moved_at_s=0.5)
    clock = SimpleNamespace(monotonic=lambda: world.now_s, sleep=world.wait)
    monkeypatch.setattr("streams.log.kafka.client.time", clock)
    return world


@pytest.mark.parametrize(
    ("moved_at_s", "tries_s"), [(0.5, [1, 2]), (2.5, [1, 2, 4]), (6.0, [1, 2, 4, 8])], ids=["soon", "later", "late"]
)
def test_a_look_up_that_waits_in_vain_asks_who_leads_and_is_given_longer(
    clocked: World, moved_at_s: float, tries_s: list[float]
) -> None:
    clocked.moved_at_s = moved_at_s
    assert settled(clocked.look_up, clocked.find_leaders) == "the end"
    assert clocked.tries_s == tries_s


def test_where_nobody_leads_it_fails_in_time(clocked: World) -> None:
    clocked.moved_at_s = 1_000.0
    with pytest.raises(LogError, match="timed out"):
        settled(clocked.look_up, clocked.find_leaders)
    assert SETTLE_TIMEOUT_S <= clocked.now_s < 2 * SETTLE_TIMEOUT_S


def test_who_cannot_be_asked_who_leads_is_asked_with_the_next_try(clocked: World) -> None:
    def nobody_answers() -> None:
        clocked.knows = len(clocked.tries_s) > 1
        raise LogError("leaders of t: no answer", retriable=True)

    assert settled(clocked.look_up, nobody_answers) == "the end"
    assert clocked.tries_s == [1, 2, 4]


def test_what_no_try_can_mend_is_told_at_once(clocked: World) -> None:
    def refused(_may_take_s: float) -> str:
        raise LogError("not allowed", retriable=False)

    with pytest.raises(LogError, match="not allowed"):
        settled(refused, clocked.find_leaders)
    assert clocked.now_s == 0.0


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._DESTROY_BROKER, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION,
    ],
)  # fmt: skip
def test_what_fails_because_a_broker_left_or_another_has_just_taken_over_is_asked_again(code: int) -> None:
    error = KafkaException(KafkaError(code)).args[0]
    assert log_error(error, "watermarks").retriable
