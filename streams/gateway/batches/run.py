"""One batch, for as long as this gateway holds it: reads, decides, publishes, writes down what that covers.

| killed after | then |
|---|---|
| 1 the batch is held | its lease ends 15 s later, and another gateway holds it |
| 2 its file read, broken lines told in this lease's part | it is read again; nobody reads that part |
| 3 validated, with where results are read from | nothing is read again |
| 4 lines published | they are published again under the same ids: admission decides each once |
| 5 that they were sent | nothing |
| cancels of sent lines published | they are published again, of those that have not ended |
| 6 results written to this lease's part | they are read again from the log; the part is as long as it was |
| 7 that their lines have ended, how long the part is, where results are read on | nothing: a line ends once |
| 8 files made of the parts | made again under the same ids, alike |
| 9 that the batch has ended | its parts are removed by who holds it next |
| 10 parts removed | removed again |

Whoever was not told that a write is done goes on under a new number, with parts of its own: what comes of it late is as
if a former holder had written it. Whoever has lost a lease writes to parts that nobody reads, changes nothing in the
database, and publishes lines that are on the log already.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from streams.blobs.port import BlobChanged, BlobMissing, Blobs, BlobsUnavailable, name_of
from streams.clocks import monotonic_ms
from streams.gateway.batches import core
from streams.gateway.batches.arrivals import Arrivals, Arrived
from streams.gateway.batches.cancelling import Cancelling
from streams.gateway.batches.core import FINAL, SENT_TOGETHER, Batch, Held, Next, Part, Problem, Status, next_of
from streams.gateway.batches.ends import Ends
from streams.gateway.batches.line_log import LineLog
from streams.gateway.batches.lines import Line
from streams.gateway.batches.listening import Listening
from streams.gateway.batches.making import ERRORS, OUTPUT, Kind, Making, part_bytes, part_name
from streams.gateway.batches.port import LEASE_MS, Batches, Event
from streams.gateway.batches.results import Results
from streams.gateway.batches.source import Source
from streams.gateway.batches.told import Place, Told
from streams.gateway.batches.validation import Validation
from streams.gateway.files.port import Files, blob_of
from streams.settings import MAX_BODY_BYTES, BatchSettings
from streams.topics import DAY_MS

VALIDATED_TOGETHER: Final = 128
SWEPT_TOGETHER: Final = 1_024
LOOK_EVERY_MS: Final = 2_000
"""At what stands: it may be cancelled."""
RENEW_EVERY_MS: Final = LEASE_MS // 4
BEAT_EVERY_S: Final = LEASE_MS / 4_000

_log = structlog.get_logger()


class LostLease(Exception):
    """Somebody else holds the batch."""


@dataclass(frozen=True, slots=True)
class Services:
    """`killed_after`: told of every step of the table above, for who kills there. `changed`: told of every change of a
    batch that this gateway holds, what it was and what it is.
    """

    batches: Batches
    files: Files
    blobs: Blobs
    log: LineLog
    results: Results
    options: BatchSettings
    clock_ms: Callable[[], int]
    killed_after: Callable[[int], None] = lambda _step: None
    changed: Callable[[Batch, Batch], None] = lambda _before, _after: None


class BatchRun:
    """`step` again and again, until it says that nothing is left to be done here."""

    def __init__(self, held: Held, services: Services) -> None:
        self.held = held
        self._services = services
        self._arrivals = Arrivals()
        self._source: Source | None = None
        self._unsent: list[Line] = []
        self._cancelling = Cancelling(services.log, services.clock_ms)
        self._knows_log = held.batch.status is Status.VALIDATING
        self._unread: dict[int, int] | None = None
        self._is_writing = False
        self._is_unsure = False
        self._looked_at_ms = monotonic_ms()
        self._listening = Listening(services.results, self)
        services.killed_after(1)

    # Of results

    @property
    def batch_id(self) -> str:
        return self.held.batch.batch_id

    @property
    def positions(self) -> tuple[int, ...]:
        return self.held.progress.positions

    async def room(self) -> None:
        await self._arrivals.room()

    def take(self, place: Place, value: bytes) -> None:
        if self._is_awaited(place.line):
            self._arrivals.put(place.line, Arrived(place.custom_id, value))

    # Steps

    def doubt(self) -> None:
        """Something failed: what stands is looked at before anything else is done."""
        self._is_unsure = True

    async def step(self) -> bool:
        """Raises LostLease, and what may pass: MetadataUnavailable, BlobsUnavailable, LogError, TimeoutError."""
        if self._is_unsure or monotonic_ms() - self._looked_at_ms >= RENEW_EVERY_MS:
            await self._look()
        self._listening.begin(self.held)
        following = await self._following()
        is_due = self._arrivals.is_due(self.held.progress.in_flight)
        if self._arrivals and (following not in (Next.COLLECT, Next.SEND) or is_due):
            await self._save_arrived()
            return True
        try:
            await self._do(following)
        except BlobMissing:
            await self.break_off("input_file_missing", "The batch's input file is not there any more.")
        except BlobChanged:
            await self.break_off("input_file_changed", "The batch's input file is not what it was.")
        return following is not Next.TIDY and following is not Next.NOTHING

    async def _following(self) -> Next:
        following = self._next()
        if following in (Next.SEND, Next.RESEND, Next.COLLECT) and not self._knows_log:
            await self._know_log()
            following = self._next()
        if not core.is_read_first(self.held, following, self._services.clock_ms()):
            self._unread = None
            return following
        return following if await self._has_read_all() else Next.COLLECT

    def _next(self) -> Next:
        return next_of(self.held, self._services.clock_ms(), self._services.options.lines_in_flight)

    async def _know_log(self) -> None:
        """A log that ends before where results are read on is another one, or has lost its end."""
        results, positions = self._services.results, self.positions
        ends = await results.ends()
        found = tuple(at if at <= end else 0 for at, end in zip(positions, ends, strict=False))
        if found != positions:
            _log.error("batch_log_lost", batch_id=self.batch_id, positions=positions, ends=ends)
            await self._change(lambda held, _: core.log_lost(held, found))
            results.follow(self)
        self._knows_log = True

    async def _has_read_all(self) -> bool:
        """Whether all was told that stood on the log when this was first asked."""
        if self._unread is None:
            self._unread = await self._services.results.unread(self)
        reached = self._services.results.reached(self)
        self._unread = {number: end for number, end in self._unread.items() if reached[number] < end}
        return not self._unread

    async def _do(self, following: Next) -> None:
        if self._cancelling.is_due(self.held, following):
            await self._cancelling.cancel(self.held, self._source_from(0, 0), self._keep)
        elif following is Next.VALIDATE:
            await self._validate()
        elif following is Next.SEND:
            await self._send()
        elif following is Next.RESEND:
            await self._resend()
        elif following is Next.COLLECT:
            await self._collect()
        elif following is Next.CLOSE:
            await self._change(core.closed)
        elif following is Next.SWEEP:
            await self._sweep()
        elif following is Next.ASSEMBLE:
            await self._assemble()
        elif following is Next.TIDY:
            await self._tidy()
        elif following is Next.GIVE_UP:
            await self.give_up("given_up", "The batch's files could not be made in time.")

    async def give_up(self, code: str, message: str) -> None:
        """It ends, without files."""
        problem = Problem(code=code, message=message)
        await self._change(lambda held, now_ms: core.lost(held, problem, now_ms))

    async def break_off(self, code: str, message: str) -> None:
        """Nothing more is begun: it ends with what was answered. Asked for again, it ends without files."""
        await self._close_source()
        problem = Problem(code=code, message=message)
        _log.error("batch_broken", batch_id=self.batch_id, why=code)
        await self._change(lambda held, now_ms: core.broken(held, problem, now_ms))

    async def _change(self, event: Event) -> None:
        """Raises LostLease."""
        self._is_writing = True
        self._stands(await self._services.batches.change(self.held, event))

    async def _append(self, part: Part, kind: Kind, data: bytes) -> None:
        """To what counts of the part. Raises BlobMissing."""
        self._is_writing = True
        name = part_name(self.batch_id, part.epoch, kind)
        await self._services.blobs.append(name, part_bytes(part, kind), data)
        self._is_writing = False

    async def _look(self) -> None:
        batches = self._services.batches
        # What was not acknowledged may come late, over what is written then: it finds another number, and other parts.
        self._stands(await (batches.renumber if self._is_writing else batches.renew)(self.held))
        self._is_unsure = False

    def _stands(self, held: Held | None) -> None:
        if held is None:
            raise LostLease
        self._is_writing = False
        self._looked_at_ms = monotonic_ms()
        self._services.changed(self.held.batch, held.batch)
        self.held = held
        self._arrivals.keep(self._is_awaited)

    def _is_awaited(self, line: int) -> bool:
        batch, progress = self.held.batch, self.held.progress
        return batch.status not in FINAL and line < batch.total and not progress.has_ended(line)

    async def beat(self) -> None:
        """Until cancelled, beside the steps: renews the lease while one of them takes long. That it is lost is found by
        who looks.
        """
        while True:
            await asyncio.sleep(BEAT_EVERY_S)
            if monotonic_ms() - self._looked_at_ms < RENEW_EVERY_MS:
                continue
            try:
                await self._services.batches.renew(self.held)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next step meets it too
                _log.warning("batch_lease_not_renewed", batch_id=self.batch_id, why=str(error)[:200], repeats=True)

    async def _keep(self) -> None:
        """What stands is looked at in the middle of what takes long, too."""
        if monotonic_ms() - self._looked_at_ms >= RENEW_EVERY_MS:
            await self._look()

    # 2, 3: the file is read

    async def _validate(self) -> None:
        services, batch = self._services, self.held.batch
        file = await services.files.one(batch.tenant_id, batch.input_file_id)
        if file is None:
            raise BlobMissing(batch.input_file_id)
        positions = await services.results.ends()
        found = Validation(batch.endpoint, services.options.max_lines, partial(services.log.id_of, batch))
        part = Part(epoch=self.held.epoch)
        source = self._source_from(0, 0)
        try:
            while not source.has_ended and not found.has_too_many:
                errors = await asyncio.to_thread(found.add, await source.take(VALIDATED_TOGETHER))
                if errors:
                    await self._append(part, ERRORS, errors)
                    part = part.model_copy(update={"error_bytes": part.error_bytes + len(errors)})
                await self._keep()
                if self.held.batch.status is not Status.VALIDATING:
                    return
            if not found.has_too_many and source.sha256 != file.sha256:
                raise BlobChanged(batch.input_file_id)
        finally:
            await source.close()
        services.killed_after(2)
        problems, ended = found.problems(), found.ended
        if problems:
            await self._change(lambda held, now_ms: core.refused(held, problems, now_ms))
        else:
            await self._change(
                lambda held, now_ms: core.validated(held, found.total, found.failed, ended, part, positions, now_ms)
            )
        services.killed_after(3)

    # 4, 5: lines are sent

    async def _send(self) -> None:
        services, held = self._services, self.held
        if self._source is None:
            await self._check_file()
            self._source = self._source_from(held.progress.sent_lines, held.progress.sent_bytes)
        # Those of a step that failed are taken once more.
        lines = self._unsent = self._unsent or await self._taken(self._source)
        if not lines:
            raise BlobChanged(held.batch.input_file_id)
        told = await self._published(lines)
        last = lines[-1]
        await self._save(told, lambda held, _: core.sent(held, last.number + 1, last.end))
        self._unsent = []
        services.killed_after(5)

    async def _published(self, lines: Sequence[Line]) -> dict[int, Told]:
        """What is told of those of them that cannot run after all."""
        services, ends = self._services, self._ends()
        signed, told = await asyncio.to_thread(ends.signed, lines, services.clock_ms())
        too_large = await services.log.publish(signed)
        services.killed_after(4)
        for each in too_large:
            message = "The line is larger than a record may be."
            told[each.line] = ends.not_run(each.line, each.custom_id, "line_too_large", message)
        return told

    async def _resend(self) -> None:
        """What is on its way is written again, under the ids that it has."""
        progress, asked_ms = self.held.progress, self._services.clock_ms()
        _log.warning("batch_lines_written_again", batch_id=self.batch_id, lines=progress.in_flight)
        await self._check_file()
        source = self._source_from(0, 0)
        try:
            while lines := [
                each for each in await source.next(SENT_TOGETHER, self._keep) if each.number < progress.sent_lines
            ]:
                if told := await self._published(lines):
                    await self._save(told)
                await self._keep()
                if self.held.batch.status is not Status.IN_PROGRESS:
                    return
        finally:
            await source.close()
        await self._change(lambda held, now_ms: core.resent(held, max(now_ms, asked_ms)))

    async def _taken(self, source: Source) -> list[Line]:
        room = self._services.options.lines_in_flight - self.held.progress.in_flight
        try:
            return await source.next(min(room, SENT_TOGETHER), self._keep)
        except BaseException:
            await self._close_source()  # It is read again from what was sent.
            raise

    def _ends(self) -> Ends:
        return Ends(self._services.log, self.held)

    async def _check_file(self) -> None:
        """It is the one that was validated. Raises BlobMissing, BlobChanged."""
        batch = self.held.batch
        file = await self._services.files.one(batch.tenant_id, batch.input_file_id)
        if file is None:
            raise BlobMissing(batch.input_file_id)
        digest = hashlib.sha256()
        async with aclosing(self._services.blobs.read(blob_of(file.file_id))) as pieces:
            async for piece in pieces:
                digest.update(piece)
                await self._keep()
        if digest.hexdigest() != file.sha256:
            raise BlobChanged(batch.input_file_id)

    def _source_from(self, number: int, at: int) -> Source:
        name = blob_of(self.held.batch.input_file_id)
        return Source(self._services.blobs, name, MAX_BODY_BYTES, number=number, at=at)

    async def _close_source(self) -> None:
        source, self._source, self._unsent = self._source, None, []
        if source is not None:
            await source.close()

    # 6, 7: results are written

    async def _collect(self) -> None:
        if monotonic_ms() - self._looked_at_ms >= LOOK_EVERY_MS:
            await self._look_on()
        await self._arrivals.wait()

    async def _look_on(self) -> None:
        """As `_look`; who holds it next reads results on from where this one has read them, if none waits here."""
        reached, positions = self._services.results.reached(self), self.positions
        if self._arrivals or reached == positions or any(map(int.__lt__, reached, positions)):
            await self._look()
        else:
            await self._change(lambda held, _: core.read_on(held, reached))

    async def _save_arrived(self) -> None:
        arrived = self._arrivals.first()
        # Where more waits its place is not passed: whoever holds the batch next would not read it.
        positions = self._services.results.reached(self) if len(arrived) == len(self._arrivals) else None
        told = await asyncio.to_thread(self._ends().told, arrived)
        await self._save(told, positions=positions)
        self._arrivals.written(arrived)

    async def _save(
        self, told: Mapping[int, Told], also: Event | None = None, *, positions: Sequence[int] | None = None,
        swept: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """That lines have ended, with what they told, and what else has happened."""
        part = self.held.progress.part(self.held.epoch)
        size_bytes = sum(len(each.text) for each in told.values() if each.is_well)
        size_bytes += sum(each.output_bytes for each in self.held.progress.parts)
        if size_bytes > self._services.options.max_output_bytes:
            told = self._ends().without_room(told)
        outputs = b"".join(each.text for each in told.values() if each.is_well)
        errors = b"".join(each.text for each in told.values() if not each.is_well)
        try:
            if outputs:
                await self._append(part, OUTPUT, outputs)
            if errors:
                await self._append(part, ERRORS, errors)
        except BlobMissing:
            await self._lose_output()
            return
        after = Part(
            epoch=part.epoch, output_bytes=part.output_bytes + len(outputs), error_bytes=part.error_bytes + len(errors)
        )
        if told:
            self._services.killed_after(6)
        ended = {line: each.is_well for line, each in told.items()}

        def event(held: Held, now_ms: int) -> Held:
            if also is not None:
                held = also(held, now_ms)
            if told or also is not None:
                held = core.stirred(held, now_ms)
            if told or swept is not None or positions is not None:
                held = core.collected(held, ended, after, positions, swept)
            return held

        await self._change(event)
        if told:
            self._services.killed_after(7)

    # The rest will not run

    async def _sweep(self) -> None:
        progress, batch = self.held.progress, self.held.batch
        code = "batch_cancelled" if batch.status is Status.CANCELLING else "batch_expired"
        await self._close_source()
        source = self._source_from(progress.swept_lines, progress.swept_bytes)
        try:
            lines = await source.next(SWEPT_TOGETHER, self._keep)
        finally:
            await source.close()
        if not lines:
            raise BlobChanged(batch.input_file_id)
        told = await asyncio.to_thread(self._ends().swept, lines, code)
        await self._save(told, swept=(lines[-1].number + 1, lines[-1].end))

    # 8, 9, 10: files are made

    async def _assemble(self) -> None:
        services = self._services
        self._listening.end()
        await self._close_source()
        making = Making(services.files, services.blobs, services.options.kept_days * DAY_MS, self._keep)
        try:
            output_id = await making.file_of(self.held, OUTPUT)
            error_id = await making.file_of(self.held, ERRORS)
        except BlobMissing:
            await self._lose_output()
            return
        except BlobChanged as changed:
            # By a former holder, whose write comes late: behind what counts, which is whole.
            raise BlobsUnavailable(f"{changed} was written to while it was read") from None
        services.killed_after(8)
        await self._change(lambda held, now_ms: core.finished(held, output_id, error_id, now_ms))
        services.killed_after(9)
        _log.info("batch_ended", batch_id=self.batch_id, status=self.held.batch.status.value)

    async def _lose_output(self) -> None:
        _log.error("batch_output_lost", batch_id=self.batch_id)
        await self.give_up("output_lost", "What the batch's lines told is not there any more.")

    async def _tidy(self) -> None:
        self._listening.end()
        await self._cancelling.cancel_untold(self.held)
        await self._services.blobs.delete_under(name_of("batches", self.batch_id))
        self._services.killed_after(10)
        await self._change(lambda held, _: core.tidied(held))

    async def close(self) -> None:
        self._listening.end()
        self._arrivals.close()
        await self._close_source()
