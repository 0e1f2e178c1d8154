"""The attempts at an answer: claimed, fenced, read back, run, tried again, ended."""

from collections.abc import Callable
from typing import Literal

from gpu_consumers.core import effects
from gpu_consumers.core.asking import Asking
from gpu_consumers.core.claims import Claim
from gpu_consumers.core.continuation import LEFT_OUT, LOST, MAX_ATTEMPTS, how_it_failed, too_long, why_interrupted
from gpu_consumers.core.emission import Emission
from gpu_consumers.core.keeping import Keeping
from gpu_consumers.core.remembered import Remembered
from gpu_consumers.core.scheduler import Given
from gpu_consumers.core.slots import MAX_HOLD_MS, Slots
from gpu_consumers.core.takeover import ReadBack
from gpu_consumers.core.waits import Waits
from gpu_consumers.core.work import ENGAGED, MAX_LOSSES, UNSTARTED, Phase, Work, Works
from gpu_consumers.engines.port import EngineDelta
from schemas.control import AttemptVoid
from schemas.endings import EndingCode
from streams.deadlines import Deadlines

RETRY_MS = 1_000
_TOO_LARGE = "The answer says more at once than the log takes in one record."


class Attempts:
    """Moves works from phase to phase. Puts what is to be done into `effects`, or has `emission` do so."""

    def __init__(
        self, works: Works, slots: Slots, remembered: Remembered, emission: Emission, effects: list[effects.Effect],
        mint_attempt_id: Callable[[], str],
    ) -> None:  # fmt: skip
        self._works, self._slots, self._remembered = works, slots, remembered
        self._emission, self._effects, self._mint = emission, effects, mint_attempt_id
        self.waits = Waits(works)
        self.asking = Asking()
        self.keeping = Keeping(works, self.asking, effects)
        self.deadlines = Deadlines()
        self.engine_ready = self.is_draining = False

    def admit(self, work: Work, now_ms: int) -> None:
        self._works.by_response[work.response_id] = work
        self.deadlines.add(work.response_id, work.request.deadline_ms)
        code = self._remembered.take_cancel(work.response_id)
        if code is not None:
            self.end(work, code, now_ms)
        else:
            self.queue(work, now_ms)

    def cancel(self, work: Work, now_ms: int, code: EndingCode = EndingCode.CANCELLED) -> None:
        """`code`: how it ends for that; the first one counts."""
        work.cancelled = work.cancelled or code
        # While another worker has the lease, the cancel is that worker's to answer.
        if work.phase is not Phase.WAITING:
            self.end(work, work.cancelled, now_ms)

    def halt(self, work: Work, now_ms: int, outcome: str = "halted") -> None:
        """It has been ended by others, or moved on."""
        self._stop(work, outcome)
        self._done(work, now_ms)

    def end(self, work: Work, code: EndingCode, now_ms: int, *, message: str = "", param: str | None = None) -> None:
        """Publishes an ending. Of an attempt that may have published, it counts only while that is the current one;
        otherwise nothing here can lose, and it counts in any case.
        """
        if work.phase is Phase.CLOSING:
            return
        self._emission.publish_held()
        self._stop(work, code.value)
        self._slots.remove(work)
        if self._works.by_attempt.get(work.attempt_id) is not work:
            work.attempt_id = ""  # no fence of it is there that may be void by now
        self._works.set_phase(work, Phase.CLOSING)
        self._emission.ending(work, code, now_ms, message=message, param=param)

    def _stop(self, work: Work, outcome: str) -> None:
        """Takes it out of the engine, if it is there; the caller decides what becomes of it."""
        if work.phase is Phase.RUNNING:
            self._emission.drop_held(work)
            self._effects.append(effects.Abort(work.attempt_id))
            self._emission.account(work, outcome, work.last_token_at_ms or work.submitted_at_ms)

    def _done(self, work: Work, now_ms: int) -> None:
        """Its terminal is in the log."""
        for tracker, offset in work.sources:
            tracker.finished(offset)
        self._effects.append(self.asking.finish(work, now_ms))
        self.forget(work)
        self._remembered.end(work, now_ms)

    def forget(self, work: Work) -> None:
        """It is others' business from now on."""
        self._slots.remove(work)
        self._works.unset_attempt(work)
        self._works.set_phase(work, Phase.CLOSING)
        del self._works.by_response[work.response_id]
        self.deadlines.remove(work.response_id)

    def hand_over(self, now_ms: int) -> None:
        """Stops every attempt without an ending; whoever reads the lanes next takes over."""
        self._emission.publish_held()
        for work in list(self._works.by_response.values()):
            if work.phase in ENGAGED:
                self._emission.leaves(work, now_ms)
                self._stop(work, "handed_over")
                self._works.unset_attempt(work)
            if work.claimed_as and work.phase is not Phase.CLOSING:
                self._effects.append(self.asking.release(work))
                self.forget(work)

    def leave(self, work: Work) -> None:
        """Its last source was revoked. Unstarted work is forgotten, started work goes on. What waits for an engine that
        is away, or that takes nothing more, is given back: its next reader has one, or waits as well. What waits for a
        lease is asked for once more when that ends, if it has a slot then: its next reader may not have come to it yet.
        """
        if self._slots.is_looked_up(work.response_id) or (work.is_behind_lease and not self.is_draining):
            return
        if work.plan == "claim":
            if work.phase in UNSTARTED and (self.is_draining or not work.claimed_as):
                self._give_back(work)
        elif work.phase is Phase.QUEUED and not self.may_start:
            self._give_back(work)

    def _give_back(self, work: Work) -> None:
        """It is not this worker's to end: whoever reads it next can claim it at once."""
        if work.claimed_as:
            self._effects.append(self.asking.release(work))
        self._slots.remove(work, is_moved=True)
        self.forget(work)

    def drain(self) -> None:
        """Starts nothing more: what waits for the engine is given back as soon as no partition of its is read here."""
        self.is_draining = True
        for work in list(self._works.by_response.values()):
            if not work.is_own:
                self.leave(work)

    @property
    def may_start(self) -> bool:
        return self.engine_ready and not self.is_draining

    # Waiting

    def tick(self, now_ms: int) -> None:
        """What is due again, and what is due no longer."""
        for work in self.waits.take_due(now_ms):
            if work.plan == "takeover":
                self._take_over(work, now_ms)
            else:
                self.queue(work, now_ms, front=True)
        for response_id in self.deadlines.take_due(now_ms):
            work = self._works.by_response[response_id]
            if work.phase is not Phase.CLOSING:
                self.end(work, EndingCode.DEADLINE_EXCEEDED, now_ms)
        for response_id in self._slots.hopeless(now_ms):
            work = self._works.by_response[response_id]
            if work.plan in ("claim", "fresh"):
                # It may be another's by now, and has no fence that would tell: it leaves the others a turn.
                self._wait(work, "claim", now_ms + MAX_HOLD_MS)
            else:
                self.end(work, EndingCode.ENGINE_FAILED, now_ms, message=LEFT_OUT)

    def start(self, given: Given, now_ms: int) -> None:
        """It has a slot."""
        if given.instead_of:
            self._pause(self._works.by_response[given.instead_of], now_ms)
        work = self._works.by_response[given.item.response_id]
        work.on_floor, work.told_beyond = given.on_floor, given.told_beyond
        if work.plan != "generate":
            self._works.unset_attempt(work)  # that of a lost engine could be void until now
            work.attempt_id = self._mint()
        self._works.set_phase(work, Phase.CLAIMING)
        if work.plan == "fresh":
            self._enter(work, now_ms)
            return
        # Told before it enters: what kills this worker must have been counted by then.
        purpose: Literal["begin", "take"] = "take" if work.is_counted else "begin"
        self._effects.append(self.asking.ask(work, work.attempt_id, purpose, now_ms))

    def _pause(self, work: Work, now_ms: int) -> None:
        """It has said something, and goes on from there when it has a slot again."""
        work.pauses += 1
        self._emission.publish_held()
        self._stop(work, "paused")
        self._take_over(work, now_ms)

    def look_up(self, now_ms: int) -> None:
        """Asks, of what found no slot, whether somebody has begun it. A worker that drains: of what it owes alone."""
        for work in self._slots.take_unlooked(now_ms):
            if not work.is_own and work.lease_ends_ms > now_ms:
                self._wait(work, "claim", work.lease_ends_ms, behind_lease=True)
            elif not work.is_own:
                self._give_back(work)  # to its reader, who may have a slot for it
            elif work.is_owed or not self.is_draining:
                look = self.asking.ask(work, self._mint(), "take" if work.must_take_over else "look", now_ms)
                self._slots.look_asked(look)
                self._effects.append(look)

    def queue(self, work: Work, now_ms: int, *, front: bool = False) -> None:
        if work.cancelled:
            self.end(work, work.cancelled, now_ms)
            return
        is_anothers = not work.is_own and work.plan != "claim"
        if not self.may_start and (is_anothers or (self.is_draining and not work.is_owed)):
            self._give_back(work)
            return
        self._works.set_phase(work, Phase.QUEUED)
        self._slots.queue(work, now_ms, front=front)

    def _wait(
        self, work: Work, plan: Literal["claim", "takeover"], retry_at_ms: int, *, behind_lease: bool = False
    ) -> None:
        self._slots.remove(work)
        self._works.unset_attempt(work)
        work.plan = plan
        self._works.set_phase(work, Phase.WAITING)
        self.waits.add(work, retry_at_ms, behind_lease=behind_lease)

    # Claims

    def claimed(self, response_id: str, attempt_id: str, claim: Claim | None, now_ms: int, move: int = 0) -> None:
        """The answer to `AskClaim`; None when the store did not answer."""
        work = self._works.of_move(response_id, move)
        look = self._slots.take_look(response_id, attempt_id)
        if work is None:
            if claim is not None and claim.state in ("fresh", "expired"):
                # Does nothing where it is not ours, as what was looked up need not be.
                is_counted = claim.counted and look is None
                self._effects.append(effects.ReleaseClaim(response_id, attempt_id, is_counted, move))
        elif look is not None:
            if work.waits_for_claim:  # else it found a slot, or ended, before the answer came: that is what decides
                self._looked_up(work, look, claim, now_ms)
        elif work.phase is Phase.CLAIMING and work.attempt_id == attempt_id:
            self._begin(work, claim, now_ms)
        elif work.is_engaged_with and attempt_id in (work.attempt_id, work.claimed_as):
            self.keeping.asked(work, attempt_id, claim)

    def _begin(self, work: Work, claim: Claim | None, now_ms: int) -> None:
        """It has a slot, and enters the engine unless the claim says otherwise."""
        is_first = work.plan == "claim"
        if claim is None:
            # Without claims the fences alone decide; they are enough to be right.
            if is_first and work.is_cleared:
                self._take_over(work, now_ms)
            elif is_first and work.must_take_over:
                self._not_fresh(work, work.attempt_id, None, now_ms)
            else:
                self._enter(work, now_ms)
        elif (claim.state == "fresh" and not (is_first and work.must_take_over)) or (
            claim.state == "expired" and not is_first and claim.previous_attempt_id == work.claimed_as
        ):
            if is_first:
                work.reads_from = claim.generated_end
            work.has_begun(claim)
            work.claimed_as, work.is_counted, work.lacks_claim = work.attempt_id, True, False
            self._enter(work, now_ms)
        else:
            self._not_fresh(work, work.attempt_id, claim, now_ms)

    def _enter(self, work: Work, now_ms: int, *, is_told: bool = False) -> None:
        """`is_told`: the log has it that an attempt enters which was fenced before, as whoever moves it has to know."""
        if work.losses >= MAX_LOSSES:
            self._fail_lost(work, now_ms)
        elif (most := self._slots.room_lacked(work)) is not None:
            self._never_fits(work, most, now_ms)
        elif not self.may_start:
            # Since the claim was asked for the engine has died, or the worker was stopped.
            if work.plan != "generate":
                work.plan = "fresh"
            self.queue(work, now_ms, front=True)
        elif work.plan == "generate" and work.accepted is None and not is_told:
            self._emission.enters(work, now_ms)
        elif work.plan == "generate":
            self._submit(work, now_ms)
        else:
            self._generate_fresh(work, now_ms)

    def _never_fits(self, work: Work, most: int, now_ms: int) -> None:
        if work.claimed_as or work.plan == "generate":
            code, message, param = too_long(work, most)
            self.end(work, code, now_ms, message=message, param=param)
        else:
            # It may run where there is more memory: only a claim, or what is read back, would tell.
            self._wait(work, "claim", now_ms + RETRY_MS)

    def _fail_lost(self, work: Work, now_ms: int) -> None:
        self.end(work, EndingCode.ENGINE_FAILED, now_ms, message=LOST.format(losses=work.losses))

    def _looked_up(self, work: Work, look: effects.AskClaim, claim: Claim | None, now_ms: int) -> None:
        if claim is None or (claim.state == "fresh" and look.purpose == "look"):
            work.is_known_free = claim is not None
            if not work.is_own:
                self.forget(work)
            elif claim is None:
                self._slots.look_again(work, now_ms + RETRY_MS)
        else:
            self._not_fresh(work, look.attempt_id, claim, now_ms)

    def _not_fresh(self, work: Work, asked_as: str, claim: Claim | None, now_ms: int) -> None:
        """Somebody has, had or may have begun it."""
        if claim is None:
            self._wait(work, "claim", now_ms + RETRY_MS)
        elif claim.state == "finished":
            self._done(work, now_ms)
        elif claim.state == "leased":
            if work.is_own or work.lease_ends_ms > now_ms:
                self._wait(work, "claim", now_ms + max(claim.retry_in_ms, 1), behind_lease=True)
            else:
                self.forget(work)
        else:
            work.claimed_as, work.lacks_claim = asked_as, False
            work.has_begun(claim)
            work.is_counted |= claim.counted
            known_from = claim.generated_end if claim.state == "expired" else 0
            work.reads_from = max(work.request.opened_offset, known_from)
            self._take_over(work, now_ms)

    # Fences

    def _generate_fresh(self, work: Work, now_ms: int) -> None:
        self._works.set_attempt(work)
        self._emission.fence(work, "fresh", now_ms)
        self._submit(work, now_ms)

    def _take_over(self, work: Work, now_ms: int) -> None:
        """Another attempt may have begun: fence, then read back up to the fence."""
        self._slots.remove(work)
        self._works.unset_attempt(work)
        work.attempt_id = self._mint()
        work.must_take_over = work.may_keep = True
        self._works.set_attempt(work)
        self._works.set_phase(work, Phase.FENCING)
        work.begins_anew()
        self._emission.fence(work, "takeover", now_ms, losses=work.losses)

    def read_back(self, answer: ReadBack, now_ms: int) -> None:
        work = self._works.of_attempt(answer.ask.response_id, answer.ask.attempt_id, answer.ask.move)
        if work is None or work.phase is not Phase.READING:
            return
        work.accepted, work.attempts = answer.accepted, answer.attempts
        if answer.accepted is not None:
            work.forgive_losses(answer.silent_attempts)
            work.begins_anew()
        if answer.finding == "ended":
            self._done(work, now_ms)
        elif answer.finding == "superseded":
            self._wait(work, "claim", now_ms + RETRY_MS)
        elif work.cancelled:
            self.end(work, work.cancelled, now_ms)
        elif work.request.deadline_ms <= now_ms:
            self.end(work, EndingCode.DEADLINE_EXCEEDED, now_ms)
        elif (why := why_interrupted(work, answer)) is not None:
            self.end(work, EndingCode.GENERATION_INTERRUPTED, now_ms, message=why)
        elif work.losses >= MAX_LOSSES or answer.attempts > MAX_ATTEMPTS:
            work.losses = max(work.losses, answer.silent_attempts)
            self._fail_lost(work, now_ms)
        else:
            work.plan = "generate"
            self.queue(work, now_ms, front=True)

    def void(self, void: AttemptVoid, now_ms: int) -> None:
        """An own attempt does not count."""
        work = self._works.by_response.get(void.response_id)
        if work is None:
            self._void_ended(void, now_ms)
            return
        if self._works.by_attempt.get(void.attempt_id) is not work:
            return
        self._stop(work, "void")
        if void.why == "ended":
            self._done(work, now_ms)
        elif void.why == "superseded" and not work.is_own:
            self._give_back(work)
        elif work.claimed_as and void.why != "superseded":
            work.read_whole(void.begun_offset)
            self._take_over(work, now_ms)
        else:
            # Another's, or begun without a claim: whoever was first may be alive, so ask again before taking over.
            self._ask_again(work, now_ms)

    def _void_ended(self, void: AttemptVoid, now_ms: int) -> None:
        """It ran to its end before the answer came, but what it wrote last was void already."""
        ended = None if void.why == "ended" else self._remembered.take_ended(void.response_id, void.attempt_id)
        if ended is None or (void.why == "superseded" and not ended.is_owed):
            return
        work = self._works.by_response[void.response_id] = ended.work()
        self.deadlines.add(work.response_id, work.request.deadline_ms)
        if void.why == "superseded":
            self._ask_again(work, now_ms)
        else:
            # The older attempt has to be ended.
            work.read_whole(void.begun_offset)
            self._take_over(work, now_ms)

    def _ask_again(self, work: Work, now_ms: int) -> None:
        if work.claimed_as:
            self._effects.append(self.asking.release(work))
        work.asks_anew()
        self._wait(work, "claim", now_ms + RETRY_MS)

    # The engine

    def _submit(self, work: Work, now_ms: int) -> None:
        self._works.set_phase(work, Phase.RUNNING)
        work.begins_anew()
        work.submitted_at_ms = now_ms
        work.on_trial = work.is_suspect
        self._effects.append(effects.Submit(work.engine_request()))

    def failed(self, work: Work, delta: EngineDelta, now_ms: int) -> EndingCode:
        """The engine refused or lost this request alone. Returns how it ends."""
        code, message = how_it_failed(work, delta)
        self.end(work, code, now_ms, message=message, param=delta.refused_param)
        return code

    def cleared(self, work: Work, now_ms: int) -> None:
        """It was tried alone, and got a token: it begins once more, beside others, and was not lost until it does."""
        if work.phase is not Phase.RUNNING or not work.on_trial:
            return
        self._emission.leaves(work, now_ms)
        self._stop(work, "tried_alone")
        self._works.unset_attempt(work)
        work.is_cleared = True
        if work.claimed_as:
            self._effects.append(self.asking.release(work))
        work.asks_anew()
        work.plan, work.most_losses = "claim", work.lost_by_pool  # also where the release comes behind the next claim
        self.queue(work, now_ms, front=True)

    def engine_died(self, now_ms: int) -> None:
        """Every attempt in it is lost: tried again while no token of it was published, else taken over."""
        self._emission.publish_held()
        self.engine_ready = False
        for work in [work for work in self._works.by_response.values() if work.phase is Phase.RUNNING]:
            if not work.has_said_nothing:
                work.engine_deaths += 1
                self._emission.account(work, "engine_died", now_ms)
                self._take_over(work, now_ms)
                continue
            work.losses += 1
            work.lost_here, work.is_cleared, work.is_counted = True, False, False
            if work.losses >= MAX_LOSSES:
                self._fail_lost(work, now_ms)
                continue
            self._emission.account(work, "engine_died", now_ms)
            if work.accepted is not None:
                self._take_over(work, now_ms)  # behind what others have said nothing else counts
                continue
            work.plan = "again"
            self.queue(work, now_ms, front=True)

    # Deliveries

    def delivered(self, receipt: effects.OfAttempt, offset: int, now_ms: int) -> None:
        """Kafka acknowledged a record."""
        if not isinstance(receipt, effects.DeadLetterSent):
            self.asking.generated_ends({receipt.partition: offset + 1})
        if isinstance(receipt, effects.FenceSent):
            work = self._works.by_attempt.get(receipt.attempt_id)
            if work is not None and work.phase is Phase.FENCING:
                self._works.set_phase(work, Phase.READING)
                self._effects.append(self.asking.read_back(work, offset))
            elif work is not None and work.phase is Phase.CLAIMING and receipt.enters:
                self._enter(work, now_ms, is_told=True)
        elif isinstance(receipt, effects.FrameSent):
            self._emission.frame_settled()
            for attempt_id in receipt.finished:
                work = self._works.by_attempt.get(attempt_id)
                if work is not None and work.phase is Phase.CLOSING:
                    self._done(work, now_ms)
        elif isinstance(receipt, effects.EndingSent):
            work = self._works.of_attempt(receipt.response_id, receipt.attempt_id, receipt.move)
            if work is not None and work.phase is Phase.CLOSING:
                self._done(work, now_ms)
        else:
            receipt.tracker.finished(receipt.offset)

    def undelivered(self, receipt: effects.OfAttempt, now_ms: int, *, is_too_large: bool = False) -> None:
        """Delivery failed for good: what follows it in the log would leave a gap, so its attempts are over.

        They begin again with a read-back. Those of a frame that is too large would write it again: they end. Raises
        RuntimeError for a dead letter: nothing else can be done with it.
        """
        if isinstance(receipt, effects.DeadLetterSent):
            raise RuntimeError(f"the dead letter for offset {receipt.offset} could not be delivered")  # noqa: TRY004
        if isinstance(receipt, effects.FrameSent):
            self._emission.frame_settled()
            works = [self._works.by_attempt.get(attempt_id) for attempt_id in receipt.attempt_ids]
        else:
            works = [self._works.of_attempt(receipt.response_id, receipt.attempt_id, receipt.move)]
        for work in works:
            if work is None or work.phase is Phase.WAITING:
                continue
            self._stop(work, "undelivered")
            if is_too_large and isinstance(receipt, effects.FrameSent):
                self._works.set_phase(work, Phase.CLOSING)
                self._emission.ending(work, EndingCode.ENGINE_FAILED, now_ms, message=_TOO_LARGE)
            else:
                self._wait(work, "takeover", now_ms + RETRY_MS)
