"""Who waits for a slot in the engine, and whom the claims are asked about meanwhile.

A suspect (`Work.is_suspect`) is first tried alone: others wait until the engine is empty, and until it has a token.
That token is not published; then it waits like everybody else. So no answer dies with it.
"""

from collections import OrderedDict, deque

from gpu_consumers.core.claims import AskClaim
from gpu_consumers.core.scheduler import Queued, Scheduler
from gpu_consumers.core.work import Work, Works
from schemas.request import LANES, Lane

MAX_LOOKS = 128
"""Look-ups on their way at once: one round trip, so that claims of new work do not wait behind a whole backlog."""
MAX_HOLD_MS = 30_000
"""So long others wait for an engine to be empty for suspects; then the suspects are not tried again."""


class Slots:
    def __init__(self, slots: int, works: Works) -> None:
        self._slots = slots
        self._works = works
        self._scheduler = Scheduler()
        self._suspects: OrderedDict[str, Queued] = OrderedDict()
        self._holding_since_ms: int | None = None
        # What waits for a slot and was not looked up yet, and the look-ups on their way, by response.
        self._unlooked: deque[str] = deque()
        self._looks: dict[str, AskClaim] = {}
        self._look_not_before_ms = 0

    def queue(self, work: Work, now_ms: int, *, front: bool) -> None:
        request = work.request
        item = Queued(work.response_id, request.lane, work.prompt_tokens + request.max_tokens, now_ms)
        if work.is_suspect:
            self._suspects[work.response_id] = item
        else:
            self._scheduler.add(item, front=front)
        if work.plan == "claim":
            self._unlooked.append(work.response_id)

    def remove(self, work: Work) -> None:
        self._scheduler.remove(work.response_id)
        self._suspects.pop(work.response_id, None)

    def take(self) -> list[Queued]:
        """Whom the free slots are given to."""
        taken = self._works.slots_taken
        if not self._suspects and not self._works.is_trial_on:
            return self._scheduler.take(self._slots - taken)
        return [] if taken else [self._suspects.popitem(last=False)[1]]

    def take_hopeless(self, now_ms: int) -> list[str]:
        """The suspects that others have waited for too long. Ask again and again.

        While one of them is tried, the others only wait for their turn.
        """
        if not self._suspects or not self._works.slots_taken or self._works.is_trial_on:
            self._holding_since_ms = None
            return []
        if self._holding_since_ms is None:
            self._holding_since_ms = now_ms
        return list(self._suspects) if now_ms - self._holding_since_ms >= MAX_HOLD_MS else []

    # Look-ups

    def take_unlooked(self, now_ms: int) -> list[Work]:
        """Who is to be looked up now: whether somebody has begun it."""
        found: list[Work] = []
        if now_ms < self._look_not_before_ms:
            return found
        while self._unlooked and len(self._looks) + len(found) < MAX_LOOKS:
            response_id = self._unlooked.popleft()
            work = self._works.by_response.get(response_id)
            if work is not None and work.waits_for_claim and response_id not in self._looks:
                found.append(work)
        return found

    def look_asked(self, look: AskClaim) -> None:
        self._looks[look.response_id] = look

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

    # What waits

    def __len__(self) -> int:
        return len(self._scheduler) + len(self._suspects)

    @property
    def queued_tokens(self) -> int:
        return self._scheduler.queued_tokens + sum(item.tokens for item in self._suspects.values())

    def waiting(self) -> dict[Lane, int]:
        suspects = [item.lane for item in self._suspects.values()]
        return {lane: count + suspects.count(lane) for lane, count in self._scheduler.waiting().items()}

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        ages = self._scheduler.oldest_waiting_ms(now_ms)
        for item in self._suspects.values():
            ages[item.lane] = max(ages[item.lane], now_ms - item.queued_at_ms)
        return {lane: ages[lane] for lane in LANES}
