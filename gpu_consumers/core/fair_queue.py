"""Who of a lane's tenants is next, so that each gets its part of the engine. Pure: no I/O, no clock.

Every tenant has a counter of the service that it was given: the tokens of its prompts, and twice those of its answers,
divided by its weight. Whoever waits with the lowest counter goes next; of one tenant, who came first. That is Deficit
Round Robin (Shreedhar and Varghese, "Efficient Fair Queueing Using Deficit Round Robin", SIGCOMM 1995) with the sign of
the deficit turned and a quantum that goes to nothing: one smaller than a request would only be added until somebody can
pay, and one as large as the largest possible answer makes every turn as long. It is the Virtual Token Counter of Sheng
et al., "Fairness in Serving Large Language Models" (OSDI 2024), with expected lengths:

- A request is charged when it is given out, its answer with what this tenant's answers came to of late. As it gets
  longer than that, it is charged further in steps of half its length; at its end it has cost what it was.
- A tenant that comes to wait is lifted to the lowest counter of those who wait, or to that of who was given something
  last: having been away is no credit. Of equal counters who was served longest ago goes first.

So while two tenants both wait, the service by weight that they are given meanwhile differs by 2 · U · (F + 1) / w at
most, for U of the largest request, F of them in the engine and the smaller weight w: as in the papers, by what may be
on its way at once, however long they wait. `peek_near` adds what it lets be ahead. A tenant is passed over only by
those whose counter is not above its own, but for that, and each is charged for it: so none of them starves while
counters are remembered.

Large requests (`add`) have a line of their own in their tenant's, and share its counter: who asks for room in the
engine's memory, and has none, is passed by those that are not. These wait for each other.

A decision takes O(log n) of n tenants, whatever waits.

Workers of a pool share their tenants as one (`pool_shares.py`): who waits here is charged what other workers give it
meanwhile, as in dmClock (Gulati et al., "mClock: Handling Throughput Variability for Hypervisor IO Scheduling", OSDI
2010), where requests carry what other servers have done. What all who wait were given elsewhere is no difference
between them. So that nobody starves here for what it gets elsewhere, it is held back by `MOST_HELD_BACK` of what the
others are given here. A successor of this worker goes on with how far each was ahead (`ahead`, `restore`): what a
restart loses is the expected lengths, and the queue is read again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from itertools import count
from typing import TypeAlias

from schemas.request import Lane

OUTPUT_COST = 2
"""Of a generated token, beside one of the prompt's, which are computed together."""
FIRST_GUESS_TOKENS = 256
"""What an answer is taken to come to where none has ended yet."""
_OF_THE_NEWEST = 0.2
"""How much the newest answer counts in what is expected of the next."""
NEVER = 2**62
"""Tokens that no answer has."""
MAX_REMEMBERED = 4_096
"""Tenants that have nothing, neither waiting nor in the engine. Who has had nothing for longest is forgotten first, and
is lifted like a new one when it comes again: it may gain what it was ahead, which is at most the bound above."""
MOST_HELD_BACK = 7 / 8
MOST_OWED = 262_144
"""Of service elsewhere, which a tenant is charged here later."""
_STALE_ALLOWED = 64


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that waits. `tokens` is what it may cost: prompt plus bounded output; `slots` is how many it takes."""

    response_id: str
    lane: Lane
    tokens: int
    queued_at_ms: int
    slots: int = 1
    tenant_id: str = ""
    prompt_tokens: int = 0
    most_output: int = 0
    """Tokens of all its answers together; 0: it gives none, as vectors."""
    weight: int = 1
    queued_before_ms: int = 0
    """So much earlier it was queued first: it was another's meanwhile, or taken over, or its engine was lost."""
    said_tokens: int = 0
    """Of its answers that are open, in attempts before."""
    may_pause: bool = False
    """Once it runs it may be taken out of the engine again for who goes first (`pausing.py`)."""


_SHORT, _LARGE = 0, 1
_LINES = (_SHORT, _LARGE)


