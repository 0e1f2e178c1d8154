"""What happens because time passes, or because there is too much: deadlines, cancels, gaps, shedding.

Nothing here ends a response: endings are written. Time is a parameter, in Unix milliseconds.
"""

from collections import Counter

from agents.post_safety.effects import Effect
from agents.post_safety.own_endings import write_ending
from agents.post_safety.partition import Partition
from agents.post_safety.state import Gap, Response
from schemas.control import CANCEL_CODES, Cancel
from schemas.endings import EndingCode
from streams.recent_ids import RecentIds
from streams.settings import PostSafetySettings


class Timers:
    def __init__(self, settings: PostSafetySettings, counts: Counter[str]) -> None:
        self._settings = settings
        self._counts = counts
        self._early_cancels = {code: RecentIds() for code in CANCEL_CODES}

    def cancel(self, partitions: list[Partition], cancel: Cancel, cancelled_at_ms: int) -> None:
        """Takes effect in `tick`. Of a response that is not known yet, maybe never here: when it is opened."""
        response_id = cancel.response_id
        for state in partitions:
            response = state.responses.get(response_id)
            if response is not None:
                self._watch_cancel(state, response, cancelled_at_ms, cancel.code)
                return
            if response_id in state.ended:
                return
        if not self._early_cancels[cancel.code].add(response_id, cancel.scope.tenant_id, cancelled_at_ms):
            self._counts["early_cancels_forgotten"] += 1

    def watch_opened(self, state: Partition, response: Response) -> None:
        """A response begins: its deadline, and a cancel that came before it."""
        state.deadlines.add(response.response_id, response.opened.deadline_ms)
        for code, cancels in self._early_cancels.items():
            cancelled_at_ms = cancels.take(response.response_id)
            if cancelled_at_ms is not None:
                self._watch_cancel(state, response, cancelled_at_ms, code)

    def watch_gap(self, state: Partition, response: Response, gap: Gap) -> None:
        """Something of the response is missing. The first gap's time counts, and the furthest end."""
        if response.gap is None:
            response.gap = gap
            state.watched[response.response_id] = response
        else:
            response.gap.until = max(response.gap.until, gap.until)

    def sheds(self, state: Partition, open_answers: int, held_bytes: int) -> bool:
        """Whether a response that comes now, beside so many open answers, and so much that is held of them if it is to
        be held as well, is one too many. A rebuild sheds nothing.
        """
        is_full = held_bytes >= self._settings.max_reviewed_mib * 1_048_576
        return state.live and (open_answers >= self._settings.max_open_responses or is_full)

    def tick(self, partitions: list[Partition], now_ms: int) -> list[Effect]:
        """Endings that are due: deadlines, cancels that no worker answers, gaps that nobody fills."""
        for cancels in self._early_cancels.values():
            cancels.forget(now_ms)
        effects: list[Effect] = []
        for state in partitions:
            if state.live:
                for response_id in state.deadlines.take_due(now_ms):
                    effects += write_ending(state, state.responses[response_id], EndingCode.DEADLINE_EXCEEDED)
                if state.watched:
                    effects += self._look_at_watched(state, now_ms)
        return effects

    def _watch_cancel(self, state: Partition, response: Response, cancelled_at_ms: int, code: EndingCode) -> None:
        if response.cancelled_at_ms is None:
            response.cancelled_at_ms, response.cancelled_as = cancelled_at_ms, code
            state.watched[response.response_id] = response

    def _look_at_watched(self, state: Partition, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for response_id, response in list(state.watched.items()):
            cancelled_at_ms, gap = response.cancelled_at_ms, response.gap
            if cancelled_at_ms is not None:
                # Where no attempt has begun, nobody will answer: it ends at once.
                patience_ms = self._settings.unanswered_cancel_ms if response.prefix.attempt_id is not None else 0
                if now_ms >= cancelled_at_ms + patience_ms:
                    response.cancelled_at_ms = None
                    effects += write_ending(state, response, response.cancelled_as)
            if gap is not None and now_ms >= gap.since_ms + self._settings.gap_ms:
                response.gap = None
                effects += write_ending(state, response, EndingCode.STREAM_GAP, attempt_id=gap.attempt_id)
            if response.cancelled_at_ms is None and response.gap is None:
                del state.watched[response_id]
        return effects
