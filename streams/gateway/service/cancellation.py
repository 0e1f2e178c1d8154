"""A client's own cancel."""

from streams.gateway.fan_out.hub import Hub
from streams.gateway.service.cancel_writer import CancelWriter
from streams.gateway.service.keys import Principal
from streams.gateway.service.lookup import Lookup, Snapshot
from streams.gateway.service.patience import Patience, is_young
from streams.gateway.service.refusals import not_found, not_here_yet


class Cancellation:
    def __init__(self, hub: Hub, lookup: Lookup, patience: Patience, cancels: CancelWriter) -> None:
        self._hub = hub
        self._lookup = lookup
        self._patience = patience
        self._cancels = cancels

    async def cancel(self, principal: Principal, response_id: str) -> Snapshot:
        """Ends a response, wherever it runs. Idempotent: what has ended stays as it ended.

        The snapshot has no spans: a cancel waits for no replay. Raises ApiError: 404 for an id that is not the
        tenant's, 409 when history cannot tell whose it is, 503 when that may be known a moment later, or when the
        cancellation is not stored in time.
        """
        self._lookup.partition(response_id)
        outline = await self._lookup.outline(principal, response_id)
        if outline is None:
            if self._hub.has_ended(response_id) or not is_young(response_id):
                raise not_found(response_id)
            deadline_ms = self._patience.begin()
            await self._patience.until(
                principal.tenant.tenant_id,
                lambda: self._lookup.in_memory(principal, response_id) is not None,
                deadline_ms,
            )
            outline = await self._lookup.outline(principal, response_id)
            if outline is None:
                raise not_here_yet("Nothing is known of the response yet.")
        started, terminal, scope = outline
        if terminal is None and not self._hub.has_ended(response_id):
            await self._cancels.write(response_id, scope, "client")
        return Snapshot(response_id, started, None, terminal.sequence_number if terminal else 0, terminal)