@dataclass(slots=True, eq=False)
class _Tenant:
    """`waiting` and `entries` are by line."""

    tenant_id: str
    served: float = 0.0
    weight: int = 1
    turn: int = 0
    """When it was given something last, counted in turns."""
    waiting: tuple[OrderedDict[str, Queued], ...] = field(default_factory=lambda: (OrderedDict(), OrderedDict()))
    running: int = 0
    answer_tokens: float = 0.0
    """What is expected of its answers; 0: none has ended yet."""
    entries: list[int] = field(default_factory=lambda: [0, 0])
    """Of its entries in a heap the one that counts."""
    given: float = 0.0
    """What of its service has left the engine: as it was, by its weight."""
    lately: float = 0.0
    """What it was charged here since it was charged for others last."""
    owes: float = 0.0
    """What it was given elsewhere while it waited here, and was not charged yet."""

    @property
    def waits(self) -> bool:
        return any(self.waiting)


@dataclass(slots=True, eq=False)
class _Charge:
    """What a request in the engine has been charged."""

    tenant: _Tenant
    weight: int
    prompt_tokens: int
    output: int
    most_output: int
    answers: int
    said_tokens: int

    def pay(self, cost: int) -> None:
        self.tenant.served += cost / self.weight
        self.tenant.lately += cost / self.weight

    @property
    def open(self) -> float:
        """All that it was charged."""
        return (self.prompt_tokens + OUTPUT_COST * self.output) / self.weight

    @property
    def told_beyond(self) -> int:
        """`grown` is told of more tokens than these."""
        return self.output if self.output < self.most_output else NEVER


_Entry: TypeAlias = tuple[float, int, int, _Tenant]
"""Counter, turn, number: the lowest is next."""


def _always(item: Queued) -> bool:
    return True


