"""Every target is told in its own time: a dead one holds up nobody, and is given up loudly."""

from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.webhooks.addresses import Target
from billing_jobs.webhooks.deliveries import FIRST_WAIT_MS, LONGEST_WAIT_MS, Deliveries, Message, wait_ms

DEAD, ALIVE = Target("acme", "https://dead.example/"), Target("", "https://alive.example/")
DAY_MS = 86_400_000


def message(offset: int, target: Target, expires_ms: int = DAY_MS) -> Message:
    return Message(target, f"alert_{offset}.raised", b"{}", offset, expires_ms)


def deliveries(**options: int) -> Deliveries:
    return Deliveries(lambda: 0.0, **options)


def test_a_dead_target_holds_up_no_other_and_keeps_the_commit_below_what_it_has_not_taken() -> None:
    told = deliveries()
    for offset in range(3):
        told.offer(offset, [message(offset, DEAD), message(offset, ALIVE)])
    for offset in range(3):
        taken = [each for each in told.due(0) if each.target is ALIVE]
        assert [each.offset for each in taken] == [offset], "in the log's order, one after the other"
        told.taken(taken[0])
    assert told.offsets.to_commit() == 0
    assert told.due(0) == [], "the dead one is being told the first still"


def test_what_fails_is_tried_again_later_and_later_and_its_successors_wait_with_it() -> None:
    told = deliveries()
    told.offer(0, [message(0, DEAD)])
    told.offer(1, [message(1, DEAD)])
    now_ms = 0
    for failures in range(1, 5):
        [tried] = told.due(now_ms)
        assert tried.offset == 0
        assert not told.failed(tried, now_ms)
        assert told.next_due_ms() == now_ms + FIRST_WAIT_MS * 2 ** (failures - 1) // 2
        assert told.due(now_ms + FIRST_WAIT_MS * 2 ** (failures - 1) // 2 - 1) == []
        now_ms = told.next_due_ms() or 0
    [tried] = told.due(now_ms)
    told.taken(tried)
    [next_one] = told.due(now_ms)
    assert next_one.offset == 1, "at once, where it answers again"
    told.taken(next_one)
    assert told.offsets.to_commit() == 2
    assert (len(told), told.next_due_ms()) == (0, None)


def test_what_nobody_took_in_its_time_is_given_up_and_the_commit_goes_on() -> None:
    told = deliveries()
    told.offer(0, [message(0, DEAD, expires_ms=FIRST_WAIT_MS)])
    [tried] = told.due(0)
    assert not told.failed(tried, 0)
    [tried] = told.due(FIRST_WAIT_MS)
    assert told.failed(tried, FIRST_WAIT_MS)
    assert told.offsets.to_commit() == 1


def test_what_a_target_does_not_want_is_not_tried_again() -> None:
    told = deliveries()
    told.offer(0, [message(0, DEAD)])
    [tried] = told.due(0)
    assert told.failed(tried, 0, for_good=True)
    assert told.offsets.to_commit() == 1


def test_of_too_many_the_oldest_that_is_not_being_told_is_given_up() -> None:
    told = deliveries(max_waiting=2)
    told.offer(0, [message(0, DEAD)])
    [tried] = told.due(0)
    told.offer(1, [message(1, DEAD)])
    assert told.offer(2, [message(2, DEAD)]) == [message(1, DEAD)]
    told.taken(tried)
    assert told.offsets.to_commit() == 2


def test_what_nobody_asked_to_be_told_is_done_with() -> None:
    told = deliveries()
    told.offer(0, [])
    assert told.offsets.to_commit() == 1


@given(st.integers(1, 1_000), st.floats(0, 1, exclude_max=True))
def test_waits_have_bounds_and_half_of_each_is_chance(failures: int, jitter: float) -> None:
    assert FIRST_WAIT_MS // 2 <= wait_ms(failures, jitter) <= LONGEST_WAIT_MS
    assert wait_ms(failures, 0.0) <= wait_ms(failures, jitter) <= 2 * wait_ms(failures, 0.0)


@given(st.data())
def test_whatever_fails_every_message_is_taken_or_given_up_once_and_nothing_open_is_committed(
    data: st.DataObject,
) -> None:
    told, now_ms, ended = deliveries(max_waiting=3), 0, []
    targets = [Target("", f"https://{name}.example/") for name in "abc"]
    records = data.draw(st.integers(1, 8))
    for offset in range(records):
        wanted = data.draw(st.lists(st.sampled_from(targets), unique=True))
        ended += told.offer(offset, [message(offset, target, expires_ms=20_000) for target in wanted])
        open_before = told.offsets.watermark or 0
        for each in told.due(now_ms):
            if data.draw(st.booleans()):
                told.taken(each)
                ended.append(each)
            elif told.failed(each, now_ms):
                ended.append(each)
        assert (told.offsets.watermark or 0) >= open_before
        now_ms += data.draw(st.integers(0, 2_000))
    while len(told):
        for each in told.due(now_ms):
            if told.failed(each, now_ms):
                ended.append(each)
        now_ms += 1_000
    assert len(ended) == len({(each.offset, each.target) for each in ended})
    assert told.offsets.to_commit() == records
