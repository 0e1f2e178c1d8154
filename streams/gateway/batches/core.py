"""What a batch is, what happens to it, and what is to be done for it next. Pure: one function for each event.

A batch is `validating` until every line of its file has been read, `in_progress` while lines run, `finalizing` while
its files are made, and then `completed`, `expired` or `failed`; who is cancelled in between is `cancelling`, then
`cancelled`. A line has ended or has not: one bit. It ends once, whatever comes of it a second time.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

CANCEL_WAIT_MS: Final = 600_000
"""How long a batch that is cancelled waits for lines that are on their way, as OpenAI's do."""
EXPIRY_WAIT_MS: Final = 60_000
"""The same of one that has expired: its lines have the same deadline, and their ends come soon after it."""
GIVE_UP_AFTER_MS: Final = 24 * 3_600_000
"""Beyond its expiry: what could not be made into files by then never will be."""
READ_WAIT_MS: Final = GIVE_UP_AFTER_MS // 2
"""Beyond its expiry: what the log has not told by then is not waited for any more."""
STALLED_AFTER_MS: Final = 30 * 60_000
"""Where no line has been sent, or has ended, for so long, those on their way may be lost; or they wait for room."""
SENT_TOGETHER: Final = 64
"""Lines, if there are so many and they are small."""
MAX_ERRORS: Final = 50
"""Of a file that is refused, so many lines are named."""


class Status(StrEnum):
    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


FINAL: Final = frozenset((Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED))


class Next(Enum):
    """What is to be done."""

    VALIDATE = "read the whole file once"
    SEND = "more lines may be on their way"
    RESEND = "lines on their way may be lost"
    COLLECT = "wait for results"
    CLOSE = "no line is to run any more"
    SWEEP = "say of every line that has not ended that it will not run"
    ASSEMBLE = "make the files"
    TIDY = "remove what the files were made of"
    GIVE_UP = "it has had all its time"
    NOTHING = "nothing"


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_bytes="base64", val_json_bytes="base64")


