"""What fails for everybody is asked by one at a time, until it answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.breaker import LONGEST_FACTOR, WINDOW_MS, Breaker

OPEN_MS, PROBE_MS = 1_000, 5_000


@pytest.fixture
def breaker() -> Breaker:
    return Breaker(failures=3, open_ms=OPEN_MS, probe_ms=PROBE_MS)


def fail(breaker: Breaker, *at_ms: int) -> None:
    """Each asks and fails at once."""
    for each in at_ms:
        breaker.failed(each, each)


def test_it_opens_with_failures_in_a_row(breaker: Breaker) -> None:
    fail(breaker, 0, 10)
    breaker.succeeded(15)
    fail(breaker, 20, 30)
    assert breaker.may_ask(30)
    fail(breaker, 40)
    assert (breaker.state(40), breaker.may_ask(40), breaker.wait_ms(40)) == ("open", False, OPEN_MS)


def test_what_failed_long_ago_counts_no_more(breaker: Breaker) -> None:
    fail(breaker, 0, 10, WINDOW_MS + 1)
    assert breaker.state(WINDOW_MS + 1) == "closed"
    fail(breaker, WINDOW_MS + 2)
    assert breaker.state(WINDOW_MS + 2) == "open"


def test_one_tries_and_its_success_lets_all_in(breaker: Breaker) -> None:
    fail(breaker, 0, 0, 0)
    assert not breaker.may_ask(OPEN_MS - 1)
    assert [breaker.may_ask(OPEN_MS) for _ in range(3)] == [True, False, False]
    breaker.succeeded(OPEN_MS)
    assert [breaker.may_ask(OPEN_MS) for _ in range(3)] == [True] * 3


def test_with_each_that_tries_in_vain_it_is_open_twice_as_long_up_to_a_bound(breaker: Breaker) -> None:
    fail(breaker, 0, 0, 0)
    now_ms, waits = 0, []
    for _ in range(6):
        waits.append(breaker.wait_ms(now_ms))
        now_ms += waits[-1]
        assert breaker.may_ask(now_ms)
        fail(breaker, now_ms)
    assert waits == [OPEN_MS * factor for factor in (1, 2, 4, 8, LONGEST_FACTOR, LONGEST_FACTOR)]
    breaker.succeeded(now_ms)
    fail(breaker, now_ms, now_ms, now_ms)
    assert breaker.wait_ms(now_ms) == OPEN_MS, "after a success it begins anew"


def test_who_had_asked_before_it_opened_opens_it_no_longer_and_may_close_it(breaker: Breaker) -> None:
    fail(breaker, 100, 100, 100)
    now_ms = 100 + OPEN_MS
    assert breaker.may_ask(now_ms)
    breaker.failed(90, now_ms)
    assert breaker.state(now_ms) == "half open"
    breaker.succeeded(now_ms)
    assert breaker.state(now_ms) == "closed"


def test_who_had_asked_before_it_closed_opens_nothing(breaker: Breaker) -> None:
    fail(breaker, 100, 100, 100)
    breaker.succeeded(2_000)
    for asked_at_ms in range(1_000, 1_020):
        breaker.failed(asked_at_ms, 6_000)
    assert breaker.state(6_000) == "closed"


def test_one_who_tries_and_is_lost_is_not_waited_for_for_ever(breaker: Breaker) -> None:
    fail(breaker, 0, 0, 0)
    assert breaker.may_ask(OPEN_MS)
    assert not breaker.may_ask(OPEN_MS + PROBE_MS - 1)
    assert breaker.may_ask(OPEN_MS + PROBE_MS)


def test_one_who_tries_and_learns_nothing_leaves_it_to_the_next(breaker: Breaker) -> None:
    fail(breaker, 0, 0, 0)
    assert breaker.may_ask(OPEN_MS)
    breaker.learnt_nothing(OPEN_MS - 1)
    assert not breaker.may_ask(OPEN_MS + 1), "it was another one"
    breaker.learnt_nothing(OPEN_MS)
    assert breaker.may_ask(OPEN_MS + 1)
    assert breaker.state(OPEN_MS + 1) == "half open"


def test_it_opens_with_enough_failures_among_the_last_ones() -> None:
    breaker = Breaker(failures=3, open_ms=OPEN_MS, probe_ms=PROBE_MS, of=6)
    for at_ms in (10, 20):
        fail(breaker, at_ms)
        breaker.succeeded(at_ms)
    assert breaker.state(20) == "closed"
    fail(breaker, 30)
    assert (breaker.state(30), breaker.failed_lately) == ("open", 3)
    breaker.succeeded(40)
    fail(breaker, 50, 60)
    assert breaker.state(60) == "closed", "what was before it closed counts no more"
    for at_ms in range(70, 110, 10):
        breaker.succeeded(at_ms)
    fail(breaker, 120)
    assert breaker.state(120) == "closed", "five others lie between the first of the three and the last"
    breaker.failed(5, 130)
    breaker.failed(6, 130)
    assert breaker.state(130) == "closed", "who asked before it closed says nothing of what is now"
    breaker.failed(65, 140)
    breaker.failed(65, 150)
    assert breaker.state(150) == "open", "who asked before another's success does"
    with pytest.raises(ValueError, match="3 failures of 2"):
        Breaker(failures=3, open_ms=OPEN_MS, probe_ms=PROBE_MS, of=2)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(0, 8))
def test_it_opens_as_soon_as_that_many_of_the_last_have_failed(said: list[bool], failures: int, more: int) -> None:
    of = failures + more
    breaker, last = Breaker(failures, OPEN_MS, PROBE_MS, of=of), list[bool]()
    for at_ms, is_failure in enumerate(said):
        last = [*last, is_failure][-of:]
        if is_failure:
            breaker.failed(at_ms, at_ms)
        else:
            breaker.succeeded(at_ms)
        if sum(last) >= failures:
            assert breaker.state(at_ms) == "open"
            return
        assert breaker.state(at_ms) == "closed"


steps = st.lists(st.tuples(st.sampled_from(["ask", "succeed", "fail"]), st.integers(0, 4_000)), max_size=80)


@given(steps)
def test_while_it_is_not_closed_one_at_a_time_asks(said: list[tuple[str, int]]) -> None:
    breaker, now_ms = Breaker(failures=2, open_ms=OPEN_MS, probe_ms=PROBE_MS), 0
    asked: list[int] = []
    """Who asked since it was closed last, and has not been told how it went."""
    for what, after_ms in said:
        now_ms += after_ms
        state = breaker.state(now_ms)
        if what == "ask":
            lets_in = breaker.lets_in(now_ms)
            if breaker.may_ask(now_ms):
                assert lets_in
                assert state != "open"
                assert state == "closed" or all(now_ms - each >= PROBE_MS for each in asked)
                if state == "half open":
                    asked.append(now_ms)
            else:
                assert state != "closed"
        elif what == "succeed":
            breaker.succeeded(now_ms)
            asked.clear()
            assert breaker.state(now_ms) == "closed"
        elif asked:
            breaker.failed(asked.pop(), now_ms)
        else:
            breaker.failed(now_ms, now_ms)
        assert breaker.wait_ms(now_ms) <= LONGEST_FACTOR * OPEN_MS
