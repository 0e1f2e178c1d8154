"""Where requests wait that an agent reads late, or while all that may be in work is: `catching_up` says who is next.

What it knows of a request before that is proved decides when it begins, and nothing else.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress
from itertools import islice
from typing import Final, Literal

import orjson

from agents.admission import metrics
from agents.admission.catching_up import LOOK_AHEAD, TIERS, Asked, Backlog, Need, has_room, is_late
from agents.admission.in_order import NotBegun
from agents.admission.pipeline import Handle, Pipeline
from agents.admission.turns import FINEST_S, Pace
from streams.log.port import LogRecord

LOOK_S: Final = 0.02
"""Nothing tells that a pool has room again."""
GIVEN_UP_AT_ONCE: Final = 200
"""In one look, of those that hold up the log."""
HOLD_S: Final = 10.0
LONGEST_TURN_S: Final = 30.0
"""From the turn on; a wait for the store, or for threads, is told by who waits."""
CONTROL_READ_WITHIN_S: Final = 60.0
"""Nothing that was read late begins before: from then on it counts as stalled, and the process is ended."""
ENDING_SHARE: Final = 4
"""Of what may be in work a fourth beside it is for what takes nobody's turn: it is refused, or buried."""

_How = Literal["begin", "late", "cancelled", "full", "left", "closed"]
_Turn = asyncio.Future[_How]


