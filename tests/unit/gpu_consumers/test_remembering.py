"""What a worker remembers of responses that it does not hold, and what that costs."""

import sys

from schemas.control import AttemptVoid
from schemas.endings import EndingCode
from tests.unit.gpu_consumers.fleet import SCOPE, TOPICS, Fleet


def test_a_cancel_that_comes_before_its_request_is_remembered() -> None:
    fleet = Fleet("a")
    fleet.region.cancel("resp_test-0_" + f"{0:032x}")
    fleet.run(100)
    response_id = fleet.region.request()
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert not fleet.all[0].submitted


def test_a_cancel_is_remembered_for_as_long_as_a_request_may_take() -> None:
    fleet = Fleet("a")
    fleet.region.cancel("resp_test-0_" + f"{0:032x}")
    fleet.run(100)
    fleet.region.now_ms += 599_000
    fleet.run(100)
    response_id = fleet.region.request()
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.CANCELLED
    assert not fleet.all[0].submitted


def test_the_deadlines_of_what_ended_early_are_forgotten() -> None:
    fleet = Fleet("a", max_running=64)
    for _ in range(10):
        for _ in range(40):
            fleet.region.request(max_tokens=1)
        fleet.settle()
    last = fleet.region.request(max_tokens=5_000, deadline_ms=fleet.region.now_ms + 2_000)
    fleet.run(1_000)
    assert fleet.all[0].core._attempts.deadlines.entries < 100
    fleet.settle()
    assert fleet.region.terminal(last) is EndingCode.DEADLINE_EXCEEDED


def test_what_ended_is_remembered_in_a_few_hundred_bytes() -> None:
    fleet = Fleet("a", max_running=64)
    ids = [fleet.region.request(max_tokens=2) for _ in range(64)]
    fleet.settle()
    [worker] = fleet.all
    remembered = worker.core._remembered.ended
    assert remembered.keys() == set(ids)
    known = {id(part) for part in (SCOPE, TOPICS)}
    sizes = [size_bytes(ended, known) for ended in remembered.values()]
    assert sum(sizes) / len(sizes) < 1_000


def size_bytes(value: object, known: set[int]) -> int:
    """What `value` holds in memory beyond what is `known`, which grows: shared objects count once."""
    if id(value) in known or isinstance(value, type):
        return 0
    known.add(id(value))
    parts: list[object] = list(value) if isinstance(value, list | tuple | set | frozenset) else []
    if isinstance(value, dict):
        parts += [*value.keys(), *value.values()]
    parts += [getattr(value, name) for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())
              if not name.startswith("__weak") and hasattr(value, name)]  # fmt: skip
    if hasattr(value, "__dict__"):
        parts.append(value.__dict__)
    return sys.getsizeof(value) + sum(size_bytes(part, known) for part in parts)


def test_a_void_that_names_another_attempt_forgets_nothing_that_ended() -> None:
    fleet = Fleet("a")
    response_id = fleet.region.request()
    fleet.settle()
    [fence] = fleet.region.fences()

    def void(attempt_id: str) -> None:
        fleet.region.control(
            AttemptVoid(
                response_id=response_id, scope=SCOPE, attempt_id=attempt_id, worker_id="a", why="tokens_precede"
            )
        )
        fleet.run(100)

    void("att_of_long_ago")
    assert fleet.region.fences() == [fence]
    # Still known: the attempt that wrote its end is taken over when it is the void one.
    void(fence.attempt_id)
    assert [fence.kind for fence in fleet.region.fences()][1:] == ["takeover"]
