"""Answers about usage that are given again for a moment."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing_jobs.shared_answers import SharedAnswers

MAX_BYTES, OF_TENANT = 100_000, 40_000


class Tables:
    """What is looked up in them, how often, and by a clock of the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looked_up: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_away = False
        self.answers = SharedAnswers(2, lambda: self.now_s, max_bytes=MAX_BYTES, max_bytes_of_tenant=OF_TENANT)

    async def ask(self, tenant: str, question: str, size: int = 5) -> bytes:
        async def look_up() -> bytes:
            self.looked_up.append(question)
            await self.gate.wait()
            if self.is_away:
                raise OSError("away")
            return bytes(size)

        return await self.answers.answer(tenant, (tenant, question), look_up)


async def test_a_page_that_everybody_watches_asks_the_tables_once_in_two_seconds() -> None:
    tables = Tables()
    for second in range(8):
        tables.now_s = second / 2
        await tables.ask("acme", "spend")
    assert len(tables.looked_up) == 2


async def test_who_asks_what_is_being_looked_up_gets_that_answer_and_takes_it_from_nobody() -> None:
    tables = Tables()
    tables.gate.clear()
    asking = [asyncio.ensure_future(tables.ask("acme", "spend")) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.sleep(0)
    tables.gate.set()
    assert [await each for each in asking[1:]] == [bytes(5)] * 2
    assert len(tables.looked_up) == 1


async def test_a_failure_is_told_to_all_who_wait_and_is_not_kept() -> None:
    tables = Tables()
    tables.is_away = True
    told = await asyncio.gather(*(tables.ask("acme", "spend") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in told] == [OSError] * 3
    tables.is_away = False
    assert await tables.ask("acme", "spend") == bytes(5)
    assert len(tables.looked_up) == 2


async def test_the_same_words_of_two_tenants_are_two_questions() -> None:
    tables = Tables()
    await tables.ask("acme", "spend")
    await tables.ask("globex", "spend")
    assert len(tables.looked_up) == 2


async def test_a_tenant_that_asks_for_much_pushes_out_its_own() -> None:
    tables = Tables()
    await tables.ask("globex", "spend", 30_000)
    for number in range(10):
        await tables.ask("acme", f"much {number}", 15_000)
    await tables.ask("globex", "spend", 30_000)
    assert tables.looked_up.count("spend") == 1
    await tables.ask("acme", "more than it may keep", OF_TENANT)
    await tables.ask("acme", "more than it may keep", OF_TENANT)
    assert tables.looked_up.count("more than it may keep") == 2


@pytest.mark.parametrize("keep_s", [0.0])
async def test_where_nothing_is_kept_each_question_is_looked_up(keep_s: float) -> None:
    answers = SharedAnswers(keep_s, lambda: 0.0, max_bytes=MAX_BYTES, max_bytes_of_tenant=OF_TENANT)
    looked_up: list[bytes] = []

    async def look_up() -> bytes:
        looked_up.append(b"x")
        return b"x"

    for _ in range(2):
        await answers.answer("acme", "spend", look_up)
    assert (len(looked_up), answers.kept_bytes) == (2, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(0, 60_000), st.floats(0, 1)), max_size=60
    )
)
def test_what_is_kept_is_bounded_whatever_is_asked(asked: list[tuple[str, int, int, float]]) -> None:
    async def ask_all() -> None:
        tables = Tables()
        for tenant, question, size, wait_s in asked:
            tables.now_s += wait_s
            await tables.ask(tenant, f"{question} {size}", size)
            assert tables.answers.kept_bytes <= MAX_BYTES

    asyncio.run(ask_all())