class Gate:
    """One for all agents of a process through which requests enter. Used from one event loop.

    `per_second`: of what was read late, so many begin.
    """

    def __init__(self, pipeline: Pipeline, in_flight: int, per_second: float, look_ahead: int = LOOK_AHEAD) -> None:
        self._pipeline = pipeline
        self._services = pipeline.services
        self._in_flight = in_flight
        self._pace = Pace(per_second)
        self._slots = asyncio.Semaphore(in_flight)
        self._ending = asyncio.Semaphore(max(in_flight // ENDING_SHARE, 1))
        self._given = 0
        self._backlog: Backlog[_Turn] = Backlog(look_ahead)
        self._generation: int | None = None
        self._giving: asyncio.Task[None] | None = None
        self._began_ms: defaultdict[str, dict[object, int]] = defaultdict(dict)
        """By topic, the oldest first."""
        self._held_topics: set[str] = set()
        self._is_closed = False
        self._rooms: dict[tuple[str, Need], bool] = {}
        """What this look has found; whoever begins is counted behind it."""
        self._has_begun_since = False
        self._cancels_seen = 0
        self._held_since_ms: int | None = None

    def close(self) -> None:
        """Nothing more gets a turn here: whatever waits for one raises NotBegun."""
        self._is_closed = True
        for turn in self._backlog.take_all():
            _tell(turn, "closed")

    def guarded(self, handle: Handle, put_aside: Handle | None, go_round: Handle | None = None) -> Handle:
        """`handle`, begun when it is the record's turn. `put_aside` None: it has stepped aside before.

        What waits in vain for a full pool, where others could begin, goes round again, or is handled as if it came now.
        """

        async def through(record: LogRecord) -> None:
            in_time = put_aside is not None and not is_late(self._services.clock_ms(), record.timestamp_ms)
            if in_time and not self._slots.locked():
                await self._work(handle, record, self._slots)
                return
            asked = self._asked(record, may_step_aside=put_aside is not None)
            way = "now" if asked is None else self._enter(record, asked)
            if way == "aside":
                assert put_aside is not None
                await put_aside(record)
            elif way == "now":
                # It is too late, or cancelled, or refused or buried whenever it begins.
                await self._work(handle, record, self._ending)
            else:
                assert asked is not None
                await self._in_turn(handle, record, asked.item, go_round)

        return through

    async def _in_turn(self, handle: Handle, record: LogRecord, turn: _Turn, go_round: Handle | None) -> None:
        how = await turn
        if how == "left":
            # A balance has begun: it cannot be acknowledged any more, and comes again, here or elsewhere.
            return
        if how == "closed":
            # In the same generation it would be acknowledged.
            raise NotBegun
        if how == "full" and go_round is not None:
            await go_round(record)
            return
        if how != "begin":
            await self._work(handle, record, self._ending)
            return
        try:
            await self._work(handle, record, self._slots)
        finally:
            self._given -= 1
            if self._backlog:
                self._begin()

    async def _work(self, handle: Handle, record: LogRecord, slots: asyncio.Semaphore) -> None:
        key = object()
        async with slots:
            began_ms = self._began_ms[record.topic]
            began_ms[key] = self._pipeline.monotonic_ms()
            try:
                await handle(record)
            finally:
                del began_ms[key]

    def _asked(self, record: LogRecord, *, may_step_aside: bool) -> Asked[_Turn] | None:
        """None: it will be refused or buried, whenever it begins."""
        # Anybody's bytes: whatever they hold is buried by whoever proves them.
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            said = orjson.loads(record.value or b"")
            tenant = self._services.directory.tenant(said["scope"]["tenant_id"])
            model = self._services.catalog.model(said["model"])
            if tenant is not None and model is not None:
                return Asked(
                    asyncio.get_running_loop().create_future(),
                    str(said["response_id"]),
                    # Who asks for the batch lane gives way to all others, as in the lanes.
                    "free" if said.get("service_tier") == "batch" else tenant.tier,
                    tenant.tenant_id,
                    model.name,
                    int(said["deadline_ms"]),
                    len(record.value or b""),
                    tenant.weight,
                    may_step_aside,
                )
        return None

    def _enter(self, record: LogRecord, asked: Asked[_Turn]) -> Literal["now", "turn", "aside"]:
        self._leave_to_others()
        if asked.response_id in self._services.cancels:
            return "now"
        way = self._backlog.enter(
            asked, self._services.clock_ms(), appended_ms=record.timestamp_ms, is_busy=self._slots.locked()
        )
        if way == "turn" and self._is_closed:
            self.close()
        elif way == "turn":
            self._held_topics.add(record.topic)
            if self._giving is None:
                self._giving = asyncio.create_task(self._give())
        return way

    async def _give(self) -> None:
        try:
            while self._backlog:
                self._leave_to_others()
                self._rooms.clear()
                now_ms = self._services.clock_ms()
                for turn in self._backlog.too_late(now_ms):
                    _tell(turn, "late")
                self._let_go_of_cancelled()
                too_many = self._backlog.too_many(now_ms, self._has_room, self._any_has_room)
                for turn in islice(too_many, GIVEN_UP_AT_ONCE):
                    _tell(turn, "full")
                wait_s = self._begin()
                for tier in TIERS:
                    metrics.held(tier).set(self._backlog.waiting(tier))
                self._hold(wait_s)
                await self._pipeline.sleep(wait_s)
        finally:
            self._giving = None
            self._held_topics.clear()

    def _leave_to_others(self) -> None:
        """What was read before a balance comes again."""
        if (generation := self._pipeline.generation()) != self._generation:
            self._generation = generation
            for turn in self._backlog.take_all():
                _tell(turn, "left")

    def _let_go_of_cancelled(self) -> None:
        cancels = self._services.cancels
        if cancels.taken != self._cancels_seen:
            self._cancels_seen = cancels.taken
            for turn in self._backlog.cancelled(cancels.__contains__):
                _tell(turn, "cancelled")

    def _begin(self) -> float:
        """As many as may. Returns after how long to look again.

        Who was read late has no turn before it is known what was cancelled meanwhile.
        """
        if self._has_begun_since:
            self._rooms.clear()
            self._has_begun_since = False
        while self._given < self._in_flight:
            now_s = self._pipeline.monotonic_ms() / 1_000
            wait_s = self._pace.wait_s(now_s, 0)
            is_due = wait_s < FINEST_S
            may = is_due and self._services.cancels.are_read
            turn = self._backlog.take(self._services.clock_ms(), self._has_room if may else None)
            if turn is None:
                return LOOK_S if is_due else min(wait_s, LOOK_S)
            if may:
                self._pace.wait_s(now_s)
            if not turn.done():
                self._given += 1
                self._has_begun_since = True
                turn.set_result("begin")
        return LOOK_S

    def _has_room(self, model_name: str, need: Need) -> bool:
        key = model_name, need
        if key not in self._rooms:
            self._rooms[key] = self._finds_room(*key)
        return self._rooms[key]

    def _any_has_room(self, need: Need) -> bool:
        """Of the models that somebody serves."""
        workers, now_ms = self._services.workers, self._services.clock_ms()
        return any(
            self._has_room(model.name, need) and any(workers.live(pool, now_ms) for pool in model.pools)
            for model in self._services.catalog.models()
        )

    def _finds_room(self, model_name: str, need: Need) -> bool:
        model, now_ms = self._services.catalog.model(model_name), self._services.clock_ms()
        if model is None:
            return True
        pools = (self._services.workers.live(pool, now_ms) for pool in model.pools)
        return has_room(pools, self._services.queue_bound, need)

    def _hold(self, next_in_s: float) -> None:
        """Who waits for a turn has not stalled, as long as nobody of its topic has who had one, and turns are given."""
        now_ms = self._pipeline.monotonic_ms()
        if self._held_since_ms is None:
            self._held_since_ms = now_ms
        if not self._services.cancels.are_read and now_ms - self._held_since_ms >= CONTROL_READ_WITHIN_S * 1_000:
            return
        for topic in self._held_topics:
            oldest_ms = next(iter(self._began_ms[topic].values()), now_ms)
            if now_ms - oldest_ms < LONGEST_TURN_S * 1_000:
                self._services.on_hold(topic, next_in_s + HOLD_S)


def _tell(turn: _Turn, how: _How) -> None:
    if not turn.done():
        turn.set_result(how)