class Problem(_Frozen):
    """Of a file that cannot be run. `line` counts from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Part(_Frozen):
    """What one holder of the batch, by its lease's number, has written of lines that ended: so many bytes of each blob
    count, and no more.
    """

    epoch: int
    output_bytes: int = 0
    error_bytes: int = 0


class Progress(_Frozen):
    """How far it has come. `ended`: a bit for each line. `sent_lines`: the first so many are on their way, or have
    ended; `sent_bytes` of the file hold them. `swept_*`: the same of lines that were told that they will not run.
    `positions`: where results are read on, by partition. `stirred_at_ms`: when a line was last sent, or ended;
    `resent`: how often all that are on their way were written again since.
    """

    ended: bytes = b""
    sent_lines: int = 0
    sent_bytes: int = 0
    swept_lines: int = 0
    swept_bytes: int = 0
    positions: tuple[int, ...] = ()
    stirred_at_ms: int = 0
    resent: int = 0
    parts: tuple[Part, ...] = ()

    def has_ended(self, line: int) -> bool:
        """`line` counts from 0."""
        return line >> 3 < len(self.ended) and bool(self.ended[line >> 3] & (1 << (line & 7)))

    @property
    def in_flight(self) -> int:
        """Lines that are on their way."""
        bits = int.from_bytes(self.ended, "little") & ((1 << self.sent_lines) - 1)
        return self.sent_lines - bits.bit_count()

    def part(self, epoch: int) -> Part:
        return next((part for part in self.parts if part.epoch == epoch), Part(epoch=epoch))


class Batch(_Frozen):
    """`stamps`: when it came to be what, by status."""

    batch_id: str
    tenant_id: str
    project_id: str
    key_id: str
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    created_at_ms: int
    expires_at_ms: int
    status: Status = Status.VALIDATING
    stamps: dict[Status, int] = Field(default_factory=dict)
    total: int = 0
    completed: int = 0
    failed: int = 0
    problems: tuple[Problem, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    outcome: Status = Status.COMPLETED
    """What it becomes once its files are made."""
    is_tidy: bool = False

    @property
    def unfinished(self) -> int:
        return self.total - self.completed - self.failed

    @property
    def is_open(self) -> bool:
        """Whether somebody has to do something for it."""
        return self.status not in FINAL or not self.is_tidy


class Held(_Frozen):
    """A batch and how far it has come, as they stand together. `epoch`: of who holds it."""

    batch: Batch
    progress: Progress = Progress()
    epoch: int = 0


# Events. Each is given what stands now, and says what stands then: the same where it comes too late.


def validated(
    held: Held, total: int, failed: int, ended: bytes, part: Part, positions: Sequence[int], now_ms: int
) -> Held:
    """Its file has been read: so many lines, of which those that cannot run have ended."""
    batch = held.batch
    if batch.status is not Status.VALIDATING:
        return held
    batch = batch.model_copy(update={**_becomes(batch, Status.IN_PROGRESS, now_ms), "total": total, "failed": failed})
    progress = Progress(ended=ended, positions=tuple(positions), parts=(part,))
    return _with(held, batch, progress)


def refused(held: Held, problems: Sequence[Problem], now_ms: int) -> Held:
    """Its file cannot be run at all."""
    if held.batch.status is not Status.VALIDATING:
        return held
    update = {**_becomes(held.batch, Status.FAILED, now_ms), "problems": tuple(problems[:MAX_ERRORS])}
    return _with(held, held.batch.model_copy(update=update), held.progress)


def sent(held: Held, lines: int, size_bytes: int) -> Held:
    """The first so many lines are on the log, or have ended."""
    if lines < held.progress.sent_lines:
        return held
    return _with(held, held.batch, held.progress.model_copy(update={"sent_lines": lines, "sent_bytes": size_bytes}))


def collected(
    held: Held, ended: Mapping[int, bool], part: Part, positions: Sequence[int] | None = None,
    swept: tuple[int, int] | None = None,
) -> Held:  # fmt: skip
    """Lines have ended, well or not; what they told stands in the part.

    `swept`: so far the file was read for lines that will not run.
    """
    batch, progress = held.batch, held.progress
    if batch.status in FINAL:
        return held
    new = [is_well for line, is_well in ended.items() if not progress.has_ended(line)]
    bits = bytearray(progress.ended)
    for line in ended:
        bits[line >> 3] |= 1 << (line & 7)
    parts = (*(each for each in progress.parts if each.epoch != part.epoch), part)
    update: dict[str, object] = {"ended": bytes(bits), "parts": parts}
    if positions is not None:
        update["positions"] = tuple(positions)
    if swept is not None:
        update |= {"swept_lines": swept[0], "swept_bytes": swept[1]}
    counts = {"completed": batch.completed + sum(new), "failed": batch.failed + len(new) - sum(new)}
    return _with(held, batch.model_copy(update=counts), progress.model_copy(update=update))


def read_on(held: Held, positions: Sequence[int]) -> Held:
    """All that stands on the log below these is known of it."""
    if held.batch.status in FINAL:
        return held
    return _with(held, held.batch, held.progress.model_copy(update={"positions": tuple(positions)}))


def stirred(held: Held, now_ms: int) -> Held:
    """Lines were sent, or ended."""
    if held.batch.status in FINAL:
        return held
    at_ms = max(held.progress.stirred_at_ms, now_ms)
    return _with(held, held.batch, held.progress.model_copy(update={"stirred_at_ms": at_ms, "resent": 0}))


def resent(held: Held, now_ms: int) -> Held:
    """All that is on its way was written again; the next time after twice as long, since most of it just waits."""
    if held.batch.status in FINAL:
        return held
    at_ms = max(held.progress.stirred_at_ms, now_ms)
    update = {"stirred_at_ms": at_ms, "resent": held.progress.resent + 1}
    return _with(held, held.batch, held.progress.model_copy(update=update))


def log_lost(held: Held, positions: Sequence[int]) -> Held:
    """Its results are read from these on, in a log that is another one: what was on its way may be lost with the old
    one.
    """
    if held.batch.status in FINAL:
        return held
    update = {"positions": tuple(positions), "stirred_at_ms": 0, "resent": 0}
    return _with(held, held.batch, held.progress.model_copy(update=update))


def cancel_asked(held: Held, now_ms: int) -> Held:
    batch = held.batch
    if batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
        return held
    update = {**_becomes(batch, Status.CANCELLING, now_ms), "outcome": Status.CANCELLED}
    return _with(held, batch.model_copy(update=update), held.progress)


def closed(held: Held, now_ms: int) -> Held:
    """No line runs any more: all have ended, or its time is over."""
    batch = held.batch
    if batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
        return held
    # Lines that have failed may have failed for want of time.
    in_time = now_ms < batch.expires_at_ms or not batch.failed
    is_whole = batch.status is Status.IN_PROGRESS and not batch.unfinished and in_time
    outcome = Status.COMPLETED if is_whole else Status.EXPIRED
    update = {**_becomes(batch, Status.FINALIZING, now_ms), "outcome": outcome}
    return _with(held, batch.model_copy(update=update), held.progress)


def broken(held: Held, problem: Problem, now_ms: int) -> Held:
    """Its file is gone, or another one than was read: no further line runs. What is on its way is waited for, and what
    has been collected is told.
    """
    batch = held.batch
    if batch.status is Status.VALIDATING or batch.outcome is Status.FAILED:
        return lost(held, problem, now_ms)
    if batch.status in FINAL:
        return held
    problems = (*batch.problems, problem)[:MAX_ERRORS]
    update = {**_becomes(batch, Status.FINALIZING, now_ms), "outcome": Status.FAILED, "problems": problems}
    return _with(held, batch.model_copy(update=update), held.progress)


def lost(held: Held, problem: Problem, now_ms: int) -> Held:
    """What its files are made of is gone, or cannot be made into files: it ends without them."""
    if held.batch.status in FINAL:
        return held
    update = {**_becomes(held.batch, Status.FAILED, now_ms), "problems": (*held.batch.problems, problem)[:MAX_ERRORS]}
    return _with(held, held.batch.model_copy(update=update), held.progress)


def finished(held: Held, output_file_id: str | None, error_file_id: str | None, now_ms: int) -> Held:
    """Its files are there."""
    batch = held.batch
    if batch.status in FINAL:
        return held
    update = _becomes(batch, batch.outcome, now_ms)
    update |= {"output_file_id": output_file_id, "error_file_id": error_file_id}
    return _with(held, batch.model_copy(update=update), held.progress)


def tidied(held: Held) -> Held:
    """Nothing but its files is left of what it has told."""
    if held.batch.status not in FINAL:
        return held
    return _with(held, held.batch.model_copy(update={"is_tidy": True}), Progress())


def _becomes(batch: Batch, status: Status, now_ms: int) -> dict[str, object]:
    return {"status": status, "stamps": {**batch.stamps, status: now_ms}}


def _with(held: Held, batch: Batch, progress: Progress) -> Held:
    return Held(batch=batch, progress=progress, epoch=held.epoch)


# What is next


def next_of(held: Held, now_ms: int, most_in_flight: int) -> Next:
    batch, progress = held.batch, held.progress
    if batch.status in FINAL:
        return Next.NOTHING if batch.is_tidy else Next.TIDY
    if now_ms >= batch.expires_at_ms + GIVE_UP_AFTER_MS:
        return Next.GIVE_UP
    if batch.status is Status.VALIDATING:
        return Next.VALIDATE if now_ms < batch.expires_at_ms else Next.CLOSE
    if batch.status is Status.IN_PROGRESS:
        return _next_of_running(held, now_ms, most_in_flight)
    if not batch.unfinished:
        return Next.ASSEMBLE
    if batch.outcome is Status.FAILED:
        is_over = not progress.in_flight or now_ms >= batch.expires_at_ms + EXPIRY_WAIT_MS
        return Next.ASSEMBLE if is_over else Next.COLLECT
    if batch.status is Status.FINALIZING:
        return Next.SWEEP
    over_ms = batch.stamps[Status.CANCELLING] + CANCEL_WAIT_MS
    return Next.SWEEP if not progress.in_flight or now_ms >= over_ms else Next.COLLECT


def _next_of_running(held: Held, now_ms: int, most_in_flight: int) -> Next:
    batch, in_flight = held.batch, held.progress.in_flight
    if not batch.unfinished:
        return Next.CLOSE
    if now_ms >= batch.expires_at_ms:
        is_over = not in_flight or now_ms >= batch.expires_at_ms + EXPIRY_WAIT_MS
        return Next.CLOSE if is_over else Next.COLLECT
    if in_flight and now_ms - held.progress.stirred_at_ms >= STALLED_AFTER_MS << min(held.progress.resent, 6):
        return Next.RESEND
    unsent = batch.total - held.progress.sent_lines
    # Not one by one: each time costs the database a flush of its disk.
    if unsent and most_in_flight - in_flight >= min(unsent, most_in_flight, SENT_TOGETHER):
        return Next.SEND
    return Next.COLLECT


def is_read_first(held: Held, following: Next, now_ms: int) -> bool:
    """Whether all that the log has by now is read before that is done: lines that are on their way, and may have been
    answered in time, would be told as lines that did not run, or written again. Nobody may have held it for long.
    """
    is_of_unheard = following in (Next.RESEND, Next.CLOSE, Next.SWEEP, Next.ASSEMBLE)
    return is_of_unheard and held.progress.in_flight > 0 and now_ms < held.batch.expires_at_ms + READ_WAIT_MS
