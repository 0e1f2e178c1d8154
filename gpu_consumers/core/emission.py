"""What a worker writes to the log: fences, frames, endings, dead letters, and the account of each attempt."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from gpu_consumers.core.config import CoreConfig, Observer
from gpu_consumers.core.continuation import goes_elsewhere
from gpu_consumers.core.effects import DeadLetterSent, Effect, EndingSent, FenceSent, FrameSent, Publish, Receipt
from gpu_consumers.core.frames import FrameColumns, HeldRows, joined
from gpu_consumers.core.prompt_hits import KnownPrefixes, PromptHits
from gpu_consumers.core.work import Phase, Work, Works
from gpu_consumers.engines.port import EngineDelta
from schemas.base import Record
from schemas.codec import Undecodable
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Ending, Fence
from schemas.request import Lane
from schemas.usage import ComputeRecord
from streams.brownout import SLO_LANES
from streams.dead_letters import letter_of
from streams.log.offset_tracker import OffsetTracker
from streams.log.port import LogRecord

_RUNNING = Phase.RUNNING  # in Python 3.11 a look-up at the enum costs more than the row's other decisions
_Frames = dict[tuple[int, int], FrameColumns]
"""By partition, and by when the oldest token in it was generated, in microseconds."""

_BROKEN = "the engine says more of a choice than there is, or its text or probabilities are not those of its tokens"
"""Ends its own response: of a second end of one choice nobody could say which other one has not ended."""


class Emission:
    """Puts everything into `effects`, in the order of the calls."""

    def __init__(
        self, config: CoreConfig, works: Works, observer: Observer, effects: list[Effect],
        answered: Callable[[int], None] = lambda _now_ms: None,
    ) -> None:  # fmt: skip
        """`answered` is called when an attempt gets its first token, with the time."""
        self._config = config
        self._works = works
        self._observer = observer
        self._effects = effects
        self._answered = answered
        # Vectors never wait: what they would be joined to is long enough.
        self._held = HeldRows(-1 if config.embeds else config.coalesce_ms * 1_000, config.coalesce_rows_per_s)
        self._frames_in_flight = 0
        self.generated_tokens = 0
        self.prompt_hits = PromptHits()
        self.prefixes = KnownPrefixes()
        self.first_tokens: Counter[Lane] = Counter()
        self.late_first_tokens: Counter[Lane] = Counter()
        """Of lanes in which somebody waits for them."""

    # Tokens

    def step(self, deltas: Sequence[EngineDelta], now_us: int) -> list[tuple[Work, EngineDelta]]:
        """One engine step: one frame per partition, in the order of the deltas. Returns what is not to be published: of
        works that failed, and of those on trial.

        Under pressure, rows that neither begin nor end an answer may wait for the next step (`HeldRows`). This is one
        loop because it runs once per token: a call for each of its decisions would cost more than the decision.
        """
        now_ms = now_us // 1_000
        held = self._held
        if held.are_ahead_of(now_us):
            self.publish_held()
        may_wait = held.may_wait(len(deltas), now_us, is_behind=self._frames_in_flight > 0)
        waiting, by_attempt = held.rows, self._works.by_attempt
        frames: _Frames = {}
        kept_back: list[tuple[Work, EngineDelta]] = []
        tokens = 0
        for delta in deltas:
            work = by_attempt.get(delta.request_id)
            if work is None or work.phase is not _RUNNING:
                continue
            ends = delta.text_ends
            if delta.error is None and (
                delta.choice not in work.open_choices
                or len(ends) != len(delta.token_ids)
                or (ends[-1] if ends else 0) != len(delta.text)
                or (delta.logprobs is not None and len(delta.logprobs) != len(ends))
            ):
                delta = replace(delta, error=_BROKEN)
            if delta.error is not None or work.on_trial:
                kept_back.append((work, delta))
                continue
            row, row_us, earlier = delta, now_us, None
            waits = waiting.get(delta.request_id)
            if waits is not None:
                earlier, row_us = waits[0].get(delta.choice), waits[1]
                if earlier is None:
                    pass
                elif (
                    earlier.kind == delta.kind
                    and earlier.call == delta.call
                    and (earlier.logprobs is None) == (delta.logprobs is None)
                ):
                    row = joined(earlier, delta)
                else:
                    self._add_row(frames, work, earlier, row_us)
            if count := len(delta.token_ids):
                tokens += count
                work.generated_tokens += count
                work.last_token_at_ms = now_ms
                if work.generated_tokens > work.told_beyond:
                    self._works.has_grown(work)
            is_first = count and not work.first_token_at_ms
            if is_first:
                work.first_token_at_ms = now_ms
                work.cached_tokens = delta.cached_tokens
                self._works.has_token(work)
                self._answered(now_ms)
                self._found(work, now_ms)
                if work.accepted is None:
                    self._first_token(work.request.lane, now_ms - work.request.accepted_at_ms)
            if may_wait and not is_first and not delta.finish:
                if waits is None:
                    held.put(row, row_us)
                else:
                    waits[0][delta.choice] = row
                continue
            if earlier is not None:
                held.remove(delta.request_id, delta.choice)
            if delta.finish:
                self._works.end_choice(work, delta.choice)
            self._add_row(frames, work, row, row_us)
            if delta.finish and not work.open_choices:
                self.account(work, "completed", now_ms)
                self._works.set_phase(work, Phase.CLOSING)
        if not may_wait:
            self._add_held(frames)
        self._publish_frames(frames)
        if tokens and not self._config.embeds:
            self.generated_tokens += tokens
            self._observer.tokens(tokens)
        return kept_back

    def _found(self, work: Work, now_ms: int) -> None:
        """Of vectors an engine does not say what it has found."""
        if not self._config.embeds:
            cached = _cached_tokens(work)
            self.prompt_hits.add(work.prompt_tokens, cached, now_ms)
            self.prefixes.add(work.request.cache_id, work.prompt_tokens)
            self._observer.prompt(work.prompt_tokens, cached)

    def _first_token(self, lane: Lane, since_accepted_ms: int) -> None:
        self._observer.first_token(lane, since_accepted_ms)
        if lane in SLO_LANES:
            self.first_tokens[lane] += 1
            self.late_first_tokens[lane] += since_accepted_ms > self._config.brownout.of(lane).first_token_ms

    def tick(self, now_ms: int) -> None:
        if self._held.overdue(now_ms * 1_000):
            self.publish_held()

    def publish_held(self) -> None:
        """Whatever may end, stop or replace an attempt comes behind the tokens that it has generated."""
        if self._held:
            frames: _Frames = {}
            self._add_held(frames)
            self._publish_frames(frames)

    def frame_settled(self) -> None:
        """A frame is acknowledged, or will never be."""
        self._frames_in_flight -= 1

    def drop_held(self, work: Work) -> None:
        self._held.drop(work.attempt_id)

    def _add_row(self, frames: _Frames, work: Work, row: EngineDelta, row_us: int) -> None:
        """`row`, from `row_us` on, leaves behind everything of `work` that was added before: so it is numbered."""
        frame = work.partition, row_us
        columns = frames.get(frame)
        if columns is None:
            columns = frames[frame] = FrameColumns()
        if not columns.add(work.scope, work.response_id, work.next_sequence, row):
            self._publish_frames(frames)
            frames.clear()
            columns = frames[frame] = FrameColumns()
            columns.add(work.scope, work.response_id, work.next_sequence, row)
        work.next_sequence += len(row.token_ids)
        if row.finish and not work.open_choices:
            columns.finished_ids.append(row.request_id)

    def _add_held(self, frames: _Frames) -> None:
        for row, since_us in self._held.pop_all():
            self._add_row(frames, self._works.by_attempt[row.request_id], row, since_us)

    def _publish_frames(self, frames: _Frames) -> None:
        # The oldest first: an engine that was late gives several deltas of a request at once, and the first of them
        # may have joined a row that waited.
        self._frames_in_flight += len(frames)
        for (partition, since_us), columns in sorted(frames.items(), key=lambda item: item[0][1]):
            self._effects.append(
                Publish(
                    self._config.topics.generated.name,
                    partition,
                    self._config.worker_id,
                    columns.encode(self._config.worker_id, since_us),
                    FrameSent(partition, frozenset(columns.attempt_ids), tuple(columns.finished_ids)),
                )
            )

    # Attempts

    def enters(self, work: Work, now_ms: int) -> None:
        """What was taken over enters the engine as soon as this is in the log, and may be lost with it."""
        self.fence(work, "takeover", now_ms, losses=work.losses + 1, enters=True)

    def leaves(self, work: Work, now_ms: int) -> None:
        """If it has entered the engine, or is told so, and has said nothing: nobody was lost with it."""
        has_fence = work.phase is _RUNNING or (work.phase is Phase.CLAIMING and work.plan == "generate")
        if has_fence and work.accepted is None and work.has_said_nothing:
            self.fence(work, "takeover" if work.plan == "generate" else "fresh", now_ms, losses=work.losses)

    def fence(
        self, work: Work, kind: Literal["fresh", "takeover"], now_ms: int, *, losses: int | None = None,
        enters: bool = False,
    ) -> None:  # fmt: skip
        """`losses`: as the fence has them, whether it is the attempt's first or comes again."""
        request = work.request
        fence = Fence(
            stage_ms={**request.stage_ms, "worker": now_ms},
            response_id=work.response_id,
            scope=request.scope,
            attempt_id=work.attempt_id,
            worker_id=self._config.worker_id,
            kind=kind,
            pool=self._config.pool,
            model=self._config.model,
            since_offset=work.reads_from if kind == "takeover" else 0,
            move=work.move,
            prompt_tokens=work.prompt_tokens if work.move else 0,
            fallback=request.fallback,
            losses=losses,
        )
        self._generated(work, fence, FenceSent(work.partition, work.response_id, work.attempt_id, work.move, enters))

    def ending(self, work: Work, code: EndingCode, now_ms: int, *, message: str = "", param: str | None = None) -> None:
        """Of its attempt, if it has one: then it counts only while that is the current one."""
        request = work.request
        ending = Ending(
            stage_ms={**request.stage_ms, "worker": now_ms},
            response_id=work.response_id,
            scope=request.scope,
            code=code,
            written_by="worker",
            attempt_id=work.attempt_id or None,
            message=message or ENDINGS[code].message,
            param=param,
            move=work.move,
            elsewhere=goes_elsewhere(work, code),
            pool=self._config.pool,
            endpoint=request.endpoint,
            requested_model=request.requested_model,
            reply_to=request.reply_to,
            accepted_at_ms=request.accepted_at_ms,
            prompt_tokens=work.prompt_tokens,
        )
        self._generated(work, ending, EndingSent(work.partition, work.response_id, work.attempt_id, work.move))

    def account(self, work: Work, outcome: str, now_ms: int) -> None:
        """The unpriced record of what an attempt cost; once per attempt that was in the engine."""
        request = work.request
        tokens = 0 if self._config.embeds else work.generated_tokens
        self._observer.closed(outcome, tokens / request.choices, work.first_token_at_ms, work.last_token_at_ms)
        record = ComputeRecord(
            response_id=work.response_id,
            scope=request.scope,
            attempt_id=work.attempt_id,
            worker_id=self._config.worker_id,
            pool=self._config.pool,
            model=request.model,
            prompt_tokens=work.prompt_tokens,
            cached_tokens=_cached_tokens(work),
            generated_tokens=tokens,
            engine_ms=max(now_ms - work.submitted_at_ms, 0),
            outcome=outcome,
        )
        self._effects.append(Publish(self._config.topics.usage.name, None, work.response_id, record.encode(), None))

    def dead_letter(self, record: LogRecord, error: Undecodable, tracker: OffsetTracker, now_ms: int) -> None:
        letter = letter_of(record, "worker", error.reason, error.detail, now_ms)
        receipt = DeadLetterSent(tracker, record.offset)
        self._effects.append(Publish(self._config.topics.dead_letters.name, None, letter.key, letter.encode(), receipt))

    def _generated(self, work: Work, record: Record, receipt: Receipt) -> None:
        self._effects.append(
            Publish(self._config.topics.generated.name, work.partition, work.response_id, record.encode(), receipt)
        )


def _cached_tokens(work: Work) -> int:
    """Of an answer that is continued, more than the prompt may be found."""
    return min(work.cached_tokens, work.prompt_tokens)
