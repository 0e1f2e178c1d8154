"""The fold: what each record of `generated` means, in log order. Decides what is released, and what closes."""

from collections import Counter
from collections.abc import Callable
from typing import Literal

from agents.post_safety import outcome
from agents.post_safety.effects import Effect, Emit, Outbox, Released
from agents.post_safety.hold_back import Delta
from agents.post_safety.modes import Held, looking
from agents.post_safety.own_endings import say_halted, stop_workers, write_ending
from agents.post_safety.partition import Partition
from agents.post_safety.policies import Rules
from agents.post_safety.state import Gap, Response, Tally
from agents.post_safety.strands import strands
from agents.post_safety.timers import Timers
from agents.safety.phrases import PhraseSet
from schemas.control import AttemptVoid
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import Ending, Fence, Frame, Opened, StoppedBy
from schemas.parked import Parked
from schemas.policy import DEFAULT_MODE
from schemas.responses import Started
from streams.accepted_prefix import AcceptedPrefix, RowVerdict

_ACCEPTED = RowVerdict.ACCEPTED  # in Python 3.11 a look-up at the enum costs more than the row's other decisions
_NEVER = 2**63
RulesOf = Callable[[Opened], Rules | None]
"""What a response is held against; None when nobody knows that: then nothing of it is shown."""
_NO_RULES = Rules(PhraseSet(()), DEFAULT_MODE)


