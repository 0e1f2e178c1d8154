"""The accepted tokens of each response, counted again on `generated`. A fold; holds no text.

It knows nothing of what came before it began: responses that were accepted earlier are not counted, on neither side.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from billing_jobs.reconciliation.figures import NOTHING, Figures, Key, Placed, Recounted, Span, Sums, key_of
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix, fold_frame
from streams.log.port import LogRecord

MAX_OPEN = 200_000
"""Responses at once; each takes about a kilobyte."""
REMEMBERED = 200_000
"""Of those that have ended, with 260 bytes each: a second `Opened`, or ending, of them is void."""
SLOT_MS = 300_000
MAX_NAMED = 200_000
"""Responses of which the ids are kept, with 250 bytes each, until they are compared."""
EMBEDDINGS = "embeddings"
"""An endpoint: vectors have numbers as tokens have, and are none."""


class _About(NamedTuple):
    tenant_id: str
    is_counted: bool
    of_vectors: bool


@dataclass(slots=True)
class _Partition:
    """A response has one partition for life; what stands of it in another is void, or a refusal."""

    prefixes: dict[str, AcceptedPrefix] = field(default_factory=dict)
    about: dict[str, _About] = field(default_factory=dict)


class Recount:
    """`take` gives what has ended with each record, at the broker's time of that record, as bills have it.

    `counted_from_ms`: responses accepted before are not counted. `is_lost`: there were too many at once, so what it
    says from then on is worth nothing; begin anew.
    """

    def __init__(self, counted_from_ms: int, max_open: int = MAX_OPEN, max_ended: int = REMEMBERED) -> None:
        self.counted_from_ms = counted_from_ms
        self.is_lost = False
        self.unreadable = 0
        self._max_open = max_open
        self._max_ended = max_ended
        self._partitions: defaultdict[int, _Partition] = defaultdict(_Partition)
        self._ended: OrderedDict[tuple[int, str], None] = OrderedDict()
        """Partition and response, the oldest first."""

    def take(self, record: LogRecord) -> list[Placed]:
        try:
            event = decode(GENERATED, record.value)
        except Undecodable:
            self.unreadable += 1
            return []
        state = self._partitions[record.partition]
        match event:
            case Opened():
                self._open(state, event, record.partition)
            case Fence():
                if (prefix := state.prefixes.get(event.response_id)) is not None:
                    prefix.fence(event, record.offset)
            case Ending():
                return self._ending(state, event, record)
            case Frame():
                fold_frame(state.prefixes, event)
                return self._close(state, dict.fromkeys(event.response_id), record)
        return []

    def _open(self, state: _Partition, opened: Opened, partition: int) -> None:
        response_id = opened.response_id
        if response_id in state.prefixes or (partition, response_id) in self._ended:
            return
        if sum(len(each.prefixes) for each in self._partitions.values()) >= self._max_open:
            self.is_lost = True
            return
        state.prefixes[response_id] = AcceptedPrefix(choices=opened.choices, most_moves=len(opened.further))
        is_counted = opened.accepted_at_ms >= self.counted_from_ms
        state.about[response_id] = _About(opened.scope.tenant_id, is_counted, opened.endpoint == EMBEDDINGS)

    def _ending(self, state: _Partition, ending: Ending, record: LogRecord) -> list[Placed]:
        response_id = ending.response_id
        if (prefix := state.prefixes.get(response_id)) is not None:
            prefix.ending(ending)
            return self._close(state, [response_id], record)
        is_refusal = ending.written_by == "admission" and ending.attempt_id is None
        if not is_refusal or (record.partition, response_id) in self._ended:
            return []
        self._remember(record.partition, response_id)
        if ending.accepted_at_ms < self.counted_from_ms:
            return []
        return [Placed(Recounted(response_id, ending.scope.tenant_id, 0, 0), record.timestamp_ms)]

    def _close(self, state: _Partition, response_ids: Iterable[str], record: LogRecord) -> list[Placed]:
        ended = []
        for response_id in response_ids:
            prefix = state.prefixes.get(response_id)
            if prefix is None or prefix.terminal is None:
                continue
            del state.prefixes[response_id]
            about = state.about.pop(response_id)
            self._remember(record.partition, response_id)
            if about.is_counted:
                tokens = 0 if about.of_vectors else prefix.accepted_tokens
                ended.append(Placed(Recounted(response_id, about.tenant_id, 1, tokens), record.timestamp_ms))
        return ended

    def _remember(self, partition: int, response_id: str) -> None:
        self._ended[partition, response_id] = None
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)


class Counted:
    """What a recount has given and nobody has compared yet, in slots of five minutes. Of the newest it has the
    responses by name, up to a bound; of all of them the sums.
    """

    def __init__(self, max_named: int = MAX_NAMED) -> None:
        self._max_named = max_named
        self._sums: dict[int, Sums] = {}
        self._named: dict[int, list[Placed]] = {}
        self._names = 0

    def add(self, ended: Iterable[Placed]) -> None:
        for placed in ended:
            slot_ms = placed.at_ms - placed.at_ms % SLOT_MS
            if slot_ms not in self._sums:
                self._sums[slot_ms], self._named[slot_ms] = Sums(), []
            self._sums[slot_ms].add(placed)
            self._named[slot_ms].append(placed)
            self._names += 1
        while self._names > self._max_named and self._named:
            self._names -= len(self._named.pop(min(self._named)))

    def figures(self, span: Span) -> dict[Key, Figures]:
        """`span` begins and ends with a slot, or nothing is known of what is beside it in its first and last one."""
        found: dict[Key, Figures] = {}
        for slot_ms in self._slots(span):
            for key, figures in self._sums[slot_ms].figures().items():
                found[key] = found.get(key, NOTHING).plus(figures)
        return found

    def items(self, span: Span, key: Key) -> list[Placed] | None:
        """None: not all of them are known by name."""
        slots = self._slots(span)
        if any(slot_ms not in self._named for slot_ms in slots):
            return None
        placed = (each for slot_ms in slots for each in self._named[slot_ms])
        return [each for each in placed if key_of(each.item.tenant_id, each.at_ms) == key]

    def forget(self, before_ms: int) -> None:
        """What ended before."""
        for slot_ms in [slot_ms for slot_ms in self._sums if slot_ms < before_ms]:
            del self._sums[slot_ms]
            self._names -= len(self._named.pop(slot_ms, ()))

    def _slots(self, span: Span) -> list[int]:
        first_ms = span.from_ms - span.from_ms % SLOT_MS
        return sorted(slot_ms for slot_ms in self._sums if first_ms <= slot_ms < span.to_ms)
