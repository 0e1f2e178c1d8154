"""Gives unstarted requests to other workers of the pool: `spilling.py` says which.

1. It leaves the queue here, and a copy of its record is published into a partition that the other reads.
2. The copy is acknowledged: the record here counts as ended. What of it was read since, the copy too, does not.
3. The commit passes it, like whatever has ended.

Killed after 1: the record here is read again by whoever comes, and its copy elsewhere, so there are two records of one
response, as after a crash of admission's. Who claims it first answers it; the other finds that claim, or the terminal.
Killed after 2: the same, until a commit says that it has ended. A copy that cannot be delivered, or may have been,
leaves the request where it was.
"""

from collections import deque
from collections.abc import Callable, Iterator

from gpu_consumers.core.config import CoreConfig, Observer
from gpu_consumers.core.effects import CopySent, Effect, Publish
from gpu_consumers.core.lanes import Lanes
from gpu_consumers.core.prompt_hits import KnownPrefixes
from gpu_consumers.core.slots import Slots
from gpu_consumers.core.spilling import MAX_SPILLS, Candidate, Spill, Spilling
from gpu_consumers.core.work import Phase, Work, Works
from schemas.generated import QueueAhead
from schemas.request import Lane
from schemas.worker import MAX_MOVED, WorkerState

MAX_LOOKED_AT = 2_000
"""Of a lane, the newest, in each round: a whole backlog would take longer than a token may be late."""
TOLD_MS = 2_500
"""Two heartbeats: gateways read every one while somebody waits."""
REST_MS = 10_000
"""After a copy that was not delivered."""


class GivingAway:
    """`queue_again` takes a work back that stays, `forget` drops one that is others' business from now on."""

    def __init__(
        self, config: CoreConfig, works: Works, slots: Slots, lanes: Lanes, prefixes: KnownPrefixes, observer: Observer,
        effects: list[Effect], queue_again: Callable[[Work, int], None], forget: Callable[[Work], None],
    ) -> None:  # fmt: skip
        self._config, self._works, self._slots, self._lanes = config, works, slots, lanes
        self._prefixes, self._observer, self._effects = prefixes, observer, effects
        self._queue_again, self._forget = queue_again, forget
        self._spilling = Spilling(config.worker_id, config.pool, config.spills_per_s)
        self._rests_until_ms = 0
        self._moved: deque[tuple[int, str, QueueAhead]] = deque(maxlen=MAX_MOVED)

    def heard(self, state: WorkerState) -> None:
        """A heartbeat of any worker, also its own; in order per worker."""
        self._spilling.heard(state)

    def buried(self, worker_id: str) -> None:
        self._spilling.buried(worker_id)

    def tick(self, now_ms: int) -> None:
        """Often; it looks once a second."""
        if now_ms < self._rests_until_ms or not self._spilling.due(now_ms):
            return
        waiting = {lane: queue.waiting for lane, queue in self._slots.queues(now_ms).items()}
        for spill in self._spilling.plan(waiting, self._candidates, self._lanes.owned(), now_ms):
            self._give(spill, now_ms)

    def _candidates(self, lane: Lane) -> Iterator[Candidate]:
        for response_id in self._slots.waiting_in(lane)[-MAX_LOOKED_AT:]:
            work = self._works.by_response[response_id]
            if _is_unstarted(work) and not self._slots.is_looked_up(response_id):
                request = work.request
                yield Candidate(
                    response_id, request.scope.tenant_id, work.prompt_tokens, request.deadline_ms, request.weight,
                    request.cache_id, min(self._prefixes.tokens(request.cache_id), work.prompt_tokens),
                )  # fmt: skip

    def _give(self, spill: Spill, now_ms: int) -> None:
        work = self._works.by_response[spill.response_id]
        request = work.request
        stages = {stage: at_ms for stage, at_ms in request.stage_ms.items() if stage != "taken"}
        copy = request.model_copy(
            update={
                "prompt_token_ids": work.prompt.tolist(), "spills": request.spills + 1,
                "stage_ms": {**stages, "spilled": now_ms},
            }
        )  # fmt: skip
        self._slots.give_away(work)
        self._works.set_phase(work, Phase.SPILLING)
        topic = self._config.topics.lane(self._config.pool, request.lane).name
        receipt = CopySent(work.response_id, tuple(work.sources))
        if spill.ahead is not None:
            self._moved.append((now_ms, work.response_id, spill.ahead))
        self._effects.append(Publish(topic, spill.partition, work.response_id, copy.encode(), receipt))

    def moved(self, now_ms: int) -> dict[str, QueueAhead]:
        """Where those wait that were given away since the last heartbeats."""
        while self._moved and self._moved[0][0] <= now_ms - TOLD_MS:
            self._moved.popleft()
        return {response_id: ahead for _, response_id, ahead in self._moved}

    def delivered(self, receipt: CopySent, now_ms: int) -> None:
        work = self._of(receipt)
        if work is None:
            return
        given = [source for source in work.sources if source in receipt.sources]
        if not given:
            return  # they were revoked, and came back: that copy is one more
        for tracker, offset in given:
            tracker.finished(offset)
        work.sources = [source for source in work.sources if source not in given]
        self._observer.spilled(work.request.lane)
        if work.sources:
            self._queue_again(work, now_ms)  # its partition came here meanwhile, with the copy in it
        else:
            self._forget(work)

    def undelivered(self, receipt: CopySent, now_ms: int) -> None:
        self._rests_until_ms = now_ms + REST_MS
        work = self._of(receipt)
        if work is not None and any(source in receipt.sources for source in work.sources):
            self._queue_again(work, now_ms)

    def _of(self, receipt: CopySent) -> Work | None:
        """None: it has ended, or its records were revoked."""
        work = self._works.by_response.get(receipt.response_id)
        if work is None or work.phase is not Phase.SPILLING:
            return None
        return work


def _is_unstarted(work: Work) -> bool:
    """And nobody else's, as far as claims tell; nor given away too often."""
    return (
        work.waits_for_claim
        and work.is_known_free
        and work.is_own
        and not (work.is_owed or work.claimed_as or work.must_take_over or work.cancelled)
        and not work.lost_by_pool
        and work.request.spills < MAX_SPILLS
    )