class FairQueue:
    """One lane."""

    def __init__(self) -> None:
        self._size = 0
        self._tenants: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._heaps: tuple[list[_Entry], ...] = ([], [])
        self._entries = count(1)
        self._turns = count(1)
        self._last: _Tenant | None = None
        self._charges: dict[str, _Charge] = {}
        self._answer_tokens = 0.0

    def __len__(self) -> int:
        return self._size

    def add(self, item: Queued, *, front: bool = False, is_large: bool = False) -> None:
        """`front`: before the others of its tenant."""
        tenant = self._tenants.get(item.tenant_id)
        if tenant is None:
            tenant = self._tenants[item.tenant_id] = _Tenant(item.tenant_id)
        self._idle.pop(item.tenant_id, None)
        tenant.weight = item.weight
        if not tenant.waits:
            tenant.served = max(tenant.served, self._least())
        line = _LARGE if is_large else _SHORT
        waiting = tenant.waiting[line]
        if not waiting:
            self._rank(tenant, line)
        waiting[item.response_id] = item
        if front:
            waiting.move_to_end(item.response_id, last=False)
        self._size += 1

    def peek(self, has_room: Callable[[Queued], bool] = _always) -> Queued | None:
        """Who is next. Without room a large one is passed by those that are not, and nobody else is passed."""
        return _first_with_room(self._heads(), has_room)

    def peek_near(
        self, may: Callable[[str], bool], ahead: float, has_room: Callable[[Queued], bool] = _always
    ) -> Queued | None:
        """The next of the tenants that `may`, unless its counter is further ahead of the lowest. Those before it that
        may not are looked at one by one.
        """
        if not (heads := self._heads()):
            return None
        most = heads[0][1][0] + ahead
        found = [(line, entry) for line in _LINES if (entry := self._head_that(may, line)) is not None]
        near = [(line, entry) for line, entry in found if entry[0] <= most]
        return _first_with_room(sorted(near, key=_rank_of), has_room)

    def peek_large(self) -> Queued | None:
        """Who is next of these."""
        entry = self._head(_LARGE)
        return None if entry is None else _first(entry, _LARGE)

    @property
    def has_short(self) -> bool:
        return self._head(_SHORT) is not None

    def take(self, item: Queued) -> int:
        """It enters the engine. Returns up to how many tokens of output it is charged: `grown` is told of more."""
        tenant = self._tenants[item.tenant_id]
        self._drop(tenant, item.response_id)
        guess = tenant.answer_tokens or self._answer_tokens or FIRST_GUESS_TOKENS
        output = min(int(item.slots * guess) + 1, item.most_output)
        charge = _Charge(
            tenant, item.weight, item.prompt_tokens, output, item.most_output, item.slots, item.said_tokens
        )
        self._charges[item.response_id] = charge
        tenant.turn = next(self._turns)
        tenant.running += 1
        self._last = tenant
        charge.pay(item.prompt_tokens + OUTPUT_COST * output)
        self._changed(tenant)
        return charge.told_beyond

    def remove(self, item: Queued) -> None:
        """It waits no longer, and was given nothing."""
        tenant = self._tenants[item.tenant_id]
        self._drop(tenant, item.response_id)
        self._may_rest(tenant)

    def grown(self, response_id: str, output: int) -> int:
        """Its answers have so many tokens by now. Returns as `take`."""
        charge = self._charges.get(response_id)
        if charge is None:
            return NEVER
        if output > charge.output:
            now = min(output * 3 // 2 + 1, charge.most_output)
            charge.pay(OUTPUT_COST * (now - charge.output))
            charge.output = now
            self._changed(charge.tenant)
        return charge.told_beyond

    def left(self, response_id: str, output: int | None, *, goes_on: bool = False) -> None:
        """It has left the engine with so many tokens; None: it never entered. What it was charged beyond is returned.

        What goes on later is charged its prompt again then, and how long its answer gets is not known yet. Who entered
        otherwise than by `take` is passed over.
        """
        charge = self._charges.pop(response_id, None)
        if charge is None:
            return
        tenant = charge.tenant
        tenant.running -= 1
        if output is None:
            charge.pay(-(charge.prompt_tokens + OUTPUT_COST * charge.output))
        else:
            output = min(output, charge.most_output)
            charge.pay(OUTPUT_COST * (output - charge.output) - goes_on * charge.prompt_tokens)
            tenant.given += (OUTPUT_COST * output + (not goes_on) * charge.prompt_tokens) / charge.weight
            if charge.most_output and not goes_on:
                tokens = (output + charge.said_tokens) / charge.answers
                self._answer_tokens = _nearer(self._answer_tokens, tokens)
                tenant.answer_tokens = _nearer(tenant.answer_tokens, tokens)
        self._changed(tenant)
        self._may_rest(tenant)

    def served(self, tenant_id: str) -> float:
        """The counter of one that is remembered; 0 of others."""
        tenant = self._tenants.get(tenant_id)
        return 0.0 if tenant is None else tenant.served

    # Beside other workers

    def given(self, most: int) -> dict[str, int]:
        """What has left the engine since this worker began, by weight: of so many tenants, the latest."""
        latest = nlargest(most, self._tenants.values(), key=lambda tenant: tenant.turn)
        return {tenant.tenant_id: int(tenant.given) for tenant in latest if tenant.given >= 1}

    def ahead(self, most: int) -> dict[str, int]:
        """How far counters are above that of who is next, without what is in the engine: of so many, the furthest."""
        least, apart = self._least(), {tenant_id: tenant.served for tenant_id, tenant in self._tenants.items()}
        for charge in self._charges.values():
            apart[charge.tenant.tenant_id] -= charge.open
        furthest = nlargest(most, apart.items(), key=lambda each: each[1])
        return {tenant_id: int(served - least) for tenant_id, served in furthest if served - least >= 1}

    def restore(self, ahead: Mapping[str, int]) -> None:
        """Once, soon after the begin: an earlier worker's `ahead`, whose work this one goes on with."""
        for tenant_id, tokens in ahead.items():
            tenant = self._tenants.get(tenant_id)
            if tenant is None:
                tenant = self._tenants[tenant_id] = _Tenant(tenant_id)
                self._may_rest(tenant)
            tenant.served += tokens
            self._changed(tenant)

    def given_elsewhere(self, service: Mapping[str, int]) -> None:
        """What others have given since this was told last, by weight. Tell it often, also where it is nothing."""
        waiting = [tenant for tenant in self._tenants.values() if tenant.waits]
        if len(waiting) > 1:
            self._hold_back(waiting, service)
        for tenant in self._tenants.values():
            tenant.lately = 0.0
            if not tenant.waits or len(waiting) == 1:
                tenant.owes = 0.0

    def _hold_back(self, waiting: list[_Tenant], service: Mapping[str, int]) -> None:
        for tenant in waiting:
            tenant.owes += service.get(tenant.tenant_id, 0)
        common = min(tenant.owes for tenant in waiting)
        all_lately = sum(tenant.lately for tenant in waiting)
        for tenant in waiting:
            tenant.owes = min(tenant.owes - common, MOST_OWED)
            others_lately = (all_lately - tenant.lately) / (len(waiting) - 1)
            pays = min(tenant.owes, MOST_HELD_BACK * others_lately)
            if pays > 0:
                tenant.owes -= pays
                tenant.served += pays
                self._changed(tenant)

    def _least(self) -> float:
        """To what somebody is lifted who comes to wait."""
        if heads := self._heads():
            return heads[0][1][0]
        return self._last.served if self._last is not None else 0.0

    def _heads(self) -> list[tuple[int, _Entry]]:
        """Of the lines that are not empty, who is next overall first."""
        heads = [(line, entry) for line in _LINES if (entry := self._head(line)) is not None]
        if len(heads) > 1:
            heads.sort(key=_rank_of)
        return heads

    def _head(self, line: int) -> _Entry | None:
        """The lowest entry that counts; stale ones above it are dropped."""
        heap = self._heaps[line]
        while heap:
            entry = heap[0]
            if entry[3].entries[line] == entry[2]:
                return entry
            heappop(heap)
        return None

    def _head_that(self, may: Callable[[str], bool], line: int) -> _Entry | None:
        passed, heap = [], self._heaps[line]
        while (entry := self._head(line)) is not None and not may(entry[3].tenant_id):
            passed.append(heappop(heap))
        for each in passed:
            heappush(heap, each)
        return entry

    def _rank(self, tenant: _Tenant, line: int) -> None:
        heap = self._heaps[line]
        tenant.entries[line] = next(self._entries)
        heappush(heap, (tenant.served, tenant.turn, tenant.entries[line], tenant))
        if len(heap) > 2 * len(self._tenants) + _STALE_ALLOWED:
            heap[:] = [entry for entry in heap if entry[3].entries[line] == entry[2]]
            heapify(heap)

    def _changed(self, tenant: _Tenant) -> None:
        """Its counter."""
        for line in _LINES:
            if tenant.waiting[line]:
                self._rank(tenant, line)

    def _drop(self, tenant: _Tenant, response_id: str) -> None:
        for line in _LINES:
            if tenant.waiting[line].pop(response_id, None) is not None:
                self._size -= 1
                if not tenant.waiting[line]:
                    tenant.entries[line] = 0

    def _may_rest(self, tenant: _Tenant) -> None:
        if tenant.waits or tenant.running:
            return
        self._idle[tenant.tenant_id] = None
        if len(self._idle) > MAX_REMEMBERED:
            oldest, _ = self._idle.popitem(last=False)
            del self._tenants[oldest]


def _rank_of(head: tuple[int, _Entry]) -> tuple[float, int, int]:
    return head[1][:3]


def _first(entry: _Entry, line: int) -> Queued:
    """Of its tenant, who came first."""
    return next(iter(entry[3].waiting[line].values()))


def _first_with_room(heads: Iterable[tuple[int, _Entry]], has_room: Callable[[Queued], bool]) -> Queued | None:
    for line, entry in heads:
        item = _first(entry, line)
        if has_room(item):
            return item
        if line == _SHORT:
            return None
    return None


def _nearer(average: float, newest: float) -> float:
    return average + _OF_THE_NEWEST * (newest - average) if average else newest
