"""Post-safety's decisions: records of `generated` in, effects out. No I/O, no clock, no randomness.

What `responses`, `usage`, `results.<tenant>` and `verdicts` get is a function of the records of the log alone (their
content, offsets and append times) and of the phrases that `Opened` names, so whoever re-reads them decides alike. The
one exception is a `Started`: that of a response which is shed as it comes waits for its first token, and a rebuild,
which sheds nothing, gives it at once. What goes to `generated` and `control` may also come from the clock; it counts
where the log puts it.

Nothing here ends a response but a record that came from the log: own endings are written, and take effect when they
come back. A halt alone acts at once, by releasing nothing more.
"""

import hashlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agents.post_safety.hold_back import Delta, HoldBack
from agents.safety.phrases import PhraseSet
from schemas.base import ScopedRecord
from schemas.batch import BatchError, BatchResponse, BatchResult
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Ending, Fence, Frame, Kind, Opened
from schemas.responses import Started, Terminal, TokenUsage
from schemas.usage import UsageEvent
from schemas.verdict import Verdict
from streams.accepted_prefix import AcceptedPrefix, RowVerdict
from streams.deadlines import Deadlines
from streams.dialects.openai_completion import completion_object
from streams.ids import stable_partition
from streams.log.offset_tracker import OffsetTracker
from streams.settings import PostSafetySettings

Channel = Literal["responses", "usage", "results", "verdicts", "control", "generated"]

ENDED_REMEMBERED = 20_000
"""Ended responses per partition whose late records are recognised."""
EARLY_CANCELS_REMEMBERED = 10_000
EARLY_CANCEL_MS = 600_000
_RETRY_MS = 1_000
_RETRY_JITTER_MS = 4_000


ReleasedRow = tuple[bytes, str, int, int, Kind, str, list[int], int]
"""A row of `Release`: encoded scope without its trace context, response id, choice, first sequence, kind, text, text
ends, emitted at. A bare tuple: there is one for nearly every token."""


class Released(NamedTuple):
    """Rows for one partition of `responses`, in order."""

    partition: int
    rows: list[ReleasedRow]


class Emit(NamedTuple):
    """A record for a topic; without `partition` the key decides."""

    channel: Channel
    key: str
    record: ScopedRecord | BatchResult
    partition: int | None = None


Effect = Released | Emit
_ACCEPTED = RowVerdict.ACCEPTED  # in Python 3.11 a look-up at the enum costs more than the row's other decisions
Phrases = Callable[[Opened], PhraseSet | None]
"""The phrases that a response is held against; None when nobody knows them: then nothing of it is shown."""


@dataclass(slots=True)
class _Tally:
    """Accepted tokens of one choice. `withheld` are those of them that were not released.

    `newest` is who published the last of them, and when (in microseconds).
    """

    output: int = 0
    reasoning: int = 0
    withheld: int = 0
    first_token_at_ms: int = 0
    first_emitted_at_us: int = 0
    newest: tuple[str, int] | None = None
    content: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def keep(self, kind: Kind, text: str) -> None:
        """Released text, for the batch result."""
        (self.thoughts if kind == "reasoning" else self.content).append(text)


@dataclass(slots=True)
class _Gap:
    """Something of `attempt_id` is missing; filled when tokens below `until` are accepted. None: whatever attempt."""

    attempt_id: str | None
    since_ms: int
    until: int


@dataclass(slots=True)
class _Response:
    response_id: str
    reply_partition: int
    opened: Opened
    opened_offset: int
    prefix: AcceptedPrefix
    hold: HoldBack
    tallies: list[_Tally]
    scope_json: bytes
    cached_tokens: int = 0
    attempt_worker_id: str = ""
    worker_began_at_ms: int | None = None
    keeps_text: bool = False
    started_held: bool = False
    """It is being shed: refused, as far as anybody is told, unless a worker was quicker."""
    cancelled_at_ms: int | None = None
    gap: _Gap | None = None
    ending_written: bool = False
    halt_written: bool = False
    verdict_written: bool = False


