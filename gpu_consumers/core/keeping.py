"""That what runs, or waits for a slot to go on, has its claim: also what was begun while the store was away, or whose
claim the store has lost.
"""

from typing import Literal

from gpu_consumers.core.asking import Asking
from gpu_consumers.core.claims import Claim
from gpu_consumers.core.effects import Effect, ReleaseClaim
from gpu_consumers.core.work import Phase, Work, Works


class Keeping:
    def __init__(self, works: Works, asking: Asking, effects: list[Effect]) -> None:
        self._works = works
        self._asking = asking
        self._effects = effects

    def lease_renewed(self, stood: bool, now_ms: int) -> None:
        """The claim store answers. What runs, or was taken over, without a claim while it was away, is claimed; if the
        lease had not stood (`stood`), claims may have been lost, and everything that has one is, until the store has
        answered.
        """
        if not stood:
            for work in self._works.by_response.values():
                work.lacks_claim = True
                work.may_keep |= work.claimed_as != ""
        for work in self._works.by_attempt.values():
            if work.is_engaged_with and work.lacks_claim and work.may_keep:
                work.may_keep = False
                attempt_id = work.claimed_as or work.attempt_id
                purpose: Literal["begin", "take"] = "begin" if work.phase is Phase.RUNNING else "take"
                self._effects.append(self._asking.ask(work, attempt_id, purpose, now_ms))

    def asked(self, work: Work, attempt_id: str, claim: Claim | None) -> None:
        """The answer; None when the store did not."""
        if claim is None:
            work.may_keep = True
        elif claim.state == "fresh" or (claim.state == "expired" and claim.previous_attempt_id == attempt_id):
            work.was_forgotten |= claim.state == "fresh"
            work.claimed_as, work.is_counted, work.lacks_claim = attempt_id, claim.counted, False
        else:
            # Another had it meanwhile, and its fence may stand before what is still to come of this attempt. Were the
            # claim this one's, a finish that does not count would be believed by everybody.
            if claim.state == "expired":
                self._effects.append(ReleaseClaim(work.response_id, attempt_id, claim.counted, work.move))
            work.claimed_as, work.is_counted = "", False
