"""What two readers of one bill compare: sums per tenant and hour first, single bills only where these differ. Pure.

A sum has a digest over everything that a bill says, so two errors do not hide each other. Sums of parts add up, so
neither side keeps a bill in memory to make one. A record that the log holds twice makes sums differ; the bills behind
them then show that it is the same.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from streams.clocks import hour_of

BUCKETS = 256
"""Into so many parts an hour of a tenant is cut, where it is too large to be compared bill by bill."""
ALL = -1
"""In the place of a part: the whole hour."""
_WRAPS_AT = 2**64

Source = Literal["usage", "delivered", "generated", "compute", "hours"]
"""Beside the tables: the log's usage, its delivered counts, what stands on `generated`, counted again, and what
attempts cost their workers. `hours`: what the tables tell of whole hours, beside their own events."""


class Span(NamedTuple):
    """From the first millisecond to before the last, Unix time."""

    from_ms: int
    to_ms: int

    def __contains__(self, at_ms: object) -> bool:
        return isinstance(at_ms, int) and self.from_ms <= at_ms < self.to_ms


class Key(NamedTuple):
    tenant_id: str
    hour_ms: int
    bucket: int = ALL


def key_of(tenant_id: str, at_ms: int) -> Key:
    """Its hour."""
    return Key(tenant_id, hour_of(at_ms))


class Figures(NamedTuple):
    """`tokens` of all classes; `cost_pico` over all currencies: the digest keeps them apart."""

    rows: int = 0
    tokens: int = 0
    cost_pico: int = 0
    digest: int = 0

    def plus(self, other: "Figures") -> "Figures":
        return Figures(
            self.rows + other.rows, self.tokens + other.tokens, self.cost_pico + other.cost_pico,
            (self.digest + other.digest) % _WRAPS_AT,
        )  # fmt: skip


NOTHING = Figures()


class Bill(NamedTuple):
    """All that a usage event and its price come to. Its order is that of the text whose digest the tables make too."""

    usage_id: str
    tenant_id: str
    endpoint: str
    model: str
    ending: str
    attempts: int
    accepted_at_ms: int
    uncached_input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reasoning_tokens: int
    released_tokens: int
    charge_state: str
    cost_pico: int
    currency: str

    @property
    def item_id(self) -> str:
        return self.usage_id

    @property
    def response_id(self) -> str:
        return self.usage_id.rpartition("/")[0]

    @property
    def tokens(self) -> int:
        return self.uncached_input_tokens + self.cached_input_tokens + self.output_tokens + self.reasoning_tokens

    @property
    def precedence(self) -> int:
        """Of two bills of one id the one that tells more counts: refused, opened, taken by a worker, priced."""
        return (self.model != "") + (self.attempts > 0) + (self.charge_state == "priced")


class Delivered(NamedTuple):
    """What a gateway says that a viewer had."""

    delivered_id: str
    response_id: str
    tenant_id: str
    delivered_tokens: int

    @property
    def item_id(self) -> str:
        return self.delivered_id

    @property
    def tokens(self) -> int:
        return self.delivered_tokens

    @property
    def cost_pico(self) -> int:
        return 0

    @property
    def precedence(self) -> int:
        return 0


class Recounted(NamedTuple):
    """The accepted tokens of a response that has ended. `opened`: 1, or 0 where it was refused before."""

    response_id: str
    tenant_id: str
    opened: int
    output_tokens: int

    @property
    def item_id(self) -> str:
        return self.response_id

    @property
    def tokens(self) -> int:
        return self.output_tokens

    @property
    def cost_pico(self) -> int:
        return 0

    @property
    def precedence(self) -> int:
        """What was refused in one partition and opened in another is counted where it was opened."""
        return self.opened


class Computed(NamedTuple):
    """What an attempt cost its worker; unpriced."""

    attempt_id: str
    response_id: str
    tenant_id: str
    worker_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    engine_ms: int

    @property
    def item_id(self) -> str:
        return self.attempt_id

    @property
    def tokens(self) -> int:
        return self.generated_tokens

    @property
    def cost_pico(self) -> int:
        return 0

    @property
    def precedence(self) -> int:
        return 0


Item = Bill | Delivered | Recounted | Computed


class Placed(NamedTuple):
    """`at_ms` decides its hour; partition and offset are -1 where it stands in no one place."""

    item: Item
    at_ms: int
    partition: int = -1
    offset: int = -1


def digest_of(item: Item) -> int:
    """The same number that the tables make of the same text."""
    text = "\n".join(map(str, item))
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8], "little")


class Sums:
    """Adds up what comes by. Holds a number of each tenant and hour, and no bill."""

    def __init__(self, *, only: frozenset[Key] | None = None, buckets: bool = False) -> None:
        """`only`: of these hours; `buckets`: by their parts."""
        self._only = only
        self._buckets = buckets
        self._sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def add(self, placed: Placed) -> None:
        item = placed.item
        key = key_of(item.tenant_id, placed.at_ms)
        if self._only is not None and key not in self._only:
            return
        digest = digest_of(item)
        if self._buckets:
            key = key._replace(bucket=digest % BUCKETS)
        sums = self._sums[key]
        sums[0] += 1
        sums[1] += item.tokens
        sums[2] += item.cost_pico
        sums[3] = (sums[3] + digest) % _WRAPS_AT

    def figures(self) -> dict[Key, Figures]:
        return {key: Figures(*sums) for key, sums in self._sums.items()}


class Gap(NamedTuple):
    """A tenant's hour, or a part of it, of which the log and the tables say different things."""

    source: Source
    key: Key
    log: Figures
    tables: Figures


def gaps(source: Source, log: Mapping[Key, Figures], tables: Mapping[Key, Figures]) -> list[Gap]:
    """In the order of tenants and hours."""
    return [
        Gap(source, key, log.get(key, NOTHING), tables.get(key, NOTHING))
        for key in sorted(log.keys() | tables.keys())
        if log.get(key, NOTHING) != tables.get(key, NOTHING)
    ]


def total(figures: Iterable[Figures]) -> Figures:
    summed = NOTHING
    for each in figures:
        summed = summed.plus(each)
    return summed
