"""What waits for a moment: to try again, or until another worker's lease has ended. Pure: time is a parameter."""

from collections.abc import Iterator
from heapq import heappop, heappush

from gpu_consumers.core.claims import Claim
from gpu_consumers.core.work import Phase, Work, Works


class Waits:
    """Of works that are `WAITING`."""

    def __init__(self, works: Works) -> None:
        self._works = works
        self._due: list[tuple[int, str]] = []

    def add(self, work: Work, until_ms: int, *, behind_lease: bool = False) -> None:
        work.retry_at_ms, work.behind_lease = until_ms, behind_lease
        heappush(self._due, (until_ms, work.response_id))

    @staticmethod
    def until_ms(work: Work, claim: Claim, now_ms: int) -> int:
        """Another has the claim: until when that is waited for. The answer may be older than the news that somebody
        has left: then it is asked for again at once.
        """
        return now_ms if work.one_has_left else now_ms + max(claim.retry_in_ms, 1)

    def worker_left(self, now_ms: int) -> None:
        """It has given back what it had begun. Whose that was among what others have begun is not known here, so for
        none of it the lease is waited for: the claims are asked again, and say of whom it still is.
        """
        for work in self._works.by_response.values():
            work.one_has_left = True
            if work.is_behind_lease:
                self.add(work, now_ms)

    def take_due(self, now_ms: int) -> Iterator[Work]:
        """One by one: one that stands here twice waits no longer by its second turn, if the first was acted on."""
        while self._due and self._due[0][0] <= now_ms:
            retry_at_ms, response_id = heappop(self._due)
            work = self._works.by_response.get(response_id)
            if work is not None and work.phase is Phase.WAITING and work.retry_at_ms == retry_at_ms:
                yield work
