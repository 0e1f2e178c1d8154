"""Runs the batches that this gateway holds, each by itself, and looks for more of them. Whatever a batch meets, it ends
no gateway.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from streams.blobs.port import BlobsUnavailable
from streams.gateway.batches.core import FINAL, Held
from streams.gateway.batches.port import LEASE_MS
from streams.gateway.batches.run import BatchRun, LostLease, Services
from streams.log.port import LogError
from streams.metadata.unavailable import MetadataUnavailable

CLAIM_EVERY_S: Final = 1.0
FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 5.0
TURN_S: Final = 120.0
"""Where all places are taken and a batch waits, one that has had a place for so long gives it up after its step."""
REST_S: Final = LEASE_MS / 1_000
"""For how long nothing may succeed of a batch before it is left to others, and for how long it then is."""
CLOSE_TIMEOUT_S: Final = 2.0
PASSING: Final = (MetadataUnavailable, BlobsUnavailable, LogError, TimeoutError)
"""What may be otherwise a moment later."""

_log = structlog.get_logger()


class Runner:
    def __init__(self, services: Services, owner: str) -> None:
        self._services = services
        self._owner = owner
        self._runs: dict[asyncio.Task[None], BatchRun] = {}
        self._awoken = asyncio.Event()
        self._began_s: dict[asyncio.Task[None], float] = {}
        self._resting_until_s: dict[str, float] = {}
        """Batches that could not be gone on with here: another gateway has them first."""
        self._leaving: set[BatchRun] = set()
        """Those that give up their places."""

    @property
    def running(self) -> int:
        """Batches that are held here."""
        return len(self._runs)

    def wake(self) -> None:
        """There may be something to do."""
        self._awoken.set()

    async def run(self) -> None:
        """Until cancelled. Raises nothing else."""
        reading = asyncio.ensure_future(self._services.results.read())
        try:
            while True:
                await self._claim()
                self._awoken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLAIM_EVERY_S):
                        await self._awoken.wait()
        finally:
            reading.cancel()
            await self._stop(reading)

    async def _claim(self) -> None:
        free = self._services.options.at_once - len(self._runs)
        try:
            if free <= 0:
                await self._give_turns()
                return
            self._leaving.clear()
            for held in await self._services.batches.claim(self._owner, free, self._not_now()):
                self._start(held)
        except MetadataUnavailable as error:
            _log.warning("batches_not_claimed", why=str(error), repeats=True)
        except Exception as error:  # noqa: BLE001 - what is wrong with one batch keeps nobody from the others for ever
            _log.error("batches_not_claimed", why=type(error).__name__, repeats=True)

    def _not_now(self) -> list[str]:
        """What runs here already, and what rests."""
        now_s = asyncio.get_running_loop().time()
        self._resting_until_s = {name: at_s for name, at_s in self._resting_until_s.items() if at_s > now_s}
        return [*(run.batch_id for run in self._runs.values()), *self._resting_until_s]

    async def _give_turns(self) -> None:
        """The one that has run longest leaves; whoever claims next takes who has waited longest.

        Not in the middle of a step: a large file is read in one, or made, which would be begun anew at each turn.
        """
        over_s = asyncio.get_running_loop().time() - TURN_S
        staying = [task for task, run in self._runs.items() if run not in self._leaving]
        oldest = min(staying, key=self._began_s.__getitem__, default=None)
        if oldest is None or self._began_s[oldest] > over_s:
            return
        if await self._services.batches.is_any_free() and (run := self._runs.get(oldest)) is not None:
            self._leaving.add(run)

    def _start(self, held: Held) -> None:
        run = BatchRun(held, self._services)
        task = asyncio.ensure_future(self._drive(run))
        self._runs[task] = run
        self._began_s[task] = asyncio.get_running_loop().time()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        run = self._runs.pop(task)
        del self._began_s[task]
        self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("batch_run_failed", batch_id=run.batch_id, why=type(error).__name__)

    async def _drive(self, run: BatchRun) -> None:
        beating = asyncio.ensure_future(run.beat())
        try:
            await self._until_done(run)
        except LostLease:
            _log.warning("batch_held_elsewhere", batch_id=run.batch_id)
        finally:
            beating.cancel()
            await run.close()
            await self._release(run)

    async def _until_done(self, run: BatchRun) -> None:
        """Or until its turn is over, or has been good for nothing for as long as a lease. Raises LostLease."""
        wait_s, failing_since_s = FIRST_RETRY_S, None
        now_s = asyncio.get_running_loop().time
        while run not in self._leaving:
            try:
                if not await run.step():
                    return
                wait_s, failing_since_s = FIRST_RETRY_S, None
            except PASSING as error:
                run.doubt()
                failing_since_s = now_s() if failing_since_s is None else failing_since_s
                if now_s() - failing_since_s >= REST_S:
                    self._resting_until_s[run.batch_id] = now_s() + REST_S
                    return
                _log.warning("batch_waits", batch_id=run.batch_id, why=str(error)[:200], repeats=True)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LAST_RETRY_S)
            except LostLease:
                raise
            except Exception as error:  # noqa: BLE001 - a defect of ours: the same batch would meet it again
                _log.error("batch_failed", batch_id=run.batch_id, why=type(error).__name__)
                await self._fail(run)

    async def _fail(self, run: BatchRun) -> None:
        was_over = run.held.batch.status in FINAL
        try:
            await run.break_off("internal_error", "The batch met a fault of the service.")
            if was_over:  # Nothing was changed by that: the same step comes next.
                await asyncio.sleep(LAST_RETRY_S)
        except PASSING as error:
            _log.warning("batch_waits", batch_id=run.batch_id, why=str(error)[:200], repeats=True)
            run.doubt()
            await asyncio.sleep(LAST_RETRY_S)

    async def _release(self, run: BatchRun) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._services.batches.release(run.held)
        except (MetadataUnavailable, TimeoutError) as error:
            _log.warning("batch_not_released", batch_id=run.batch_id, why=str(error))  # Its lease ends by itself.

    async def _stop(self, *others: "asyncio.Future[None]") -> None:
        tasks = [*self._runs]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *others, return_exceptions=True)
        await self._services.results.close()
