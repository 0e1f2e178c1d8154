"""Producers' jobs, by the names that their producers gave them.

A response id holds a secret of the region, so a producer cannot tell that of its job: it is made here, from who asks
and from the `custom_id`, so nobody can name a job of somebody else's. How a job stands is told, and never its text:
that stands on its tenant's results topic alone.
"""

from streams.clocks import now_ms
from streams.gateway.errors import ApiError
from streams.gateway.service.cancellation import Cancellation
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Lookup, Snapshot
from streams.gateway.service.refusals import job_not_found
from streams.ids import ResponseIds

MAX_CUSTOM_ID_CHARS = 200


class Jobs:
    def __init__(self, ids: ResponseIds, partitions: int, lookup: Lookup, cancellation: Cancellation) -> None:
        self._ids = ids
        self._partitions = partitions
        self._lookup = lookup
        self._cancellation = cancellation

    async def look_up(self, principal: Principal, custom_id: str) -> Snapshot:
        """How it stands; the snapshot has no spans.

        Raises ApiError: 404 for one that never was, that waits to be admitted, or that is gone; 409 when that cannot be
        told.
        """
        response_id = self._id(principal, custom_id)
        outline = await self._lookup.outline(principal, response_id)
        if outline is None:
            raise job_not_found(custom_id)
        terminal = outline.terminal
        return Snapshot(response_id, outline.started, None, terminal.sequence_number if terminal else 0, terminal)

    async def cancel(self, principal: Principal, custom_id: str) -> Snapshot:
        """Ends it, as `Cancellation.cancel` does, whose errors it raises; a 404 as `look_up` has it."""
        try:
            return await self._cancellation.cancel(principal, self._id(principal, custom_id))
        except ApiError as refusal:
            if refusal.status == 404:
                raise job_not_found(custom_id) from None
            raise

    def _id(self, principal: Principal, custom_id: str) -> str:
        if not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS:
            raise job_not_found(custom_id)
        return self._ids.of_job(self._partitions, principal.tenant.tenant_id, custom_id, at_ms=now_ms())
