"""A run of chaos comes to its judgement whatever happens on the way."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from deploy.local.supervisor import SupervisorError
from tests.chaos import run
from tests.chaos.schedule import DECK, Fault, Kind
from tests.chaos.strike import Struck
from tests.chaos.traffic import ClientFailed

NOTHING = cast(Any, None)


class Answered:
    """Traffic of which there is nothing to say."""

    def until_answered(self, since_ms: int, timeout_s: float) -> None:
        pass


def struck(at_ms: int, *processes: str, flushed: str = "") -> Struck:
    return Struck(Fault(Kind.FREEZE, processes, 6.0, flushed), at_ms, 1.0, 2.0, 0.5, 0.5)


@pytest.mark.parametrize("error", [ClientFailed("it fell"), TimeoutError("too long"), SupervisorError("given up")])
def test_what_stops_it_is_told_and_what_was_struck_before_stays(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    outcomes: Iterator[Struck | Exception] = iter([struck(1, "redis"), error])

    def strike(*_: object) -> Struck:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(run, "strike", strike)
    said: list[str] = []
    done, stopped = run._strike(NOTHING, cast(Any, Answered()), DECK[:3], float("inf"), said.append)
    assert (len(done), stopped) == (1, f"2: kill 2 worker (worker-1, worker-2): {error}")
    assert said[-1] == stopped


def test_traffic_that_never_begins_stops_it_too() -> None:
    class Silent:
        def until_answered(self, since_ms: int, timeout_s: float) -> None:
            raise TimeoutError("nobody has a token")

    done, stopped = run._strike(NOTHING, cast(Any, Silent()), DECK, float("inf"), lambda _: None)
    assert (done, stopped) == ([], "before the first: nobody has a token")


def test_redis_may_have_forgotten_what_was_settled_until_all_had_recovered_from_its_loss() -> None:
    others = [struck(1_000, "worker-1", flushed="redis-history"), struck(50_000, "kafka")]
    assert run.memory_lost_at_ms(others) == 0
    assert run.memory_lost_at_ms([*others, struck(10_000, "redis")]) == 13_000
    assert run.memory_lost_at_ms([*others, struck(20_000, "worker-1", flushed="redis")]) == 23_000
