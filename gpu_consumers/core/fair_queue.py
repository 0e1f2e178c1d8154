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

A decision takes O(log n) of n tenants, whatever waits. What a restart loses is the counters and the expected lengths:
at most what the bound says, once; the queue itself is read again.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

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


@dataclass(slots=True, eq=False)
class _Tenant:
    tenant_id: str
    served: float = 0.0
    weight: int = 1
    turn: int = 0
    """When it was given something last, counted in turns."""
    waiting: OrderedDict[str, Queued] = field(default_factory=OrderedDict)
    running: int = 0
    answer_tokens: float = 0.0
    """What is expected of its answers; 0: none has ended yet."""
    entry: int = 0
    """Of its entries in the heap the one that counts."""


@dataclass(slots=True, eq=False)
class _Charge:
    """What a request in the engine has been charged."""

    tenant: _Tenant
    weight: int
    prompt_tokens: int
    output: int
    most_output: int
    answers: int

    def pay(self, cost: int) -> None:
        self.tenant.served += cost / self.weight

    @property
    def told_beyond(self) -> int:
        """`grown` is told of more tokens than these."""
        return self.output if self.output < self.most_output else NEVER


class FairQueue:
    """One lane."""

    def __init__(self) -> None:
        self._size = 0
        self._tenants: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._heap: list[tuple[float, int, int, _Tenant]] = []
        self._entries = count(1)
        self._turns = count(1)
        self._last: _Tenant | None = None
        self._charges: dict[str, _Charge] = {}
        self._answer_tokens = 0.0

    def __len__(self) -> int:
        return self._size

    def add(self, item: Queued, *, front: bool = False) -> None:
        """`front`: before the others of its tenant."""
        tenant = self._tenants.get(item.tenant_id)
        if tenant is None:
            tenant = self._tenants[item.tenant_id] = _Tenant(item.tenant_id)
        self._idle.pop(item.tenant_id, None)
        tenant.weight = item.weight
        if not tenant.waiting:
            tenant.served = max(tenant.served, self._least())
            self._rank(tenant)
        tenant.waiting[item.response_id] = item
        if front:
            tenant.waiting.move_to_end(item.response_id, last=False)
        self._size += 1

    def peek(self) -> Queued | None:
        """Who is next."""
        entry = self._head()
        return None if entry is None else next(iter(entry[3].waiting.values()))

    def peek_near(self, may: Callable[[str], bool], ahead: float) -> Queued | None:
        """The next of the tenants that `may`, unless its counter is further ahead of the lowest. Those before it that
        may not are looked at one by one.
        """
        if (first := self._head()) is None:
            return None
        passed = []
        while (entry := self._head()) is not None and not may(entry[3].tenant_id):
            passed.append(heappop(self._heap))
        for each in passed:
            heappush(self._heap, each)
        if entry is None or entry[0] > first[0] + ahead:
            return None
        return next(iter(entry[3].waiting.values()))

    def take(self, item: Queued) -> int:
        """It enters the engine. Returns up to how many tokens of output it is charged: `grown` is told of more."""
        tenant = self._tenants[item.tenant_id]
        self._drop(tenant, item.response_id)
        guess = tenant.answer_tokens or self._answer_tokens or FIRST_GUESS_TOKENS
        output = min(int(item.slots * guess) + 1, item.most_output)
        charge = _Charge(tenant, item.weight, item.prompt_tokens, output, item.most_output, item.slots)
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

    def left(self, response_id: str, output: int | None) -> None:
        """It has left the engine with so many tokens; None: it never entered. What it was charged beyond is returned.

        Who entered otherwise than by `take` is passed over.
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
            charge.pay(OUTPUT_COST * (output - charge.output))
            if charge.most_output:
                tokens = output / charge.answers
                self._answer_tokens = _nearer(self._answer_tokens, tokens)
                tenant.answer_tokens = _nearer(tenant.answer_tokens, tokens)
        self._changed(tenant)
        self._may_rest(tenant)

    def served(self, tenant_id: str) -> float:
        """The counter of one that is remembered; 0 of others."""
        tenant = self._tenants.get(tenant_id)
        return 0.0 if tenant is None else tenant.served

    def _least(self) -> float:
        """To what somebody is lifted who comes to wait."""
        if (entry := self._head()) is not None:
            return entry[0]
        return self._last.served if self._last is not None else 0.0

    def _head(self) -> tuple[float, int, int, _Tenant] | None:
        """The lowest entry that counts; stale ones above it are dropped."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if entry[3].entry == entry[2]:
                return entry
            heappop(heap)
        return None

    def _rank(self, tenant: _Tenant) -> None:
        tenant.entry = next(self._entries)
        heappush(self._heap, (tenant.served, tenant.turn, tenant.entry, tenant))
        if len(self._heap) > 2 * len(self._tenants) + _STALE_ALLOWED:
            self._heap = [entry for entry in self._heap if entry[3].entry == entry[2]]
            heapify(self._heap)

    def _changed(self, tenant: _Tenant) -> None:
        """Its counter."""
        if tenant.waiting:
            self._rank(tenant)

    def _drop(self, tenant: _Tenant, response_id: str) -> None:
        del tenant.waiting[response_id]
        self._size -= 1
        if not tenant.waiting:
            tenant.entry = 0

    def _may_rest(self, tenant: _Tenant) -> None:
        if tenant.waiting or tenant.running:
            return
        self._idle[tenant.tenant_id] = None
        if len(self._idle) > MAX_REMEMBERED:
            oldest, _ = self._idle.popitem(last=False)
            del self._tenants[oldest]


def _nearer(average: float, newest: float) -> float:
    return average + _OF_THE_NEWEST * (newest - average) if average else newest
