"""Whether a request has room in the engine's memory now. Pure: no I/O, no clock.

An engine keeps what it has computed of a request in blocks, more of them with each token. Where they run out it takes
those of somebody and computes them again, which is slower than to have waited. So who is let in is held against what
all in the engine come to, over the tokens until they end. That is the admission of Gong et al., "Past-Future Scheduler
for LLM Serving under SLA Guarantees" (ASPLOS 2025): how long answers get is learned from their tenant's
(`answer_lengths.py`), and what they come to together is expected (`forecast.py`), so that nobody reserves a bound which
few reach, nor all at once what they hold one after another.

- The sum stays within the memory with the chance `foresight`, at any time to come. As answers grow beyond what was
  expected of them it may exceed that, and then nobody is let in until it does no longer.
- What the engine tells corrects it: blocks that requests share are counted once, what it holds beyond the forecast
  counts, and where it had to preempt, more is kept free for a while.
- A prompt that takes a sixteenth of the memory is large. One of them is computed at a time, and they leave a part of
  the memory to the others, so that these have room at any time. Who waits for whom is the scheduler's to say: it may
  ask for room beside a large one, which then gets what becomes free.

Who is alone in the engine has room, whatever is expected of it. Nothing is counted before the engine has told of its
memory, nor where that is not counted in tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from gpu_consumers.core.answer_lengths import AnswerLengths
from gpu_consumers.core.fair_queue import NEVER, Queued
from gpu_consumers.core.forecast import SPANS, Load, Row, joined, row_of, sigmas_of, spans_within
from gpu_consumers.engines.port import EngineStats

LARGE = 16
"""A prompt is large that takes one part in so many of the memory."""
SLACK = 64
"""One part in so many is never given: a block that stands for none, what is looked ahead, figures of a step before."""
MOST_KEPT = 4
"""One part in so many is kept free at most, where the engine had to preempt."""
CALM_MS = 30_000
"""After so long without a preemption half of that is given again."""
FEWEST_TOKENS = 32
"""Of an answer, before its forecast is made anew; four times as many while half of the memory is free."""
_NOTHING = [0] * len(SPANS)


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """`foresight`: the chance that memory suffices for all that is let in; 1: everybody's bound is reserved, 0: memory
    is not looked at. `for_short`: the part of it that large prompts leave to others. A large one that lacks room at its
    turn for `large_waits_ms` gets what becomes free.
    """

    foresight: float = 0.99
    for_short: float = 1 / 8
    large_waits_ms: int = 5_000


DEFAULT_MEMORY = MemoryPolicy()
"""Unless an operator says otherwise."""


@dataclass(slots=True, eq=False)
class _Reserved:
    """Of a request in the engine. `is_counted`: what it holds stands in the engine's figures by now."""

    item: Queued
    is_large: bool
    row: Row
    output: int = 0
    is_counted: bool = False


