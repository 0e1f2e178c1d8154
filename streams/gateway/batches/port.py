"""What is kept of a batch. Every method raises `MetadataUnavailable`; then it may have been done all the same.

One gateway at a time holds a batch, for as long as it renews its lease. Each lease has a number, and who held an
earlier one changes nothing any more.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from streams.gateway.batches.core import Batch, Held
from streams.gateway.files.port import Page, Share
from streams.gateway.idempotency.port import Claim

LEASE_MS: Final = 15_000
Event = Callable[[Held, int], Held]
"""What an event makes of what stands, at the store's time. Pure: it may be called again."""


class NoSuchFile(Exception):
    """It is not there for the tenant, or is no file of lines."""


class TooManyBatches(Exception):
    """The tenant has as many as may be open, or as many as are kept, all of them open."""


class NoRoom(Exception):
    """The tenant's files have reached its share: where would those of the batch be?"""


class Batches(Protocol):
    """Of one region, for all its gateways. Nothing of a tenant's is there for another; the clock is the store's own."""

    async def create(
        self, batch: Batch, window_ms: int, *, most_open: int, most_kept: int, share: Share | None = None,
        claim: Claim | None = None,
    ) -> Batch:  # fmt: skip
        """As it stands from now on, `created_at_ms` and `expires_at_ms` by the store's clock. Its file is not deleted
        while it is there. Of those that have ended the oldest goes, where too many are kept.

        `share`: of its tenant's files. `claim`: of a key that is to stand for this batch. It does once the batch is
        there, and not before; where it stands for one already, that is told as it stands, and none is made.

        Raises NoSuchFile, TooManyBatches, NoRoom, KeyReused, KeyUnknown.
        """

    async def one(self, tenant_id: str, batch_id: str) -> Batch | None: ...

    async def page(self, tenant_id: str, page: Page) -> Sequence[Batch] | None:
        """The newest first. One more than the page's limit where there are more; None where `after` is no batch of the
        tenant's.
        """

    async def tell(self, tenant_id: str, batch_id: str, event: Event) -> Batch | None:
        """Something happens to it, whoever holds it; None where there is no such batch. Where that changes nothing
        nothing is written.
        """

    async def claim(self, owner: str, most: int, but: Collection[str] = ()) -> list[Held]:
        """Open batches that nobody holds, held by this owner from now on: of each tenant the one that nobody has held
        for longest, and first of whom fewer are held. None of `but`: who runs one is not to take it from itself.
        """

    async def is_any_free(self) -> bool:
        """Whether an open batch is held by nobody."""

    async def change(self, held: Held, event: Event) -> Held | None:
        """What an event makes of it, written; the lease is renewed. None where somebody else holds it by now."""

    async def renew(self, held: Held) -> Held | None:
        """As it stands; None where somebody else holds it by now, or it is gone."""

    async def renumber(self, held: Held) -> Held | None:
        """As `renew`, held under a new number: what was asked under the old one, and may still be on its way, changes
        nothing any more.
        """

    async def release(self, held: Held) -> None:
        """Anybody may hold it from now on."""

    async def over_among(self, batch_ids: Sequence[str]) -> list[str]:
        """Those of them that are there no more, or for which nothing is left to be done. They never are again."""

    async def purge(self, ended_before_ms: int, limit: int) -> int:
        """Forgets so many that ended that long ago by the store's clock; how many that were."""