@dataclass(slots=True)
class _Partition:
    """`live` once everything that stood in the log when the partition came here has been read."""

    number: int
    live: bool = False
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    next_offset: int = 0
    responses: dict[str, _Response] = field(default_factory=dict)
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    watched: dict[str, _Response] = field(default_factory=dict)
    """Cancelled responses, and those with a gap."""

    def remember(self, response_id: str) -> None:
        self.ended[response_id] = None
        self.ended.move_to_end(response_id)
        if len(self.ended) > ENDED_REMEMBERED:
            self.ended.popitem(last=False)


class _Outbox:
    """Effects in order. Released rows are gathered by partition until another effect follows them."""

    __slots__ = ("_effects", "rows")

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self.rows: defaultdict[int, list[ReleasedRow]] = defaultdict(list)

    def add(self, effects: Iterable[Effect]) -> None:
        self._gather()
        self._effects += effects

    def take(self) -> list[Effect]:
        self._gather()
        return self._effects

    def _gather(self) -> None:
        self._effects += map(Released._make, self.rows.items())
        self.rows.clear()


class PostSafety:
    """State of the partitions of `generated` that this process owns. Not thread-safe.

    Timers fire in `tick` and on live partitions only: while a partition is rebuilt, what would end a response may stand
    further down in the log. `counts` are running totals by name, for metrics.
    """

    def __init__(self, settings: PostSafetySettings, phrases: Phrases) -> None:
        self._settings = settings
        self._phrases = phrases
        self._partitions: dict[int, _Partition] = {}
        self._early_cancels: OrderedDict[str, int] = OrderedDict()
        self.counts: Counter[str] = Counter()

    @property
    def open_responses(self) -> int:
        return sum(len(partition.responses) for partition in self._partitions.values())

    @property
    def partitions(self) -> list[int]:
        return sorted(self._partitions)

    def assign(self, partition: int, committed: int | None) -> None:
        """A partition comes, to be folded from `committed` on (None: from wherever it begins)."""
        state = self._partitions[partition] = _Partition(partition)
        if committed is not None:
            state.tracker.committed(committed)
            state.next_offset = committed

    def revoke(self, partition: int) -> None:
        """The partition is another's now; its state is forgotten."""
        self._partitions.pop(partition, None)

    def remember_ended(self, partition: int, response_id: str) -> None:
        """A response that ended below the commit: its late records are void."""
        self._partitions[partition].remember(response_id)

    def next_offset(self, partition: int) -> int:
        """Records below it have been folded."""
        return self._partitions[partition].next_offset

    def to_commit(self) -> dict[int, int]:
        """Per partition the offset below which every response has ended, where it has moved."""
        offsets = {number: state.tracker.to_commit() for number, state in self._partitions.items()}
        return {number: offset for number, offset in offsets.items() if offset is not None}

    def committed(self, partition: int, offset: int) -> None:
        self._partitions[partition].tracker.committed(offset)

    def went_live(self, partition: int) -> list[Effect]:
        """The log has been read up to where it ended when the partition came. Writes the endings that were due."""
        state = self._partitions[partition]
        state.live = True
        halted = [response for response in state.responses.values() if response.hold.halted]
        return [effect for response in halted for effect in self._end(state, response, EndingCode.SAFETY_HALTED)]

    def skip(self, partition: int, offset: int, timestamp_ms: int, about: Mapping[str, str | None]) -> None:
        """A record that nobody can read, `about` these responses (`unreadable.named_responses`).

        What it said of them is lost: as after a gap, they end unless more of them is accepted soon.
        """
        state = self._partitions[partition]
        for response_id, attempt_id in about.items():
            response = state.responses.get(response_id)
            if response is None or response.gap is not None or attempt_id not in (None, response.prefix.attempt_id):
                continue
            response.gap = _Gap(response.prefix.attempt_id, timestamp_ms, response.prefix.next_sequence + 1)
            state.watched[response_id] = response
        state.tracker.started(offset)
        state.tracker.finished(offset)
        state.next_offset = offset + 1

    def fold(
        self, record: Opened | Fence | Frame | Ending, partition: int, offset: int, timestamp_ms: int
    ) -> list[Effect]:
        """Takes the next record of a partition; `timestamp_ms` is its append time."""
        state = self._partitions[partition]
        state.tracker.started(offset)
        state.next_offset = offset + 1
        if isinstance(record, Opened):
            # Stays open in the tracker until the response has ended.
            return self._open(state, record, offset, timestamp_ms)
        state.tracker.finished(offset)
        if isinstance(record, Frame):
            return self._fold_frame(state, record, timestamp_ms)
        if isinstance(record, Fence):
            return self._fold_fence(state, record)
        return self._fold_ending(state, record, timestamp_ms)

    def cancel(self, cancel: Cancel, timestamp_ms: int) -> None:
        """Takes a cancel from `control`; takes effect in `tick`. May come before its response is known."""
        for state in self._partitions.values():
            response = state.responses.get(cancel.response_id)
            if response is not None:
                self._watch_cancel(state, response, timestamp_ms)
                return
            if cancel.response_id in state.ended:
                return
        self._early_cancels.setdefault(cancel.response_id, timestamp_ms)
        if len(self._early_cancels) > EARLY_CANCELS_REMEMBERED:
            self._early_cancels.popitem(last=False)

    def tick(self, now_ms: int) -> list[Effect]:
        """Endings that are due: deadlines, cancels that no worker answers, gaps that nobody fills."""
        while self._early_cancels:
            oldest = next(iter(self._early_cancels))
            if self._early_cancels[oldest] + EARLY_CANCEL_MS > now_ms:
                break
            del self._early_cancels[oldest]
        effects: list[Effect] = []
        for state in self._partitions.values():
            if state.live:
                for response_id in state.deadlines.take_due(now_ms):
                    effects += self._end(state, state.responses[response_id], EndingCode.DEADLINE_EXCEEDED)
                if state.watched:
                    effects += self._look_at_watched(state, now_ms)
        return effects

    def _look_at_watched(self, state: _Partition, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for response_id, response in list(state.watched.items()):
            cancelled_at_ms, gap = response.cancelled_at_ms, response.gap
            if cancelled_at_ms is not None:
                # Nobody claimed it yet: nobody will answer.
                patience_ms = self._settings.unclaimed_cancel_ms if response.prefix.attempts else 0
                if now_ms >= cancelled_at_ms + patience_ms:
                    response.cancelled_at_ms = None
                    effects += self._end(state, response, EndingCode.CANCELLED)
            if gap is not None and now_ms >= gap.since_ms + self._settings.gap_ms:
                response.gap = None
                effects += self._end(state, response, EndingCode.STREAM_GAP, attempt_id=gap.attempt_id)
            if response.cancelled_at_ms is None and response.gap is None:
                del state.watched[response_id]
        return effects

    def _open(self, state: _Partition, opened: Opened, offset: int, timestamp_ms: int) -> list[Effect]:
        response_id = opened.response_id
        if response_id in state.responses or response_id in state.ended:
            self.counts["duplicate_opened"] += 1
            state.tracker.finished(offset)
            return []
        phrases = self._phrases(opened)
        response = state.responses[response_id] = _Response(
            response_id=response_id,
            reply_partition=opened.reply_to.partition,
            opened=opened,
            opened_offset=offset,
            prefix=AcceptedPrefix(choices=opened.choices),
            hold=HoldBack(phrases or PhraseSet(())),
            tallies=[_Tally() for _ in range(opened.choices)],
            scope_json=opened.scope.model_copy(update={"traceparent": ""}).model_dump_json().encode(),
            keeps_text=opened.reply_to.results_topic is not None,
        )
        state.deadlines.add(response_id, opened.deadline_ms)
        if (cancelled_at_ms := self._early_cancels.pop(response_id, None)) is not None:
            self._watch_cancel(state, response, cancelled_at_ms)
        if phrases is None:
            self.counts["without_policy"] += 1
            response.hold.halt()
            return [self._start(response), *self._halted(state, response)]
        if state.live and self.open_responses > self._settings.max_open_responses:
            self.counts["overloaded"] += 1
            response.started_held = True
            return self._end(state, response, EndingCode.OVERLOADED)
        return [self._start(response)]

    def _start(self, response: _Response) -> Emit:
        opened = response.opened
        response.started_held = False
        started = Started(
            response_id=opened.response_id,
            scope=opened.scope,
            endpoint=opened.endpoint,
            model=opened.model,
            requested_model=opened.requested_model,
            lane=opened.lane.value,
            pool=opened.pool,
            prompt_tokens=opened.prompt_tokens,
            accepted_at_ms=opened.accepted_at_ms,
            deadline_ms=opened.deadline_ms,
            on_disconnect=opened.on_disconnect,
        )
        return self._answer(response, started)

    def _fold_fence(self, state: _Partition, fence: Fence) -> list[Effect]:
        response = state.responses.get(fence.response_id)
        # `Opened` precedes every fence and is read again until the end: a response that is not open has ended.
        if response is None:
            self.counts["void_fences"] += 1
            return [_void(fence, fence.attempt_id, fence.worker_id, "ended")]
        displaced_id, displaced_worker_id = response.prefix.attempt_id, response.attempt_worker_id
        verdict = response.prefix.fence(fence)
        if verdict != "current":
            self.counts["void_fences"] += 1
            return [_void(fence, fence.attempt_id, fence.worker_id, verdict)]
        response.attempt_worker_id = fence.worker_id
        if not response.prefix.accepted_tokens:
            response.worker_began_at_ms = fence.stage_ms.get("worker")
        if response.gap is not None and response.gap.attempt_id != fence.attempt_id:
            response.gap = None
        if displaced_id is None or displaced_id == fence.attempt_id:
            return []
        self.counts["superseded_attempts"] += 1
        return [_void(fence, displaced_id, displaced_worker_id, "superseded")]

    def _fold_frame(self, state: _Partition, frame: Frame, timestamp_ms: int) -> list[Effect]:
        """This loop runs once per token: what most rows need not do has been moved out of it."""
        outbox = _Outbox()
        released = outbox.rows
        responses, emitted_at_us, worker_id = state.responses, frame.emitted_at_us, frame.worker_id
        newest = (worker_id, emitted_at_us)
        accepted_tokens = 0
        for response_id, attempt_id, choice, first, kind, tokens, text, ends, finish, cached in zip(
            frame.response_id, frame.attempt_id, frame.choice, frame.first_sequence, frame.kind, frame.token_ids,
            frame.text, frame.text_ends, frame.finish, frame.cached_tokens, strict=True,
        ):  # fmt: skip
            response = responses.get(response_id)
            if response is None:
                self.counts["rows_after_end" if response_id in state.ended else "rows_unknown_response"] += 1
                continue
            count = len(tokens)
            verdict, known = response.prefix.row(attempt_id, choice, first, count, finish)
            if verdict is not _ACCEPTED:
                self._row_refused(state, response, verdict, attempt_id, first + count, timestamp_ms)
                continue
            if first == 1 and not known:
                response.cached_tokens = min(cached, response.opened.prompt_tokens)
                if response.started_held:
                    outbox.add([self._start(response)])
            if count > known:
                tally = response.tallies[choice]
                if tally.newest is None:
                    tally.first_token_at_ms, tally.first_emitted_at_us = timestamp_ms, emitted_at_us
                tally.newest = newest
                accepted = count - known
                accepted_tokens += accepted
                if kind == "reasoning":
                    tally.reasoning += accepted
                else:
                    tally.output += accepted
                if not known and response.hold.passes(choice, kind, text, ends):
                    released[response.reply_partition].append(
                        (response.scope_json, response_id, choice, first, kind, text, ends, emitted_at_us)
                    )
                    if response.keeps_text:
                        tally.keep(kind, text)
                else:
                    tally.withheld += accepted
                    delta = Delta(choice, kind, first, text, ends, emitted_at_us)
                    for piece in response.hold.accept(delta.after(known)):
                        released[response.reply_partition].append(_release(response, piece))
                    if response.hold.halted and not response.verdict_written and not finish:
                        outbox.add(self._halted(state, response))
                if response.gap is not None and response.prefix.next_sequence >= response.gap.until:
                    response.gap = None
            if finish:
                for piece in response.hold.finish_choice(choice):
                    released[response.reply_partition].append(_release(response, piece))
                if response.prefix.terminal is not None:
                    outbox.add(self._close(state, response, response.prefix.terminal, timestamp_ms))
                elif response.hold.halted and not response.verdict_written:
                    outbox.add(self._halted(state, response))
        self.counts["accepted_tokens"] += accepted_tokens
        return outbox.take()

    def _row_refused(
        self,
        state: _Partition,
        response: _Response,
        verdict: RowVerdict,
        attempt_id: str,
        until: int,
        timestamp_ms: int,
    ) -> None:
        self.counts[f"rows_{verdict.value}"] += 1
        if verdict is RowVerdict.GAP:
            if response.gap is None:
                response.gap = _Gap(attempt_id, timestamp_ms, until)
                state.watched[response.response_id] = response
            else:
                response.gap.until = max(response.gap.until, until)

    def _fold_ending(self, state: _Partition, ending: Ending, timestamp_ms: int) -> list[Effect]:
        response = state.responses.get(ending.response_id)
        if response is not None:
            if response.prefix.ending(ending):
                return self._close(state, response, ending.code, timestamp_ms, ending)
            self.counts["void_endings"] += 1
            return []
        # Only who admits can end what was never opened; anyone else's ending comes late.
        if ending.response_id in state.ended or ending.written_by not in ("admission", "gateway"):
            self.counts["void_endings"] += 1
            return []
        return self._refuse(state, ending, timestamp_ms)

    def _watch_cancel(self, state: _Partition, response: _Response, cancelled_at_ms: int) -> None:
        if response.cancelled_at_ms is None:
            response.cancelled_at_ms = cancelled_at_ms
            state.watched[response.response_id] = response

    def _halted(self, state: _Partition, response: _Response) -> list[Effect]:
        """Nothing more of it is released; says so, and writes the ending unless that may stand in the log already."""
        response.verdict_written = True
        match = response.hold.match
        verdict = Verdict(
            response_id=response.opened.response_id,
            scope=response.opened.scope,
            stage="post-safety",
            decision="halt",
            rule="no_policy" if match is None else "output_deny",
            span_sha256="" if match is None else hashlib.sha256(match.phrase.encode()).hexdigest(),
            sequence_number=response.hold.released,
        )
        self.counts["halted"] += 1
        effects: list[Effect] = [Emit("verdicts", verdict.response_id, verdict)]
        if state.live and response.prefix.terminal is None:
            effects += self._end(state, response, EndingCode.SAFETY_HALTED)
        return effects

    def _end(
        self,
        state: _Partition,
        response: _Response,
        code: EndingCode,
        *,
        attempt_id: str | None = None,
    ) -> list[Effect]:
        """Writes an ending, which counts where it comes back in the log, and stops whoever generates the response.

        With `attempt_id` the ending is void once another attempt has begun, so it does not stand in another's way.
        """
        if response.ending_written:
            return []
        response.ending_written = attempt_id is None
        opened = response.opened
        ending = Ending(
            response_id=opened.response_id,
            scope=opened.scope,
            code=code,
            written_by="post-safety",
            attempt_id=attempt_id,
            endpoint=opened.endpoint,
            requested_model=opened.requested_model,
            reply_to=opened.reply_to,
            accepted_at_ms=opened.accepted_at_ms,
            prompt_tokens=opened.prompt_tokens,
        )
        effects: list[Effect] = [Emit("generated", opened.response_id, ending, state.number)]
        if attempt_id is None:
            response.halt_written = True
            effects.append(_halt(opened, code))
        return effects

    def _close(
        self,
        state: _Partition,
        response: _Response,
        code: EndingCode,
        timestamp_ms: int,
        ending: Ending | None = None,
    ) -> list[Effect]:
        """The terminal has been read: releases what is held, says how it ended, bills it, and forgets it."""
        opened, hold = response.opened, response.hold
        effects: list[Effect] = []
        if response.started_held and not ENDINGS[code].is_error:
            effects.append(self._start(response))
        effects += (Released(response.reply_partition, [_release(response, piece)]) for piece in hold.finish())
        if hold.halted and not response.verdict_written:
            effects += self._halted(state, response)
        if hold.halted and code is EndingCode.COMPLETED:
            # Complete means that all of it was released.
            code = EndingCode.SAFETY_HALTED
        if ending is not None and ending.written_by != "worker" and not response.halt_written:
            effects.append(_halt(opened, code))
        reasons = [_finish_reason(response, choice, code) for choice in range(opened.choices)]
        usage = _token_usage(response)
        terminal = _terminal(opened, code, ending, reasons, usage, hold.released + 1, timestamp_ms, model=opened.model)
        effects.append(self._answer(response, terminal))
        effects += self._bill(response, code, reasons, usage, timestamp_ms)
        if opened.reply_to.results_topic is not None:
            effects.append(_batch_result(opened, terminal, response.tallies))
        del state.responses[opened.response_id]
        state.watched.pop(opened.response_id, None)
        state.deadlines.remove(opened.response_id)
        state.remember(opened.response_id)
        state.tracker.finished(response.opened_offset)
        self.counts[f"ended_{code.value}"] += 1
        return effects

    def _refuse(self, state: _Partition, ending: Ending, timestamp_ms: int) -> list[Effect]:
        """The ending of a response that was never admitted: its answer, and a bill over nothing."""
        code = ending.code
        reasons = [ENDINGS[code].finish_reason]
        usage = TokenUsage(prompt_tokens=ending.prompt_tokens)
        terminal = _terminal(ending, code, ending, reasons, usage, 1, timestamp_ms, model=ending.requested_model)
        event = UsageEvent(
            response_id=ending.response_id,
            scope=ending.scope,
            stage_ms=ending.stage_ms | {"post-safety": timestamp_ms},
            usage_id=f"{ending.response_id}/0",
            choice=0,
            endpoint=ending.endpoint,
            model="",
            requested_model=ending.requested_model,
            pool="",
            lane="",
            worker_id="",
            attempts=0,
            ending=code,
            finish_reason=reasons[0],
            billable=False,
            accepted_at_ms=ending.accepted_at_ms,
            first_token_at_ms=0,
            ended_at_ms=timestamp_ms,
            uncached_input_tokens=0,
            cached_input_tokens=0,
            output_tokens=0,
            reasoning_tokens=0,
            released_tokens=0,
            reserved_tokens=0,
        )
        effects: list[Effect] = [
            Emit("responses", ending.response_id, terminal, ending.reply_to.partition),
            Emit("usage", ending.response_id, event),
        ]
        if ending.reply_to.results_topic is not None:
            effects.append(_batch_result(ending, terminal, []))
        state.remember(ending.response_id)
        self.counts[f"ended_{code.value}"] += 1
        return effects

    def _bill(
        self, response: _Response, code: EndingCode, reasons: list[str], usage: TokenUsage, timestamp_ms: int
    ) -> Iterator[Effect]:
        """One event per choice; what belongs to the whole response stands on choice 0.

        Nothing is charged for a response that no worker ever took, however it ended.
        """
        opened = response.opened
        taken = response.prefix.attempts > 0
        for choice, tally in enumerate(response.tallies):
            first = choice == 0
            event = UsageEvent(
                response_id=opened.response_id,
                scope=opened.scope,
                stage_ms=_stage_ms(response, tally, timestamp_ms),
                usage_id=f"{opened.response_id}/{choice}",
                choice=choice,
                endpoint=opened.endpoint,
                model=opened.model,
                requested_model=opened.requested_model,
                pool=opened.pool,
                lane=opened.lane.value,
                worker_id="" if tally.newest is None else tally.newest[0],
                attempts=response.prefix.attempts,
                ending=code,
                finish_reason=reasons[choice],
                billable=taken and ENDINGS[code].billed,
                accepted_at_ms=opened.accepted_at_ms,
                first_token_at_ms=tally.first_token_at_ms,
                ended_at_ms=timestamp_ms,
                uncached_input_tokens=usage.prompt_tokens - usage.cached_tokens if first and taken else 0,
                cached_input_tokens=usage.cached_tokens if first else 0,
                output_tokens=tally.output,
                reasoning_tokens=tally.reasoning,
                released_tokens=tally.output + tally.reasoning - tally.withheld,
                reserved_tokens=opened.reserved_tokens if first else 0,
            )
            yield Emit("usage", opened.response_id, event)

    def _answer(self, response: _Response, record: Started | Terminal) -> Emit:
        return Emit("responses", record.response_id, record, response.opened.reply_to.partition)


def _release(response: _Response, delta: Delta) -> ReleasedRow:
    """What was held, or never had to be, leaves."""
    choice, kind, first_sequence, text, text_ends, emitted_at_us = delta
    tally = response.tallies[choice]
    tally.withheld -= len(text_ends)
    if response.keeps_text:
        tally.keep(kind, text)
    return response.scope_json, response.response_id, choice, first_sequence, kind, text, text_ends, emitted_at_us


def _void(fence: Fence, attempt_id: str, worker_id: str, why: Literal["tokens_precede", "superseded", "ended"]) -> Emit:
    """Tells the worker of an attempt what `fence` means for it."""
    void = AttemptVoid(
        response_id=fence.response_id, scope=fence.scope, attempt_id=attempt_id, worker_id=worker_id, why=why
    )
    return Emit("control", fence.response_id, void)


def _halt(opened: Opened, code: EndingCode) -> Emit:
    return Emit(
        "control", opened.response_id, Halt(response_id=opened.response_id, scope=opened.scope, reason=code.value)
    )


def _finish_reason(response: _Response, choice: int, code: EndingCode) -> str:
    """A choice that finished keeps its own reason, unless it is the one that was halted."""
    rule = ENDINGS[code]
    hold = response.hold
    if code is EndingCode.SAFETY_HALTED and hold.halted and hold.halted_choice in (None, choice):
        return rule.finish_reason
    return response.prefix.finished.get(choice) or rule.finish_reason


def _stage_ms(response: _Response, tally: _Tally, ended_at_ms: int) -> dict[str, int]:
    """When each stage finished with the choice; a stage that it did not reach is left out.

    Differences between neighbours: in the lane (`routing` to `worker`), to the first token (to `prefill`), to the last
    accepted token (to `decode`), and from there until it had all been released or ended (to `post-safety`).
    """
    stage_ms = dict(response.opened.stage_ms)
    if response.worker_began_at_ms is not None:
        stage_ms["worker"] = response.worker_began_at_ms
    if tally.newest is not None:
        stage_ms["prefill"] = tally.first_emitted_at_us // 1_000
        stage_ms["decode"] = tally.newest[1] // 1_000
    stage_ms["post-safety"] = ended_at_ms
    return stage_ms


def _token_usage(response: _Response) -> TokenUsage:
    reasoning = sum(tally.reasoning for tally in response.tallies)
    return TokenUsage(
        prompt_tokens=response.opened.prompt_tokens,
        cached_tokens=response.cached_tokens,
        completion_tokens=reasoning + sum(tally.output for tally in response.tallies),
        reasoning_tokens=reasoning,
    )


def _terminal(
    about: Opened | Ending,
    code: EndingCode,
    ending: Ending | None,
    finish_reasons: list[str],
    usage: TokenUsage,
    sequence_number: int,
    timestamp_ms: int,
    *,
    model: str,
) -> Terminal:
    return Terminal(
        response_id=about.response_id,
        scope=about.scope,
        sequence_number=sequence_number,
        code=code,
        finish_reasons=finish_reasons,
        message=(ending.message if ending is not None else "") or ENDINGS[code].message,
        param=ending.param if ending is not None else None,
        retry_after_ms=_retry_after_ms(about.response_id, code, ending),
        limits=ending.limits if ending is not None else {},
        usage=usage,
        model=model,
        ended_at_ms=timestamp_ms,
    )


def _retry_after_ms(response_id: str, code: EndingCode, ending: Ending | None) -> int | None:
    """The advice of who wrote the ending; else, where trying again may help, one that spreads the responses."""
    if ending is not None and ending.retry_after_ms is not None:
        return ending.retry_after_ms
    return _RETRY_MS + stable_partition(response_id, _RETRY_JITTER_MS) if ENDINGS[code].retryable else None


def _batch_result(about: Opened | Ending, terminal: Terminal, tallies: list[_Tally]) -> Emit:
    """The line that a batch producer reads: a whole `chat.completion`, or the error."""
    custom_id = about.reply_to.custom_id or about.response_id
    result = BatchResult(scope=about.scope, id=about.response_id, custom_id=custom_id)
    if ENDINGS[terminal.code].is_error:
        result.error = BatchError(
            code=terminal.code.value,
            message=terminal.message,
            param=terminal.param,
            retry_after_ms=terminal.retry_after_ms,
        )
    else:
        body = completion_object(
            response_id=about.response_id,
            created_s=about.accepted_at_ms // 1_000,
            model=terminal.model,
            texts=["".join(tally.content) for tally in tallies],
            thoughts=["".join(tally.thoughts) for tally in tallies],
            code=terminal.code,
            finish_reasons=terminal.finish_reasons,
            usage=terminal.usage,
        )
        result.response = BatchResponse(status_code=200, request_id=about.response_id, body=body)
    return Emit("results", custom_id, result)
