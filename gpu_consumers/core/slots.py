"""Who waits for a slot in the engine, and whom the claims are asked about meanwhile.

A slot is an answer's place in the engine, in its batch or waiting for that; `scheduler.py` says who is given one.

A suspect (`Work.is_suspect`) is first tried alone: others wait until the engine is empty, and until it has a token.
That token is not published; then it waits like everybody else. So no answer dies with it. Suspects are tried in the
order of their lanes; when others have waited for them for long, those have a turn.
"""

from collections import deque
from collections.abc import Mapping

from gpu_consumers.core.capacity import Capacity
from gpu_consumers.core.claims import AskClaim
from gpu_consumers.core.continuation import may_pause
from gpu_consumers.core.fair_queue import NEVER, Queued
from gpu_consumers.core.pool_shares import Service
from gpu_consumers.core.scheduler import Given, Scheduler, Sizes
from gpu_consumers.core.work import MAX_LOSSES, Work, Works
from gpu_consumers.engines.port import EngineStats
from schemas.request import Lane
from schemas.vectors import weight_tokens
from schemas.worker import MAX_TENANTS, LaneQueue, OfTenantsByLane
from streams.lane_policy import LanePolicies

MAX_LOOKS = 128
"""Look-ups on their way at once: one round trip, so that claims of new work do not wait behind a whole backlog."""
MAX_HOLD_MS = 30_000
"""So long others wait for suspects, and so long is the turn that they have then."""
MAX_TURNS = 3
"""Of others, since a suspect was last tried. After these, or if none was tried, suspects that hold up others give up:
the engine does not get empty for them."""


