"""What waits for a moment: to try again, or until another worker's lease has ended. Pure: time is a parameter."""

from collections.abc import Iterator
from heapq import heappop, heappush

from gpu_consumers.core.work import Phase, Work, Works


class Waits:
    """Of works that are `WAITING`."""

    def __init__(self, works: Works) -> None:
        self._works = works
        self._due: list[tuple[int, str]] = []
        self._left_at_ms = -1
        self._is_news = False

    def add(self, work: Work, until_ms: int, *, behind_lease: bool = False) -> None:
        """`behind_lease`: another has the claim, and its lease ends then. The answer that said so may be older than the
        news that somebody has left: then it is due at once.
        """
        work.lease_ends_ms = until_ms if behind_lease else 0
        is_late = behind_lease and work.is_own and _is_hurried(work) and self._left_at_ms >= work.asked_at_ms
        self._push(work, self._left_at_ms if is_late else until_ms)

    def _push(self, work: Work, until_ms: int) -> None:
        work.retry_at_ms = until_ms
        heappush(self._due, (until_ms, work.response_id))

    def worker_left(self, now_ms: int) -> None:
        """It has given back what it had begun. Whose that was among what others have begun is not known here, so for
        none of it the lease is waited for: when next asked what is due, the claims are asked again, and say of whom it
        still is.
        """
        self._left_at_ms, self._is_news = now_ms, True

    def take_due(self, now_ms: int) -> Iterator[Work]:
        """One by one: one that stands here twice waits no longer by its second turn, if the first was acted on."""
        if self._is_news:
            self._hurry(now_ms)
        while self._due and self._due[0][0] <= now_ms:
            retry_at_ms, response_id = heappop(self._due)
            work = self._works.by_response.get(response_id)
            if work is not None and work.phase is Phase.WAITING and work.retry_at_ms == retry_at_ms:
                yield work

    def _hurry(self, now_ms: int) -> None:
        """Once for all that have left since; of what the worker holds, only what waits here is looked at."""
        self._is_news = False
        for _, response_id in self._due.copy():
            work = self._works.by_response.get(response_id)
            if work is not None and work.is_behind_lease and work.retry_at_ms > now_ms and _is_hurried(work):
                self._push(work, now_ms)


def _is_hurried(work: Work) -> bool:
    """What is not continued would end by it: where the store has lost its memory, its worker is heard of again within
    the lease.
    """
    return work.request.continuation
