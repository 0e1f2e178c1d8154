"""What the claim store, and the log, are asked and told of a piece of work."""

from collections.abc import Mapping
from typing import Literal

from gpu_consumers.core.claims import KEPT_BEYOND_DEADLINE_MS, AskClaim, FinishClaim, ReleaseClaim
from gpu_consumers.core.effects import AskReadBack
from gpu_consumers.core.work import Phase, Work


class Asking:
    """Knows how far `generated` reaches, so that a claim can say where a read-back may start."""

    def __init__(self) -> None:
        self._generated_ends: dict[int, int] = {}

    def generated_ends(self, ends: Mapping[int, int]) -> None:
        """So far these partitions of `generated` reach, at least."""
        for partition, end in ends.items():
            self._generated_ends[partition] = max(end, self._generated_ends.get(partition, 0))

    def ask(self, work: Work, attempt_id: str, purpose: Literal["begin", "take", "look"], now_ms: int) -> AskClaim:
        if work.plan == "claim" and not work.must_take_over and work.phase is not Phase.RUNNING:
            # Nothing of this worker's attempts stands there yet.
            work.generated_end = max(work.request.opened_offset, self._generated_ends.get(work.partition, 0))
        work.asked_at_ms = now_ms
        most_begun = None if work.most_losses is None else work.most_losses + work.is_counted
        # What is planned as a claim is taken over first, if anybody had it, also this worker.
        held_as = "" if work.plan == "claim" else work.claimed_as
        return AskClaim(
            work.response_id, attempt_id, purpose, work.generated_end, _keep_ms(work, now_ms), most_begun, held_as,
            work.move,
        )  # fmt: skip

    @staticmethod
    def read_back(work: Work, fence_offset: int) -> AskReadBack:
        return AskReadBack(
            work.response_id, work.attempt_id, work.partition, work.reads_from, fence_offset, work.request.choices,
            work.move,
        )  # fmt: skip

    @staticmethod
    def finish(work: Work, now_ms: int) -> FinishClaim | ReleaseClaim:
        """What was forgotten is only given back: who takes it over reads in the log whether it has ended."""
        if work.was_forgotten:
            return Asking.release(work)
        return FinishClaim(work.response_id, _keep_ms(work, now_ms), work.move)

    @staticmethod
    def release(work: Work) -> ReleaseClaim:
        return ReleaseClaim(work.response_id, work.claimed_as, work.is_counted, work.move)


def _keep_ms(work: Work, now_ms: int) -> int:
    return max(work.request.deadline_ms - now_ms, 0) + KEPT_BEYOND_DEADLINE_MS
