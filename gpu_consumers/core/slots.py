"""Who waits for a slot in the engine, and whom the claims are asked about meanwhile."""

from collections import deque
from collections.abc import Callable

from gpu_consumers.core.effects import AskClaim
from gpu_consumers.core.work import Work, Works
from gpu_consumers.scheduler import Queued, Scheduler

MAX_LOOKS = 128
"""Look-ups on their way at once: one round trip, so that claims of new work do not wait behind a whole backlog."""


class Slots:
    def __init__(self, slots: int, works: Works) -> None:
        self._slots = slots
        self._works = works
        self.scheduler = Scheduler()
        # What waits for a slot and was not looked up yet, and the look-ups on their way, by response.
        self._unlooked: deque[str] = deque()
        self._looks: dict[str, AskClaim] = {}
        self._look_not_before_ms = 0

    def queue(self, work: Work, now_ms: int, *, front: bool) -> None:
        request = work.request
        item = Queued(
            work.response_id,
            request.lane,
            request.scope.tenant_id,
            work.prompt_tokens + request.max_tokens,
            now_ms,
        )
        self.scheduler.add(item, front=front)
        if work.plan == "claim":
            self._unlooked.append(work.response_id)

    def remove(self, work: Work) -> None:
        self.scheduler.remove(work.response_id)

    def take(self) -> list[Queued]:
        """Whom the free slots are given to."""
        return self.scheduler.take(self._slots - self._works.slots_taken)

    def next_looks(self, now_ms: int, mint: Callable[[], str]) -> list[AskClaim]:
        """To be asked, of what found no slot: whether somebody has begun it."""
        looks: list[AskClaim] = []
        if now_ms < self._look_not_before_ms:
            return looks
        while self._unlooked and len(self._looks) < MAX_LOOKS:
            response_id = self._unlooked.popleft()
            work = self._works.by_response.get(response_id)
            if work is None or not work.waits_for_claim or response_id in self._looks:
                continue
            look = AskClaim(response_id, mint(), only_begun=not work.must_take_over)
            self._looks[response_id] = look
            looks.append(look)
        return looks

    def is_looked_up(self, response_id: str) -> bool:
        """The answer of a look-up decides what becomes of it: it may be ours by then."""
        return response_id in self._looks

    def take_look(self, response_id: str, attempt_id: str) -> AskClaim | None:
        """The look-up that this is the answer to, if it is one's."""
        look = self._looks.get(response_id)
        if look is None or look.attempt_id != attempt_id:
            return None
        return self._looks.pop(response_id)

    def look_again(self, work: Work, not_before_ms: int) -> None:
        """The store did not answer."""
        self._look_not_before_ms = not_before_ms
        self._unlooked.append(work.response_id)
