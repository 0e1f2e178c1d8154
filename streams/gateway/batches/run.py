"""One batch, for as long as this gateway holds it: reads, decides, publishes, writes down what that covers.

| killed after | then |
|---|---|
| 1 the batch is held | its lease ends 15 s later, and another gateway holds it |
| 2 its file read, broken lines told in this lease's part | it is read again; nobody reads that part |
| 3 validated, with where results are read from | nothing is read again |
| 4 lines published | they are published again under the same ids: admission decides each once |
| 5 that they were sent | nothing |
| 6 results written to this lease's part | they are read again from the log; the part is as long as it was |
| 7 that their lines have ended, how long the part is, where results are read on | nothing: a line ends once |
| 8 files made of the parts | made again under the same ids, alike |
| 9 that the batch has ended | its parts are removed by who holds it next |
| 10 parts removed | removed again |

Whoever has lost a lease writes to parts that nobody reads, changes nothing in the database, and publishes lines that
are on the log already.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pydantic import ValidationError

from schemas.batch import BatchResult
from streams.blobs.port import BlobChanged, BlobMissing, Blobs, name_of
from streams.clocks import monotonic_ms
from streams.gateway.batches import core
from streams.gateway.batches.cancelling import Cancelling
from streams.gateway.batches.core import FINAL, SENT_TOGETHER, Held, Next, Part, Problem, Status, next_of
from streams.gateway.batches.line_log import LineLog, SignedLine
from streams.gateway.batches.lines import BrokenLine, Line, custom_id_of, read_line
from streams.gateway.batches.listening import Listening
from streams.gateway.batches.port import LEASE_MS, Batches, Event
from streams.gateway.batches.results import Results
from streams.gateway.batches.source import Source
from streams.gateway.batches.told import Place, Told, not_run, told_of
from streams.gateway.batches.validation import Validation
from streams.gateway.files.port import Files, StoredFile, blob_of
from streams.settings import MAX_BODY_BYTES, BatchSettings
from streams.topics import DAY_MS

VALIDATED_TOGETHER: Final = 128
SWEPT_TOGETHER: Final = 1_024
SAVED_LINES: Final = 256
SAVED_BYTES: Final = 4_194_304
SAVED_AFTER_MS: Final = 500
FULL_BYTES: Final = 16_777_216
"""Of results that wait to be written; no more are read meanwhile."""
LOOK_EVERY_MS: Final = 2_000
"""At what stands: it may be cancelled."""
RENEW_EVERY_MS: Final = LEASE_MS // 4
WAIT_S: Final = 0.5
OUTPUT, ERRORS = "output", "errors"

_log = structlog.get_logger()


class LostLease(Exception):
    """Somebody else holds the batch."""


@dataclass(frozen=True, slots=True)
class Services:
    """`killed_after`: told of every step of the table above, for who kills there."""

    batches: Batches
    files: Files
    blobs: Blobs
    log: LineLog
    results: Results
    options: BatchSettings
    clock_ms: Callable[[], int]
    killed_after: Callable[[int], None] = lambda _step: None


@dataclass(frozen=True, slots=True)
class _Arrived:
    custom_id: str
    value: bytes


class BatchRun:
    """`step` again and again, until it says that nothing is left to be done here."""

    def __init__(self, held: Held, services: Services) -> None:
        self.held = held
        self._services = services
        self._arrived: dict[int, _Arrived] = {}
        self._arrived_bytes = 0
        self._arrived_at_ms = 0
        self._has_arrived = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._source: Source | None = None
        self._unsent: list[Line] = []
        self._cancelling = Cancelling(services.log, services.clock_ms)
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
        await self._has_room.wait()

    def take(self, place: Place, value: bytes) -> None:
        if place.line in self._arrived or not self._is_awaited(place.line):
            return
        if not self._arrived:
            self._arrived_at_ms = monotonic_ms()
        self._arrived[place.line] = _Arrived(place.custom_id, value)
        self._count_arrived(len(value))
        self._has_arrived.set()

    def _count_arrived(self, size_bytes: int) -> None:
        self._arrived_bytes += size_bytes
        if self._arrived_bytes < FULL_BYTES:
            self._has_room.set()
        else:
            self._has_room.clear()

    # Steps

    def doubt(self) -> None:
        """Something failed: what stands is looked at before anything else is done."""
        self._is_unsure = True

    async def step(self) -> bool:
        """Raises LostLease, and what may pass: MetadataUnavailable, BlobsUnavailable, LogError, TimeoutError."""
        if self._is_unsure or monotonic_ms() - self._looked_at_ms >= RENEW_EVERY_MS:
            await self._look()
        self._listening.begin(self.held)
        following = next_of(self.held, self._services.clock_ms(), self._services.options.lines_in_flight)
        if self._arrived and (following not in (Next.COLLECT, Next.SEND) or self._is_due()):
            await self._save_arrived()
            return True
        try:
            await self._do(following)
        except BlobMissing:
            await self._break("input_file_missing", "The batch's input file is not there any more.")
        except BlobChanged:
            await self._break("input_file_changed", "The batch's input file is not what it was.")
        return following is not Next.TIDY and following is not Next.NOTHING

    async def _do(self, following: Next) -> None:
        if self._cancelling.is_due(self.held, following):
            await self._cancelling.cancel(self.held, self._source_from(0, 0), self._keep)
        elif following is Next.VALIDATE:
            await self._validate()
        elif following is Next.SEND:
            await self._send()
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

    async def _break(self, code: str, message: str) -> None:
        await self._close_source()
        problem = Problem(code=code, message=message)
        _log.error("batch_broken", batch_id=self.batch_id, why=code)
        await self._change(lambda held, now_ms: core.broken(held, problem, now_ms))

    async def _change(self, event: Event) -> None:
        """Raises LostLease."""
        self._stands(await self._services.batches.change(self.held, event))

    async def _look(self) -> None:
        self._stands(await self._services.batches.renew(self.held))
        self._is_unsure = False

    def _stands(self, held: Held | None) -> None:
        if held is None:
            raise LostLease
        self._looked_at_ms = monotonic_ms()
        self.held = held
        for line in [line for line in self._arrived if not self._is_awaited(line)]:
            self._count_arrived(-len(self._arrived.pop(line).value))

    def _is_awaited(self, line: int) -> bool:
        batch, progress = self.held.batch, self.held.progress
        return batch.status not in FINAL and line < batch.total and not progress.has_ended(line)

    async def _keep(self) -> None:
        """The lease, in the middle of what takes long."""
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
            while (lines := await source.take(VALIDATED_TOGETHER)) and not found.has_too_many:
                errors = await asyncio.to_thread(found.add, lines)
                if errors:
                    await services.blobs.append(self._part_name(part.epoch, ERRORS), part.error_bytes, errors)
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
        signed, told = await asyncio.to_thread(self._signed, lines)
        too_large = await services.log.publish(signed)
        services.killed_after(4)
        for each in too_large:
            message = "The line is larger than a record may be."
            told[each.line] = self._not_run(each.line, each.custom_id, "line_too_large", message)
        last = lines[-1]
        await self._save(told, lambda held, _: core.sent(held, last.number + 1, last.end))
        self._unsent = []
        services.killed_after(5)

    async def _taken(self, source: Source) -> list[Line]:
        room = self._services.options.lines_in_flight - self.held.progress.in_flight
        try:
            return await source.take(min(room, SENT_TOGETHER))
        except BaseException:
            await self._close_source()  # It is read again from what was sent.
            raise

    def _signed(self, lines: Sequence[Line]) -> tuple[list[SignedLine], dict[int, Told]]:
        """On a thread. Of lines that have not ended; and what is told of those that cannot run after all, as where this
        release takes less than the one that read them first.
        """
        held, now_ms = self.held, self._services.clock_ms()
        signed: list[SignedLine] = []
        told: dict[int, Told] = {}
        for line in lines:
            if line.number >= held.batch.total or held.progress.has_ended(line.number):
                continue
            try:
                asked = read_line(line.raw, held.batch.endpoint)
            except BrokenLine as broken:
                told[line.number] = self._not_run(
                    line.number, broken.custom_id, broken.code, broken.message, broken.param
                )
            else:
                signed.append(self._services.log.signed(held.batch, line.number, asked, now_ms))
        return signed, told

    def _not_run(self, line: int, custom_id: str, code: str, message: str = "", param: str | None = None) -> Told:
        return not_run(self._services.log.id_of(self.held.batch, line), custom_id, code, message, param)

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
            await self._look()
        self._has_arrived.clear()
        try:
            async with asyncio.timeout(SAVED_AFTER_MS / 1_000 / 10 if self._arrived else WAIT_S):
                await self._has_arrived.wait()
        except TimeoutError:
            return

    def _is_due(self) -> bool:
        """All that is on its way has arrived, or enough of it, or the first of it long ago."""
        return (
            len(self._arrived) >= min(SAVED_LINES, self.held.progress.in_flight)
            or self._arrived_bytes >= SAVED_BYTES
            or monotonic_ms() - self._arrived_at_ms >= SAVED_AFTER_MS
        )

    async def _save_arrived(self) -> None:
        positions = self._services.results.reached()
        arrived = dict(self._arrived)
        told = await asyncio.to_thread(self._told, arrived)
        await self._save(told, positions=positions)
        for line, each in arrived.items():
            if self._arrived.get(line) is each:
                self._count_arrived(-len(self._arrived.pop(line).value))
        self._arrived_at_ms = monotonic_ms()

    def _told(self, arrived: Mapping[int, _Arrived]) -> dict[int, Told]:
        """On a thread."""
        return {line: self._told_of(line, each) for line, each in arrived.items()}

    def _told_of(self, line: int, arrived: _Arrived) -> Told:
        try:
            result = BatchResult.model_validate_json(arrived.value)
            return told_of(result, arrived.custom_id, self.held.batch.endpoint)
        except ValidationError:
            return self._not_run(line, arrived.custom_id, "result_unreadable", "The line's result cannot be read.")

    async def _save(
        self, told: Mapping[int, Told], also: Event | None = None, *, positions: Sequence[int] | None = None,
        swept: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """That lines have ended, with what they told, and what else has happened."""
        part = self.held.progress.part(self.held.epoch)
        size_bytes = sum(len(each.text) for each in told.values() if each.is_well)
        size_bytes += sum(each.output_bytes for each in self.held.progress.parts)
        if size_bytes > self._services.options.max_output_bytes:
            told = {line: self._without_room(line, each) for line, each in told.items()}
        outputs = b"".join(each.text for each in told.values() if each.is_well)
        errors = b"".join(each.text for each in told.values() if not each.is_well)
        try:
            if outputs:
                await self._services.blobs.append(self._part_name(part.epoch, OUTPUT), part.output_bytes, outputs)
            if errors:
                await self._services.blobs.append(self._part_name(part.epoch, ERRORS), part.error_bytes, errors)
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
            if told or swept is not None or positions is not None:
                held = core.collected(held, ended, after, positions, swept)
            return held

        await self._change(event)
        if told:
            self._services.killed_after(7)

    def _without_room(self, line: int, told: Told) -> Told:
        if not told.is_well:
            return told
        message = "The request was answered, and is billed, but the batch's output file has no room for its answer."
        return self._not_run(line, told.custom_id, "output_too_large", message)

    # The rest will not run

    async def _sweep(self) -> None:
        progress, batch = self.held.progress, self.held.batch
        code = "batch_cancelled" if batch.status is Status.CANCELLING else "batch_expired"
        await self._close_source()
        source = self._source_from(progress.swept_lines, progress.swept_bytes)
        try:
            lines = await source.take(SWEPT_TOGETHER)
        finally:
            await source.close()
        if not lines:
            raise BlobChanged(batch.input_file_id)
        told = await asyncio.to_thread(self._swept, lines, code)
        await self._save(told, swept=(lines[-1].number + 1, lines[-1].end))

    def _swept(self, lines: Iterable[Line], code: str) -> dict[int, Told]:
        """On a thread."""
        return {
            line.number: self._not_run(line.number, custom_id_of(line.raw), code)
            for line in lines
            if line.number < self.held.batch.total and not self.held.progress.has_ended(line.number)
        }

    # 8, 9, 10: files are made

    async def _assemble(self) -> None:
        services = self._services
        self._listening.end()
        await self._close_source()
        try:
            output_id = await self._file_of(OUTPUT, sum(part.output_bytes for part in self.held.progress.parts))
            error_id = await self._file_of(ERRORS, sum(part.error_bytes for part in self.held.progress.parts))
        except (BlobMissing, BlobChanged):
            await self._lose_output()
            return
        services.killed_after(8)
        await self._change(lambda held, now_ms: core.finished(held, output_id, error_id, now_ms))
        services.killed_after(9)
        _log.info("batch_ended", batch_id=self.batch_id, status=self.held.batch.status.value)

    async def _lose_output(self) -> None:
        _log.error("batch_output_lost", batch_id=self.batch_id)
        await self.give_up("output_lost", "What the batch's lines told is not there any more.")

    async def _file_of(self, kind: str, size_bytes: int) -> str | None:
        """The same each time: the parts do not change any more."""
        if not size_bytes:
            return None
        batch, services = self.held.batch, self._services
        file_id = f"file-{kind}-{batch.batch_id.removeprefix('batch_')}"
        await services.files.begin(batch.tenant_id, file_id)
        written = await services.blobs.write(blob_of(file_id), self._parts_of(kind))
        file = StoredFile(
            file_id, batch.tenant_id, f"{batch.batch_id}_{kind}.jsonl", "batch_output", written.size_bytes,
            written.sha256, 0, None,
        )  # fmt: skip
        made = await services.files.complete(file, None, services.options.kept_days * DAY_MS)
        return None if made is None else file_id

    async def _parts_of(self, kind: str) -> AsyncIterator[bytes]:
        for part in self.held.progress.parts:
            size_bytes = part.output_bytes if kind == OUTPUT else part.error_bytes
            if size_bytes:
                name = self._part_name(part.epoch, kind)
                async with aclosing(self._services.blobs.read(name, 0, size_bytes)) as pieces:
                    async for piece in pieces:
                        yield piece
                        await self._keep()

    async def _tidy(self) -> None:
        self._listening.end()
        await self._cancelling.cancel_untold(self.held)
        await self._services.blobs.delete_under(name_of("batches", self.batch_id))
        self._services.killed_after(10)
        await self._change(lambda held, _: core.tidied(held))

    def _part_name(self, epoch: int, kind: str) -> str:
        return name_of("batches", self.batch_id, f"{epoch}.{kind}")

    async def close(self) -> None:
        self._listening.end()
        self._has_room.set()
        await self._close_source()
