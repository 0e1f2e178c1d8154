"""Who begins next of what piled up while admission, the quota store or the log was away. Pure: time is a parameter.

The log has an order of its own: what a paid tenant asks for may stand behind a hundred thousand requests of others. So
an agent that is behind looks ahead, and lets begin by tiers, at a pace, as far as there is room at a pool. Of the
lowest tier it holds so many and no more: what comes then steps aside, so that the agent gets to whatever stands behind
it. Until it has, that tier has what others leave: slots that stand idle. What is too late for anybody, or cancelled,
takes no turn. Who waits for a full pool, while another has room, holds up so much of the log and no more.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from agents.admission.routing import Load, QueueBound
from agents.admission.turns import FairOrder, is_others_turn, whose_turn
from streams import directory
from streams.directory import Tier

T = TypeVar("T")
Way = Literal["now", "turn", "aside"]
"""It begins at once, waits for its turn, or is written to where such as it wait, and comes round."""
Need = Literal["queue", "half a queue", "little ahead", "idle slots"]
"""What a pool must have for more of a backlog: room in its queue, as for who comes now; or half of that; or that little
waits there, or nobody.
"""
Room = Callable[[str, Need], bool]
"""Whether a pool of this model has it."""

TIERS: Final = tuple(reversed(directory.TIERS))
"""In the order in which they begin."""
LOWEST: Final = directory.LOWEST_TIER
BEHIND_MS: Final = 5_000
"""A record that is older than this was not read in its time: gateways wait so long for an answer to a request."""
LOOK_AHEAD: Final = 2_000
LOWEST_SHARE: Final = 0.5
"""Of the look-ahead, in records and in bytes: what the lowest tier may hold of it."""
FULL_SHARE: Final = 0.5
"""Of the look-ahead: what those above may hold of it who wait for room that another pool has."""
AGAIN: Final = 128
"""Of what has stepped aside and come round: so many wait for such room."""
HALF: Final = 0.5
LOWEST_EVERY_MS: Final = 1_000
"""So often one of the lowest tier begins wherever one that comes now would: of a long queue more are not added to it
than that, and nobody starves while others pass.
"""
AHEAD_S: Final = 5.0
"""What waits at a pool's workers may take so long, at the speed at which it goes; then nobody is added to it."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """What decides when a request begins. `model`: by whose pools there is room for it; `weight`: its tenant's.

    `may_step_aside`: it has not stepped aside before.
    """

    item: T
    response_id: str
    tier: Tier
    tenant_id: str
    model: str
    deadline_ms: int
    size_bytes: int = 0
    weight: int = 1
    may_step_aside: bool = True


class _Line(NamedTuple):
    """`model`: by whose pools there is room for it; empty: it waits for no room. `again`: it has come round."""

    tier: Tier
    model: str
    again: bool


@dataclass(slots=True)
class _Held(Generic[T]):
    asked: Asked[T]
    line: _Line
    gone: bool = False


def is_late(now_ms: int, appended_ms: int) -> bool:
    """Whether a record is read behind its time."""
    return now_ms - appended_ms > BEHIND_MS


class Backlog(Generic[T]):
    """What an agent holds and has not begun. It is bounded by who puts: `most` records are looked at at once."""

    def __init__(self, most: int = LOOK_AHEAD, most_bytes: int = 2**25) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lines: dict[_Line, FairOrder[_Held[T]]] = {}
        self._deadlines: list[tuple[int, int, _Held[T]]] = []
        self._served: dict[_Line, int] = {}
        self._last_ms: dict[_Line, int] = {}
        self._waiting: Counter[_Line] = Counter()
        self._bytes: Counter[_Line] = Counter()
        self._in_lines = self._came = self._taken = 0
        self._behind_until_ms = 0

    def __len__(self) -> int:
        return self._waiting.total()

    def waiting(self, tier: Tier) -> int:
        return sum(count for line, count in self._waiting.items() if line.tier == tier)

    @property
    def kept(self) -> int:
        """With what has gone: never more than twice as many as ever waited at once, and `most`."""
        return max(self._in_lines, len(self._deadlines))

    def enter(self, asked: Asked[T], now_ms: int, *, appended_ms: int, is_busy: bool) -> Way:
        """Of one that is read now; where it is to wait for its turn, it waits from here on.

        `is_busy`: as many are in work as may be. Who came in its time waits for that alone, never for room.
        """
        is_behind = not asked.may_step_aside
        if asked.may_step_aside and is_late(now_ms, appended_ms):
            is_behind, self._behind_until_ms = True, now_ms + BEHIND_MS
        if now_ms >= asked.deadline_ms or not (is_behind or is_busy):
            return "now"
        if is_behind and asked.may_step_aside and asked.tier == LOWEST and self._is_full(asked):
            return "aside"
        self._put(asked, asked.model if is_behind else "")
        return "turn"

    def _is_full(self, asked: Asked[T]) -> bool:
        """Of its tier. One alone always fits."""
        held = self.waiting(LOWEST)
        held_bytes = sum(size_bytes for line, size_bytes in self._bytes.items() if line.tier == LOWEST)
        return held > 0 and (
            held >= self._most * LOWEST_SHARE or held_bytes + asked.size_bytes > self._most_bytes * LOWEST_SHARE
        )

    def _put(self, asked: Asked[T], room_of: str) -> None:
        held = _Held(asked, _Line(asked.tier, room_of, not asked.may_step_aside))
        # Its tenant's line is served in proportion to its weight.
        self._lines.setdefault(held.line, FairOrder()).put(asked.tenant_id, 1 / asked.weight, held)
        self._came += 1
        heappush(self._deadlines, (asked.deadline_ms, self._came, held))
        self._in_lines += 1
        self._waiting[held.line] += 1
        self._bytes[held.line] += asked.size_bytes
        if self.kept > self._most + 2 * len(self):
            self._sweep()

    def too_late(self, now_ms: int) -> list[T]:
        """Those whose deadlines have passed: they wait no longer, and take nobody's turn."""
        late = []
        while self._deadlines and (self._deadlines[0][0] <= now_ms or self._deadlines[0][2].gone):
            _, _, held = heappop(self._deadlines)
            if not held.gone:
                self._goes(held)
                late.append(held.asked.item)
        return late

    def cancelled(self, is_cancelled: Callable[[str], bool]) -> list[T]:
        """Those whose responses nobody wants any more: likewise."""
        waiting = (held for _, _, held in self._deadlines if not held.gone)
        unwanted = [held for held in waiting if is_cancelled(held.asked.response_id)]
        for held in unwanted:
            self._goes(held)
        return [held.asked.item for held in unwanted]

    def too_many(self, now_ms: int, has_room: Room, any_has_room: Callable[[Need], bool]) -> Iterator[T]:
        """Those that wait for room beyond their share, of whoever has most the newest: they wait no longer.

        As long as no pool has room, nothing that stands behind them could begin, and all wait.
        """
        yield from self._beyond(now_ms, has_room, any_has_room, again=False)
        yield from self._beyond(now_ms, has_room, any_has_room, again=True)

    def _beyond(self, now_ms: int, has_room: Room, any_has_room: Callable[[Need], bool], *, again: bool) -> Iterator[T]:
        """What has come round has a window of its own. Of the rest the lowest tier has stepped aside by itself."""
        most = min(AGAIN, self._most * FULL_SHARE) if again else self._most * FULL_SHARE
        most_bytes = self._most_bytes * FULL_SHARE

        def is_beyond(lines: Sequence[_Line]) -> bool:
            count, size_bytes = (sum(of[line] for line in lines) for of in (self._waiting, self._bytes))
            return count > 1 and (count > most or size_bytes > most_bytes)

        lines = [line for line in self._lines if line.model and line.again == again and (again or line.tier != LOWEST)]
        if not is_beyond(lines) or not any_has_room(self._need_of(LOWEST if again else TIERS[0], now_ms)):
            return
        full = [line for line in lines if not has_room(line.model, self._need(line, now_ms))]
        while is_beyond(full):
            of = self._waiting if sum(self._waiting[line] for line in full) > most else self._bytes
            yield self._give_up(max(full, key=of.__getitem__))

    def _give_up(self, line: _Line) -> T:
        """Somebody waits there."""
        while (held := self._lines[line].take_last()[1]).gone:
            self._in_lines -= 1
        self._in_lines -= 1
        if not self._lines[line]:
            del self._lines[line]
        self._goes(held)
        return held.asked.item

    def take(self, now_ms: int, has_room: Room | None) -> T | None:
        """Who begins now; None: nobody waits whose model has room. `has_room` None: who waits for room has no turn."""
        while (line := self._next(now_ms, has_room)) is not None:
            _, held = self._lines[line].take()
            self._in_lines -= 1
            if not self._lines[line]:
                del self._lines[line]
            if held.gone:
                continue
            self._goes(held)
            self._taken += 1
            self._served[line], self._last_ms[line] = self._taken, now_ms
            return held.asked.item
        return None

    def take_all(self) -> list[T]:
        """Nothing waits any more."""
        left = []
        while (item := self.take(self._behind_until_ms, lambda _model, _need: True)) is not None:
            left.append(item)
        return left

    def _goes(self, held: _Held[T]) -> None:
        held.gone = True
        self._waiting[held.line] -= 1
        self._bytes[held.line] -= held.asked.size_bytes

    def _need(self, line: _Line, now_ms: int) -> Need:
        need = self._need_of(line.tier, now_ms)
        is_due = now_ms - self._last_ms.get(line, 0) >= LOWEST_EVERY_MS
        return "queue" if need == "half a queue" and is_due else need

    def _need_of(self, tier: Tier, now_ms: int) -> Need:
        if tier != LOWEST:
            return "queue"
        if now_ms >= self._behind_until_ms:
            return "half a queue"
        return "little ahead" if is_others_turn(self._taken) else "idle slots"

    def _next(self, now_ms: int, has_room: Room | None) -> _Line | None:
        """The line of the tier whose turn it is, of several the one that was served the longest ago."""

        def is_able(line: _Line) -> bool:
            return not line.model or (has_room is not None and has_room(line.model, self._need(line, now_ms)))

        able = [line for line in self._lines if is_able(line)]
        tiers = [tier for tier in TIERS if any(line.tier == tier for line in able)]
        if not tiers:
            return None
        tier = whose_turn(tiers, self._taken)
        return min((line for line in able if line.tier == tier), key=lambda line: self._served.get(line, 0))

    def _sweep(self) -> None:
        """Lets go of what has gone."""
        for line, order in [*self._lines.items()]:
            order.keep(lambda held: not held.gone)
            if not order:
                del self._lines[line]
        self._in_lines = len(self)
        self._deadlines = [each for each in self._deadlines if not each[2].gone]
        heapify(self._deadlines)