class Fold:
    """One method per kind of record; each takes the next record of a partition and returns what it causes."""

    def __init__(self, rules_of: RulesOf, timers: Timers, counts: Counter[str]) -> None:
        self._rules_of = rules_of
        self.held = Held()
        self._timers = timers
        self._counts = counts

    def opened(
        self, state: Partition, opened: Opened, offset: int, timestamp_ms: int, open_answers: int
    ) -> list[Effect]:
        """`open_answers` is how many this process has without those of this one."""
        if opened.response_id in state.responses or opened.response_id in state.ended:
            self._counts["duplicate_opened"] += 1
            return []
        response = self._open(state, opened, offset, timestamp_ms, held_offset=offset)
        if response.hold.halted:
            return [_say_started(response), *self._say_halted(state, response)]
        if self._timers.sheds(state, open_answers, self.held.size_bytes if response.hold.holds_all else 0):
            self._counts["overloaded"] += 1
            response.started_held = True
            return write_ending(state, response, EndingCode.OVERLOADED)
        return [_say_started(response)]

    def parked(self, state: Partition, parked: Parked) -> list[Effect]:
        """A response that waits since before the partition was resumed. That it started has been said."""
        response = self._open(state, parked.opened, parked.opened_offset, 0, held_offset=None)
        return self._say_halted(state, response) if response.hold.halted else []

    def fence(self, state: Partition, fence: Fence, offset: int) -> list[Effect]:
        response = state.responses.get(fence.response_id)
        # `Opened` precedes every fence, and is read again, here or parked, until the end: what is not open has ended.
        if response is None:
            self._counts["void_fences"] += 1
            return [_say_void(fence, fence.attempt_id, fence.worker_id, "ended")]
        displaced_id, displaced_worker_id = response.prefix.attempt_id, response.attempt_worker_id
        verdict = response.prefix.fence(fence, offset)
        if verdict != "current":
            self._counts["void_fences"] += 1
            return [_say_void(fence, fence.attempt_id, fence.worker_id, verdict, response.prefix.begun_offset)]
        if response.held_offset is None:
            response.held_offset = offset
        response.attempt_worker_id = fence.worker_id
        response.placing = None
        if not response.prefix.accepted_tokens:
            response.worker_began_at_ms = fence.stage_ms.get("worker")
        if response.gap is not None and response.gap.attempt_id != fence.attempt_id:
            response.gap = None
        effects: list[Effect] = []
        # Who goes on with what another has begun changes nothing of what was told.
        if fence.move and not response.prefix.accepted_tokens and response.is_served_by(fence):
            effects.append(_say_started(response))
        if displaced_id is not None and displaced_id != fence.attempt_id:
            self._counts["superseded_attempts"] += 1
            effects.append(_say_void(fence, displaced_id, displaced_worker_id, "superseded"))
        return effects

    def frame(self, state: Partition, frame: Frame, timestamp_ms: int) -> list[Effect]:
        """This loop runs once per token: what most rows need not do has been moved out of it."""
        outbox = Outbox()
        released = outbox.rows
        responses, emitted_at_us, worker_id = state.responses, frame.emitted_at_us, frame.worker_id
        newest = (worker_id, emitted_at_us)
        stopped_by = _stopped_by(frame)
        for response_id, attempt_id in frame.spoilt:
            self._counts["rows_spoilt"] += 1
            response = responses.get(response_id)
            if response is not None and response.prefix.spoil(attempt_id):
                # Nothing fills it; another attempt may answer.
                self._timers.watch_gap(state, response, Gap(attempt_id, timestamp_ms, _NEVER))
        accepted_tokens = 0
        for response_id, attempt_id, choice, first, strand, tokens, text, ends, likely, finish, cached in zip(
            frame.response_id, frame.attempt_id, frame.choice, frame.first_sequence, strands(frame), frame.token_ids,
            frame.text, frame.text_ends, frame.logprobs, frame.finish, frame.cached_tokens, strict=True,
        ):  # fmt: skip
            response = responses.get(response_id)
            if response is None:
                self._counts["rows_after_end" if response_id in state.ended else "rows_unknown_response"] += 1
                continue
            count = len(tokens)
            verdict, known = response.prefix.row(attempt_id, choice, first, count, finish)
            if verdict is not _ACCEPTED:
                self._counts[f"rows_{verdict.value}"] += 1
                if verdict is RowVerdict.GAP:
                    self._timers.watch_gap(state, response, Gap(attempt_id, timestamp_ms, first + count))
                continue
            if first == 1 and not known:
                response.cached_tokens = min(cached, response.served.prompt_tokens)
                if response.started_held:
                    outbox.add([_say_started(response)])
            if count > known:
                tally = response.tallies[choice]
                if tally.newest is None:
                    tally.first_token_at_ms, tally.first_emitted_at_us = timestamp_ms, emitted_at_us
                tally.newest = newest
                accepted = count - known
                accepted_tokens += accepted
                if strand == "reasoning":
                    tally.reasoning += accepted
                else:
                    tally.output += accepted
                if not known and likely is None and response.hold.passes(choice, strand, text, ends):
                    released[response.reply_partition].append(
                        (response.scope_json, response_id, choice, first, strand, text, ends, emitted_at_us, None)
                    )
                    if response.keeps_text:
                        tally.keep(strand, text, ends)
                else:
                    tally.withheld += accepted
                    delta = Delta(choice, strand, first, text, ends, emitted_at_us, likely)
                    for piece in response.hold.accept(delta.after(known)):
                        released[response.reply_partition].append(response.release(piece))
                    if response.hold.halted and not response.verdict_written and not finish:
                        outbox.add(self._say_halted(state, response))
                if response.gap is not None and response.prefix.next_sequence >= response.gap.until:
                    response.gap = None
            if finish:
                response.tallies[choice].stopped_by = stopped_by.get((response_id, attempt_id, choice))
                for piece in response.hold.finish_choice(choice):
                    released[response.reply_partition].append(response.release(piece))
                if response.prefix.terminal is not None:
                    outbox.add(self._close(state, response, response.prefix.terminal, timestamp_ms))
                elif response.hold.halted and not response.verdict_written:
                    outbox.add(self._say_halted(state, response))
        self._counts["accepted_tokens"] += accepted_tokens
        return outbox.take()

    def ending(self, state: Partition, ending: Ending, offset: int, timestamp_ms: int) -> list[Effect]:
        response = state.responses.get(ending.response_id)
        if response is not None:
            displaced_id, displaced_worker_id = response.prefix.attempt_id, response.attempt_worker_id
            verdict = response.prefix.ending(ending)
            if verdict == "terminal":
                return self._close(state, response, ending.code, timestamp_ms, ending)
            if verdict == "moved":
                self._counts["moved"] += 1
                response.moves_on(ending, state.number, offset, timestamp_ms)
                # What was moved before a rebuild has been asked for, and maybe begun further down.
                moving: list[Effect] = [*response.asks_for_a_place()] if state.live else []
                if displaced_id is None or (ending.written_by == "worker" and ending.attempt_id == displaced_id):
                    return moving
                return [*moving, _say_void(ending, displaced_id, displaced_worker_id, "ended")]
            self._counts["void_endings"] += 1
            return []
        # Only who admits can end what was never opened; anyone else's ending comes late.
        is_refusal = ending.written_by == "admission" and ending.attempt_id is None
        if ending.response_id in state.ended or not is_refusal:
            self._counts["void_endings"] += 1
            return []
        state.remember_ended(ending.response_id)
        self._counts[f"ended_{ending.code.value}"] += 1
        return list(outcome.of_refusal(ending, timestamp_ms))

    def _close(
        self,
        state: Partition,
        response: Response,
        code: EndingCode,
        timestamp_ms: int,
        ending: Ending | None = None,
    ) -> list[Effect]:
        """The terminal has been read: releases what is held, says how it ended, bills it, and forgets it."""
        hold = response.hold
        effects: list[Effect] = []
        if response.started_held and not ENDINGS[code].is_error:
            effects.append(_say_started(response))
        effects += (Released(response.reply_partition, [response.release(piece)]) for piece in hold.finish())
        if hold.halted and not response.verdict_written:
            effects += self._say_halted(state, response)
        if hold.halted and code is EndingCode.COMPLETED:
            # Complete means that all of it was released.
            code = EndingCode.SAFETY_HALTED
        if ending is not None and ending.written_by != "worker":
            effects += stop_workers(response, code)
        effects += outcome.of_response(response, code, ending, timestamp_ms)
        effects += state.close(response)
        self._counts[f"ended_{code.value}"] += 1
        return effects

    def _open(
        self, state: Partition, opened: Opened, offset: int, timestamp_ms: int, *, held_offset: int | None
    ) -> Response:
        rules = self._rules_of(opened)
        phrases, mode = rules or _NO_RULES
        response = Response(
            response_id=opened.response_id,
            reply_partition=outcome.told_in(opened.reply_to),
            opened=opened,
            opened_offset=offset,
            opened_at_ms=timestamp_ms,
            held_offset=held_offset,
            prefix=AcceptedPrefix(opened.choices, most_moves=len(opened.further)),
            hold=looking(mode, phrases, content_is_json=opened.content_is_json, held=self.held),
            tallies=[Tally() for _ in range(opened.choices)],
            scope_json=opened.scope.model_copy(update={"traceparent": ""}).model_dump_json().encode(),
            keeps_text=opened.reply_to.results_topic is not None,
        )
        if rules is None:
            self._counts["without_policy"] += 1
            response.hold.halt()
        state.open(response)
        self._timers.watch_opened(state, response)
        return response

    def _say_halted(self, state: Partition, response: Response) -> list[Effect]:
        self._counts["halted"] += 1
        return say_halted(state, response)