class Slots:
    def __init__(
        self,
        sizes: Sizes,
        policies: LanePolicies,
        works: Works,
        memory: Capacity,
        dimensions: int = 0,
        max_pauses: int = 0,
    ) -> None:
        self._works = works
        self._batch = sizes.batch
        self._max_pauses = max_pauses
        self._dimensions = dimensions
        self._memory = memory
        self._scheduler = Scheduler(sizes, policies, memory)
        self._suspects = Scheduler(sizes, policies)
        self._holding_since_ms: int | None = None
        self._turn_until_ms = 0
        self._turns_left = 0
        # What waits for a slot and was not looked up yet, and the look-ups on their way, by response.
        self._unlooked: deque[str] = deque()
        self._looks: dict[str, AskClaim] = {}
        self._look_not_before_ms = 0

    def queue(self, work: Work, now_ms: int, *, front: bool) -> None:
        if work.queued_first_ms is None:
            work.queued_first_ms = now_ms
        item = self._item(work, now_ms)
        if work.is_suspect and work.losses < MAX_LOSSES:
            self._suspects.add(item)
        else:
            self._scheduler.add(item, front=front)
        work.is_known_free = False
        if work.plan == "claim":
            self._unlooked.append(work.response_id)

    def _item(self, work: Work, now_ms: int) -> Queued:
        request = work.request
        tokens = work.prompt_tokens + request.choices * request.max_tokens
        tokens += weight_tokens(len(request.input_ends), request.dimensions or self._dimensions)
        most_output = work.slots * request.max_tokens
        waited_ms = 0 if work.queued_first_ms is None else now_ms - work.queued_first_ms
        return Queued(
            work.response_id, request.lane, tokens, now_ms, work.slots, request.scope.tenant_id,
            work.prompt_tokens, most_output, request.weight, waited_ms, work.said_tokens,
            may_pause(work, self._max_pauses),
        )  # fmt: skip

    def room_lacked(self, work: Work) -> int | None:
        """Of how many tokens the engine's memory has room, where it never has any for this. None: it may enter."""
        return self._memory.most_tokens if self._memory.never_fits(self._item(work, 0)) else None

    def remove(self, work: Work, *, is_moved: bool = False) -> None:
        self._scheduler.remove(work.response_id, is_moved=is_moved)
        self._suspects.remove(work.response_id)

    def give_away(self, work: Work) -> None:
        """To another worker: who waits here behind it has one less before it."""
        self._scheduler.give_away(work.response_id)

    def take(self, now_ms: int) -> Given | None:
        """Whom the next free slot is given to. It is taken by whoever is told, before this is asked again."""
        self._account()
        if not self._holds_others_up(now_ms):
            return self._scheduler.take(self._works.held, now_ms)
        if self._works.are_in_slots or (suspect := self._suspects.take_first()) is None:
            return None
        self._turns_left = MAX_TURNS
        return Given(suspect, "order", on_floor=False, told_beyond=NEVER)

    def engine_tells(self, stats: EngineStats, now_ms: int) -> None:
        """Often: what becomes of its memory."""
        self._account()
        self._scheduler.engine_tells(stats, now_ms)

    def _account(self) -> None:
        """What the engine has done for whom since it was looked at last."""
        for lane, response_id, output, goes_on in self._works.take_left():
            self._scheduler.left(lane, response_id, output, goes_on=goes_on)
        for work in self._works.take_grown():
            work.told_beyond = self._scheduler.grown(work.request.lane, work.response_id, work.generated_tokens)

    def _holds_others_up(self, now_ms: int) -> bool:
        if not self._suspects and not self._works.is_trial_on:
            self._holding_since_ms, self._turn_until_ms, self._turns_left = None, 0, 0
            return False
        if now_ms < self._turn_until_ms:
            return False
        if not self._scheduler:
            self._holding_since_ms = None
        elif self._holding_since_ms is None:
            self._holding_since_ms = now_ms
        elif self._is_long_held(now_ms) and self._turns_left:
            self._turns_left -= 1
            self._holding_since_ms, self._turn_until_ms = None, now_ms + MAX_HOLD_MS
            return False
        return True

    def _is_long_held(self, now_ms: int) -> bool:
        """Others have waited for suspects for long. Who is tried now is waited for in any case."""
        since_ms = self._holding_since_ms
        return since_ms is not None and now_ms - since_ms >= MAX_HOLD_MS and not self._works.is_trial_on

    def hopeless(self, now_ms: int) -> list[str]:
        """The suspects that others have waited for too long, and for which no engine gets empty."""
        if self._turns_left or not self._works.are_in_slots or not self._is_long_held(now_ms):
            return []
        return self._suspects.waiting_ids()

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

    def drop_look(self, response_id: str) -> None:
        """Whatever it says is nothing to who comes next under that name."""
        self._looks.pop(response_id, None)

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

    @property
    def queued_tokens(self) -> int:
        return self._scheduler.queued_tokens + self._suspects.queued_tokens

    @property
    def tokens_of(self) -> dict[str, int]:
        """Those of the tenants that have most."""
        return dict((self._scheduler.tokens_of + self._suspects.tokens_of).most_common(MAX_TENANTS))

    @property
    def queued_slots(self) -> int:
        """That what waits will take: one for each answer."""
        return self._scheduler.queued_slots + self._suspects.queued_slots

    @property
    def slots_of(self) -> dict[str, int]:
        """As `tokens_of`."""
        return dict((self._scheduler.slots_of + self._suspects.slots_of).most_common(MAX_TENANTS))

    def waiting(self) -> dict[Lane, int]:
        suspects = self._suspects.waiting()
        return {lane: count + suspects[lane] for lane, count in self._scheduler.waiting().items()}

    def given_of(self) -> OfTenantsByLane:
        return self._scheduler.given_of()

    def ahead_of(self) -> OfTenantsByLane:
        return self._scheduler.ahead_of()

    def restore(self, ahead: OfTenantsByLane) -> None:
        self._scheduler.restore(ahead)

    def given_elsewhere(self, service: Mapping[Lane, Service]) -> None:
        self._scheduler.given_elsewhere(service)

    def waiting_in(self, lane: Lane) -> list[str]:
        """Whose answers, as they came; without suspects, as `queues`."""
        return self._scheduler.waiting_in(lane)

    def queues(self, now_ms: int) -> dict[Lane, LaneQueue]:
        """Without suspects: these are few, and wait for an empty engine. What waits in the engine for a place in its
        batch waits still: who comes next waits for it as well.
        """
        queues, oldest_ms = self._scheduler.queues(), self.oldest_waiting_ms(now_ms)
        for work in self._works.behind_batch(self._batch):
            lane = work.request.lane
            queue, item = queues[lane], self._item(work, now_ms)
            oldest_ms[lane] = max(oldest_ms[lane], item.queued_before_ms)
            queues[lane] = LaneQueue(
                waiting=queue.waiting + 1, left=max(queue.left - 1, 0),
                left_tokens=max(queue.left_tokens - item.tokens, 0),
                spilled=queue.spilled, spilled_tokens=queue.spilled_tokens,
            )  # fmt: skip
        return {lane: queue.model_copy(update={"oldest_ms": oldest_ms[lane]}) for lane, queue in queues.items()}

    def oldest_waiting_ms(self, now_ms: int) -> dict[Lane, int]:
        suspects = self._suspects.oldest_waiting_ms(now_ms)
        return {lane: max(age_ms, suspects[lane]) for lane, age_ms in self._scheduler.oldest_waiting_ms(now_ms).items()}
