from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.clickhouse.errors import Refused
from billing_jobs.clickhouse.waiting_answers import WaitingAnswers

MAX_BYTES, OF_TENANT = 512, 128


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-64, 64)), max_size=60))
def test_whoever_asks_for_whatever_nobody_has_more_than_he_leaves_to_others(changes: list[tuple[str, int]]) -> None:
    answers, held = WaitingAnswers(MAX_BYTES, OF_TENANT), Counter[str]()
    for tenant, more_bytes in changes:
        if held[tenant] + more_bytes < 0:
            continue
        with suppress(Refused):
            answers.add(tenant, more_bytes)
            held[tenant] += more_bytes
            left_bytes = MAX_BYTES - held.total()
            assert more_bytes <= 0 or held[tenant] <= min(OF_TENANT, left_bytes)
        assert answers.held_bytes == held.total()


def test_four_tenants_that_take_nothing_leave_a_fifth_an_answer() -> None:
    answers = WaitingAnswers(MAX_BYTES, OF_TENANT)
    for tenant in "abcd":
        with suppress(Refused):
            while True:
                answers.add(tenant, 16)
    answers.add("e", 16)


def test_an_answer_takes_no_more_once_it_is_over_or_was_refused() -> None:
    answers = WaitingAnswers(MAX_BYTES, OF_TENANT)
    with answers.hold("a") as hold:
        hold.resize(100)
        hold.resize(60)
        with pytest.raises(Refused, match="wait to be taken") as refused:
            hold.resize(OF_TENANT + 1)
        assert refused.value.name == "MEMORY_LIMIT_EXCEEDED"
        assert answers.held_bytes == 60
    assert answers.held_bytes == 0
