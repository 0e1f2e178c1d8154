"""Deadlines come in their order, and what has ended takes no memory."""

from hypothesis import given
from hypothesis import strategies as st

from streams.deadlines import Deadlines


def test_memory_follows_what_is_open_and_not_what_ever_was() -> None:
    deadlines = Deadlines()
    deadlines.add("long", 86_400_000)
    for number in range(10_000):
        deadlines.add(f"r{number}", 600_000 + number)
        deadlines.remove(f"r{number}")
        assert deadlines.entries <= 100
    assert deadlines.take_due(86_399_999) == []
    assert deadlines.take_due(86_400_000) == ["long"]


ids = st.sampled_from([f"r{number}" for number in range(200)])


@given(st.lists(st.one_of(st.tuples(ids, st.integers(0, 50)), ids, st.integers(0, 50)), max_size=300))
def test_it_says_what_a_plain_table_would_say(steps: list[tuple[str, int] | str | int]) -> None:
    deadlines, table = Deadlines(), dict[str, int]()
    for step in steps:
        match step:
            case int():
                due = [response_id for response_id, deadline_ms in table.items() if deadline_ms <= step]
                assert sorted(deadlines.take_due(step)) == sorted(due)
                for response_id in due:
                    del table[response_id]
            case str():
                deadlines.remove(step)
                table.pop(step, None)
            case response_id, deadline_ms if response_id not in table:
                deadlines.add(response_id, deadline_ms)
                table[response_id] = deadline_ms
        assert deadlines.entries <= 2 * len(table) + 64