class Capacity:
    """The memory of one engine."""

    def __init__(self, policy: MemoryPolicy = DEFAULT_MEMORY) -> None:
        self.policy = policy
        self._lengths = AnswerLengths()
        self._total = 0
        self._block_tokens = 0
        self._shares_prefixes = False
        self._reserved: dict[str, _Reserved] = {}
        sigmas = sigmas_of(policy.foresight)
        self._all, self._large = Load(sigmas), Load(sigmas)
        self._shared = _NOTHING
        self._asked: tuple[Queued, Row] | None = None
        """Of whom, and its row: most often it is taken next."""
        self._computed: str | None = None
        """The large one that has no token yet."""
        self._beyond = 0
        self._preemptions = self._kept = self._kept_at_ms = 0

    # What the engine tells

    def engine_tells(self, stats: EngineStats, now_ms: int) -> bool:
        """Often; also before anything waits. Returns whether other prompts are large from now on."""
        self._preempted(stats.preemptions, now_ms)
        total = stats.kv_blocks_total if self.policy.foresight and stats.block_tokens else 0
        told = total, stats.block_tokens, stats.shares_prefixes
        is_new = told != (self._total, self._block_tokens, self._shares_prefixes)
        self._total, self._block_tokens, self._shares_prefixes = told
        if is_new:
            self._asked = None
            for each in self._reserved.values():
                self._forecast(each, each.output)
        elif total:
            self._correct(stats.kv_blocks_used, are_all_in=not stats.waiting)
        return is_new

    def _preempted(self, preemptions: int, now_ms: int) -> None:
        if preemptions > self._preemptions:
            self._kept = min(max(2 * self._kept, self._total // SLACK), self._total // MOST_KEPT)
            self._kept_at_ms = now_ms
        elif self._kept and now_ms - self._kept_at_ms >= CALM_MS:
            self._kept, self._kept_at_ms = self._kept // 2, now_ms
        self._preemptions = preemptions

    def _correct(self, used: int, *, are_all_in: bool) -> None:
        """By how much the forecast of now is wrong, as far as that is seen: who waits in the engine may have lost what
        it held, and the figures may be older than the first token of who has got it since the last look.
        """
        held = sum(self._holds(each) for each in self._reserved.values() if each.is_counted)
        for each in self._reserved.values():
            each.is_counted = each.output > 0
        now, shared = self._all.expected[0], max(held - used, 0) if are_all_in else 0
        self._shared = [blocks * shared // now for blocks in self._all.expected] if shared else _NOTHING
        self._beyond = max(used - now, 0)

    # What is asked

    def is_large(self, item: Queued) -> bool:
        return self._blocks(item) * LARGE > self._total > 0

    def never_fits(self, item: Queued) -> bool:
        """Not even one answer to it, alone and of one token."""
        each = item.prompt_tokens + item.said_tokens // item.slots
        return self._total > 0 and each > self.most_tokens

    @property
    def most_tokens(self) -> int:
        """Of one prompt."""
        return self._total * self._block_tokens - 1

    def fits(self, item: Queued, beside: Queued | None = None) -> bool:
        """`beside`: the large one that is waited for. Others leave room to it, and in any case have the part of the
        memory that is theirs, if it does not need all. What never fits waits for nothing.
        """
        if not self._total or not self._reserved or self.never_fits(item):
            return True
        limit, blocks = self._limit, self._blocks(item)
        if blocks + self._all.expected[0] > limit + self._shared[0]:
            return False
        row, for_short = self._row(item, 0), int(self.policy.for_short * self._total)
        self._asked = item, row
        for_large = limit - for_short
        if blocks * LARGE > self._total:
            if self._computed is not None or (beside is not None and beside is not item):
                return False
            if blocks <= for_large and not self._large.has_room(row, for_large, self._shared):
                return False
        elif beside is not None and (
            self._blocks(beside) > for_large or not (self._all - self._large).has_room(row, for_short, _NOTHING)
        ):
            row = joined(row, self._row(beside, 0))
        return self._all.has_room(row, limit, self._shared)

    @contextmanager
    def without(self, response_id: str) -> Iterator[None]:
        """As if that one had left."""
        each = self._reserved.get(response_id)
        if each is None:
            yield
            return
        self._add(each, -1)
        try:
            yield
        finally:
            self._add(each, 1)

    @property
    def reserved(self) -> int:
        """The most blocks that what is in the engine is taken to hold, now or later."""
        return self._all.peak(self._shared)

    # What enters and leaves

    def take(self, item: Queued) -> int:
        """It enters the engine. Returns after how many tokens of output `grown` is to be told."""
        if not self._total or self.never_fits(item):
            return NEVER
        row = self._asked[1] if self._asked is not None and self._asked[0] is item else self._row(item, 0)
        each = self._reserved[item.response_id] = _Reserved(item, self.is_large(item), row)
        self._add(each, 1)
        self._asked = None
        if each.is_large:
            self._computed = item.response_id
        return 0

    def grown(self, response_id: str, output: int) -> int:
        """Its answers have so many tokens by now. Returns as `take`."""
        each = self._reserved.get(response_id)
        if each is None:
            return NEVER
        self._begins(response_id)
        self._forecast(each, output)
        tokens = max((each.item.said_tokens + output) // 8, FEWEST_TOKENS * each.item.slots)
        return output + tokens * (4 if 2 * self._all.expected[0] < self._total else 1)

    def left(self, response_id: str, output: int | None, *, goes_on: bool = False) -> None:
        """As `FairQueue.left`. What it held may have been shared with others: it is free once the engine says so."""
        each = self._reserved.pop(response_id, None)
        if each is None:
            return
        self._begins(response_id)
        self._add(each, -1)
        if self._shared is not _NOTHING:
            held = chain((most for _, _, most in each.row), _NOTHING)
            self._shared = [max(shared - own, 0) for shared, own in zip(self._shared, held, strict=False)]
        item = each.item
        if output is not None and item.most_output and not goes_on:
            self._lengths.ended(item.tenant_id, (item.said_tokens + output) // item.slots)

    def _begins(self, response_id: str) -> None:
        """Or never does."""
        if self._computed == response_id:
            self._computed = None

    # Forecasts

    @property
    def _limit(self) -> int:
        return self._total - self._total // SLACK - self._kept - self._beyond

    def _forecast(self, each: _Reserved, output: int) -> None:
        self._add(each, -1)
        each.output, each.row = output, self._row(each.item, output)
        self._add(each, 1)

    def _add(self, each: _Reserved, times: int) -> None:
        self._all.add(each.row, times)
        if each.is_large:
            self._large.add(each.row, times)

    def _row(self, item: Queued, output: int) -> Row:
        """With `output` tokens since it was let in. Nothing, where the engine does not tell of its memory any more."""
        if not self._total:
            return []
        said = (item.said_tokens + output) // item.slots
        most_more = max(item.most_output // item.slots - said, 0)
        if self.policy.foresight >= 1:
            most = self._blocks(item, output + most_more * item.slots)
            return [(most, 0, most)] * len(SPANS)
        chances = self._lengths.surviving(item.tenant_id, said, spans_within(most_more))
        shared = self._shared_by_answers(item)
        own = item.prompt_tokens - shared * self._block_tokens + said
        return row_of(chances, own, most_more, shared, item.slots, self._block_tokens)

    def _blocks(self, item: Queued, output: int = 0) -> int:
        """That it holds with so many tokens."""
        if not (size := self._block_tokens):
            return 0
        shared = self._shared_by_answers(item)
        own = item.prompt_tokens - shared * size + (item.said_tokens + output) // item.slots
        return shared + item.slots * -(-own // size)

    def _shared_by_answers(self, item: Queued) -> int:
        """Blocks of their prompt."""
        return item.prompt_tokens // self._block_tokens if self._shares_prefixes and item.slots > 1 else 0

    def _holds(self, each: _Reserved) -> int:
        """At least: a block that its next token begins may not be there yet."""
        return max(self._blocks(each.item, each.output) - each.item.slots, 0)
