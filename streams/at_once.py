"""How many of something scarce are done at once, so shared that no tenant takes all of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TooManyAtOnce(Exception):
    """Not in time, or too many of the tenant's own wait already."""


class _Tenant:
    __slots__ = ("free", "present")

    def __init__(self, at_once: int) -> None:
        self.free = asyncio.Semaphore(at_once)
        self.present = 0


class AtOnce:
    """`at_once` in all and `at_once_per_tenant` of each; who waits for its own tenant takes nobody else's place.

    `present_per_tenant` bounds those who are at it or wait for that; None: who calls bounds them. A refusal says that
    there are too many of `what`.
    """

    def __init__(self, what: str, at_once: int, *, at_once_per_tenant: int, present_per_tenant: int | None) -> None:
        self._what = what
        self._free = asyncio.Semaphore(at_once)
        self._at_once_per_tenant = at_once_per_tenant
        self._present_per_tenant = present_per_tenant
        self._tenants: dict[str, _Tenant] = {}

    @asynccontextmanager
    async def one(self, tenant_id: str, timeout_s: float | None) -> AsyncIterator[None]:
        """While it lasts, one of them is the tenant's. Without a timeout it comes when those before have had theirs.

        Raises TooManyAtOnce.
        """
        tenant = self._tenants.setdefault(tenant_id, _Tenant(self._at_once_per_tenant))
        if self._present_per_tenant is not None and tenant.present >= self._present_per_tenant:
            raise TooManyAtOnce(f"too many of the tenant's {self._what}")
        tenant.present += 1
        try:
            deadline_s = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
            await self._acquire(tenant.free, deadline_s)
            try:
                await self._acquire(self._free, deadline_s)
                try:
                    yield
                finally:
                    self._free.release()
            finally:
                tenant.free.release()
        finally:
            tenant.present -= 1
            if not tenant.present:
                del self._tenants[tenant_id]

    async def _acquire(self, semaphore: asyncio.Semaphore, deadline_s: float | None) -> None:
        if not semaphore.locked():
            await semaphore.acquire()  # It does not wait: a timer would cost more than all the rest.
            return
        try:
            async with asyncio.timeout_at(deadline_s):
                await semaphore.acquire()
        except TimeoutError:
            raise TooManyAtOnce(f"too many {self._what}") from None