def _say_started(response: Response) -> Emit:
    """Once more where it was moved: who has shown nothing of it yet goes by the last one."""
    opened = response.served
    response.started_held = False
    started = Started(
        response_id=opened.response_id,
        scope=opened.scope,
        endpoint=opened.endpoint,
        model=opened.model,
        requested_model=opened.requested_model,
        fallback=opened.fallback,
        lowered_from=opened.lowered_from,
        lane=opened.lane.value,
        pool=opened.pool,
        prompt_tokens=opened.prompt_tokens,
        accepted_at_ms=opened.accepted_at_ms,
        deadline_ms=opened.deadline_ms,
        choices=opened.choices,
        on_disconnect=opened.on_disconnect,
        limits=opened.limits,
        queued=opened.queued,
        brownout=opened.brownout,
        moves=response.prefix.moves,
        echo=opened.echo,
    )
    return Emit("responses", opened.response_id, started, response.reply_partition)


def _say_void(
    about: Fence | Ending,
    attempt_id: str,
    worker_id: str,
    why: Literal["tokens_precede", "superseded", "ended"],
    begun_offset: int | None = None,
) -> Emit:
    """Tells the worker of an attempt what this record means for it."""
    void = AttemptVoid(
        response_id=about.response_id, scope=about.scope, attempt_id=attempt_id, worker_id=worker_id, why=why,
        begun_offset=begun_offset,
    )  # fmt: skip
    return Emit("control", about.response_id, void)


def _stopped_by(frame: Frame) -> dict[tuple[str, str, int], StoppedBy]:
    """By response, attempt and choice, whose end is its last row."""
    if frame.stopped_by is None:
        return {}
    return dict(zip(zip(frame.response_id, frame.attempt_id, frame.choice, strict=True), frame.stopped_by, strict=True))
