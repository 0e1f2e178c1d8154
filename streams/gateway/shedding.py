"""Who may have more than its bound of what outlives the log, and how what is beyond that goes: in slices."""

from collections.abc import Awaitable, Callable

import structlog

_log = structlog.get_logger()


class Grown:
    """Tenants that have stored something since their bound was looked at; one looked at in vain comes last."""

    def __init__(self, event: str) -> None:
        """`event`: as what the log tells that something went."""
        self._event = event
        self._tenants: dict[str, None] = {}

    def grew(self, tenant_id: str) -> None:
        self._tenants[tenant_id] = None

    async def shed(self, shed: Callable[[str], Awaitable[int]], max_slices: int) -> None:
        """`shed` removes a slice of what a tenant has beyond its bound, and returns how many went.

        Raises what that raises. Then, and where there is more than so many slices of it, the tenant's turn comes again.
        """
        for tenant_id in list(self._tenants):
            self._tenants.pop(tenant_id, None)
            went = -1
            try:
                for _ in range(max_slices):
                    if not (went := await shed(tenant_id)):
                        break
                    _log.warning(self._event, tenant_id=tenant_id, went=went, repeats=True)
            finally:
                if went:
                    self._tenants[tenant_id] = None
