"""Who is answered when, of several tenants that ask much."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial

import pytest

from billing_jobs.readers import ReaderPool

MAX_WAITING = 8


class Reader:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.may_answer = threading.Semaphore(0)
        self.answered: list[str] = []

    def answer(self, name: str) -> str:
        self.may_answer.acquire()
        self.answered.append(name)
        return name

    def close(self) -> None:
        """It is nobody's."""


class Pool:
    """One reader, which answers with what it is asked."""

    def __init__(self) -> None:
        self.reader = Reader()
        self._pool = ReaderPool(
            lambda: self.reader, "reader", threads=1, max_waiting=MAX_WAITING, max_of_tenant=5, wait_s=60, answer_s=60,
        )  # fmt: skip
        self._asked: dict[str, asyncio.Task[str]] = {}

    async def asked(self, *names: str) -> None:
        """Questions come in this order, each by the tenant that its first letter names."""
        for name in names:
            self._asked[name] = asyncio.create_task(self._pool.ask(name[0], partial(Reader.answer, name=name)))
            await asyncio.sleep(0)

    async def outcome(self) -> dict[str, str]:
        """Of all, once the reader may answer."""
        for _ in self._asked:
            self.reader.may_answer.release()
        said = await asyncio.gather(*self._asked.values(), return_exceptions=True)
        return {name: str(each) for name, each in zip(self._asked, said, strict=True)}

    def close(self) -> None:
        for _ in self._asked:
            self.reader.may_answer.release()
        self._pool.close()


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    made = Pool()
    yield made
    made.close()


async def test_tenants_have_their_turns_one_after_the_other(pool: Pool) -> None:
    await pool.asked("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    await pool.outcome()
    assert pool.reader.answered == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_however_much_others_ask_who_asks_once_has_a_place(pool: Pool) -> None:
    await pool.asked(*(f"{tenant}{number}" for tenant in "abc" for number in range(4)))
    said = await pool.outcome()
    refused = {name for name, outcome in said.items() if outcome != name}
    assert len(said) - len(refused) == 1 + MAX_WAITING, "as many as there is room for"
    given = Counter(name[0] for name in said.keys() - refused)
    assert given == {"a": 4, "b": 3, "c": 2}, "of the first one runs; the others share what is left"
    assert "a1" not in refused
    assert {said[name] for name in refused} == {"too many queries wait", "too many queries wait, most of this tenant"}