def has_room(pools: Iterable[Sequence[Load]], bound: QueueBound, need: Need) -> bool:
    """Of pools with these live workers. Where no worker lives nobody knows what waits.

    In a queue as far as paid tenants fill it: whoever comes now is let in up to there as well, so that nobody who pays
    waits at the gate for a queue that others keep full. Little is less than another round of answers, or as much as the
    pool is seen to take in a few seconds.
    """
    live = [loads for loads in pools if loads]
    return not live or any(_has(loads, bound, need) for loads in live)


def _has(loads: Sequence[Load], bound: QueueBound, need: Need) -> bool:
    answers, tokens = sum(load.queued_answers for load in loads), sum(load.queued_tokens for load in loads)
    share = bound.lanes.standard.queue_share * (HALF if need == "half a queue" else 1)
    if answers >= bound.answers * share or tokens >= bound.tokens * share:
        return False
    slots = _slots(loads)
    if need in ("queue", "half a queue") or slots is None:
        return True
    if need == "idle slots":
        return sum(load.state.running for load in loads) + answers < slots
    drains = [load.drain for load in loads if load.drain is not None]
    return answers < slots or tokens < AHEAD_S * sum(drain.tokens_per_s for drain in drains)


def _slots(loads: Sequence[Load]) -> int | None:
    """None: one of them does not say how many it has."""
    slots = [load.state.max_running for load in loads]
    return sum(slots) if all(slots) else None
