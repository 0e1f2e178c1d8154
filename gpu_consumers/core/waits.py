"""What waits for a moment: to try again, or until another worker's lease has ended. Pure: time is a parameter."""

from heapq import heappop, heappush

from gpu_consumers.core.claims import Claim
from gpu_consumers.core.work import Phase, Work, Works


class Waits:
    """Of works that are `WAITING`."""

    def __init__(self, works: Works) -> None:
        self._works = works
        self._due: list[tuple[int, str]] = []
        self._left_at_ms = -1
        """When a worker was last heard to have left."""

    def add(self, work: Work, until_ms: int, *, behind_lease: bool = False) -> None:
        work.retry_at_ms, work.behind_lease = until_ms, behind_lease
        heappush(self._due, (until_ms, work.response_id))

    def until_ms(self, work: Work, claim: Claim, now_ms: int) -> int:
        """When another has the claim: until when it is waited for. An answer to what was asked before somebody was
        heard to have left may be older than that: then it is asked for again at once.
        """
        return now_ms if work.asked_at_ms <= self._left_at_ms else now_ms + max(claim.retry_in_ms, 1)

    def worker_left(self, now_ms: int) -> None:
        """It has given back what it had begun. Whose that was among what others have begun is not known here, so for
        none of it the lease is waited for: the claims are asked again, and say of whom it still is.
        """
        self._left_at_ms = now_ms
        for work in self._works.by_response.values():
            if work.is_behind_lease:
                self.add(work, now_ms)

    def take_due(self, now_ms: int) -> list[Work]:
        due = []
        while self._due and self._due[0][0] <= now_ms:
            retry_at_ms, response_id = heappop(self._due)
            work = self._works.by_response.get(response_id)
            if work is not None and work.phase is Phase.WAITING and work.retry_at_ms == retry_at_ms:
                due.append(work)
        return due
