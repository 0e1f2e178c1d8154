"""What is kept of a key. Every method raises `MetadataUnavailable`; then it may have been done all the same.

A key stands for a response id before anything of that response is on the log. So whoever comes back with it finds the
response, or that nothing came of it, and never begins a second one beside it.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from streams.topics import DAY_MS

KEPT_MS: Final = DAY_MS
"""From when a key was given the response that it stands for."""


class Claim(NamedTuple):
    """A request with a key. `digest`: of what it asks for. `response_id`: what is to answer it, if nothing does yet: a
    response, or the batch or the conversation that it makes.
    """

    tenant_id: str
    key: str
    digest: bytes
    response_id: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a key stands for. Times are the store's; `now_ms` is when this was read there."""

    digest: bytes
    response_id: str
    began_at_ms: int
    """When the key was given this response id."""
    tried_at_ms: int
    """When somebody last set out to write its request to the log; 0: who did has given up."""
    now_ms: int


class KeyReused(Exception):
    """A claim's key stands for another request."""


class KeyUnknown(Exception):
    """A claim's key stands for what is not kept any more."""


class IdempotencyKeys(Protocol):
    """Of one region, for all its gateways. Nothing of a tenant's is there for another; the clock is the store's own."""

    async def claim(self, claim: Claim) -> Held:
        """On disk when it returns. The claim's own response id stands in what is held where nobody had the key before,
        or not for the last day."""

    async def take(self, claim: Claim, held: Held) -> bool:
        """The key stands for the claim's response from now on, if it still stands as it is `held`; whether it did.

        Of another response than before, and then the day begins anew; of the same one somebody sets out again.
        """

    async def let_go(self, claim: Claim) -> None:
        """Who set out for the claim's response has given up: nobody need wait for it."""

    async def drop(self, claim: Claim, held: Held) -> None:
        """Nothing has come of the claim's response: the key is as if it had never been, unless somebody else has set
        out for that response since it was `held`.
        """

    async def purge(self, limit: int) -> int:
        """Forgets so many that have expired, the first of them first; how many that were."""

    async def shed(self, tenant_id: str, kept: int, limit: int) -> int:
        """Of a tenant that has more than are `kept` the oldest are forgotten, so many at once; how many that were."""
