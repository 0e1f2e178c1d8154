"""The shell's talk with the claim store: what begins waits for nothing that has ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry

from gpu_consumers.core.claims import AskClaim, Claim, ClaimsUnavailable, FinishClaim, ReleaseClaim
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.shell.claiming import MARKS_AT_ONCE, MAX_CLAIM_MARKS, Claiming
from tests.unit.gpu_consumers.fleet import LEASE_MS, NOW_MS, Fleet

DEADLINE_S = 60.0


class ScriptedStore:
    """Takes marks while it `takes` them; `answers_marks` lets them wait."""

    def __init__(self) -> None:
        self.takes = 10**9
        self.answers_marks = asyncio.Event()
        self.answers_marks.set()
        self.told: list[list[str]] = []
        self.asked: list[str] = []
        self._heard = asyncio.Event()

    async def claim(self, asks: Sequence[AskClaim]) -> list[Claim | None]:
        self.asked += [ask.response_id for ask in asks]
        self._heard.set()
        return [Claim("leased", "another", 1_000) for _ in asks]

    async def renew(self) -> bool:
        return True

    async def finish(self, marks: Sequence[FinishClaim]) -> None:
        await self._take([mark.response_id for mark in marks])

    async def release(self, marks: Sequence[ReleaseClaim]) -> None:
        await self._take([mark.response_id for mark in marks])

    async def _take(self, ids: list[str]) -> None:
        self.told.append(ids)
        self._heard.set()
        await self.answers_marks.wait()
        if self.takes <= 0:
            raise ClaimsUnavailable("scripted")
        self.takes -= 1

    async def resign(self) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._heard.clear()
                await self._heard.wait()


@asynccontextmanager
async def claiming(store: ScriptedStore) -> AsyncIterator[Claiming]:
    core = Fleet("a").all[0].core
    shell = Claiming(
        core, store, WorkerMetrics(CollectorRegistry()), LEASE_MS, now_ms=lambda: NOW_MS, after_event=lambda: None
    )
    tasks = [asyncio.create_task(run()) for run in (shell.ask_claims, shell.tell_marks)]
    yield shell
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def slices_of(numbers: range) -> list[list[str]]:
    ids = [f"r{number}" for number in numbers]
    return [ids[at : at + MARKS_AT_ONCE] for at in range(0, len(ids), MARKS_AT_ONCE)]


async def test_a_claim_is_asked_for_while_marks_wait_for_their_answer() -> None:
    store = ScriptedStore()
    store.answers_marks.clear()
    async with claiming(store) as shell:
        shell.finish(FinishClaim("ended"))
        await store.until(lambda: bool(store.told))
        for response_id in ("r0", "r1", "r2"):
            shell.ask(AskClaim(response_id, "att"))
            await store.until(partial(store.asked.__contains__, response_id))
        assert store.told == [["ended"]]


async def test_marks_are_told_in_slices_and_after_a_failure_only_those_that_were_not_taken() -> None:
    store = ScriptedStore()
    store.takes = 1
    count = 2 * MARKS_AT_ONCE + 44
    async with claiming(store) as shell:
        for number in range(count):
            shell.finish(FinishClaim(f"r{number}"))
        shell.release(ReleaseClaim("released", "att"))
        await store.until(lambda: len(store.told) == 2)
        shell.finish(FinishClaim("later"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.told == slices_of(range(count))[:2], "nothing is tried behind the first that was not taken"
        store.takes = 10
        store.told.clear()
        renewing = asyncio.create_task(shell.keep_lease())
        await store.until(lambda: len(store.told) == 3)
        renewing.cancel()
    rest = [f"r{number}" for number in range(MARKS_AT_ONCE, count)] + ["later"]
    assert store.told == [rest[:MARKS_AT_ONCE], rest[MARKS_AT_ONCE:], ["released"]]


async def test_marks_that_a_store_never_takes_are_bounded() -> None:
    store = ScriptedStore()
    store.takes = 0
    async with claiming(store) as shell:
        for number in range(MAX_CLAIM_MARKS + 500):
            shell.finish(FinishClaim(f"r{number}"))
        await store.until(lambda: bool(store.told))
        store.takes = 10**9
        store.told.clear()
        await shell.flush()
    assert store.told[0][0] == "r500"
    assert sum(map(len, store.told)) == MAX_CLAIM_MARKS
