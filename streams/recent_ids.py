"""Responses of which something was said that is not known here, or not yet."""

import sys
from collections import Counter, OrderedDict

KEEP_MS = 600_000
"""How long a response may take from its acceptance to its place in a lane: as long as a gateway gives it altogether."""
MAX_IDS = 262_144
"""Above 400 a second for all that time. Each takes 270 bytes, so together they take 70 MB."""
MAX_OF_TENANT = MAX_IDS // 4


class RecentIds:
    """When it was said, by response id: kept for `KEEP_MS`, the first time counts. In milliseconds of one clock.

    A tenant that has all of its share adds no more; beyond `MAX_IDS` the oldest goes.
    """

    def __init__(self, max_ids: int = MAX_IDS, max_of_tenant: int = MAX_OF_TENANT) -> None:
        self._max_ids = max_ids
        self._max_of_tenant = max_of_tenant
        self._said: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._said)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._said

    def add(self, response_id: str, tenant_id: str, said_at_ms: int) -> bool:
        """False if there was no room: then this one, or the oldest, is not kept."""
        if response_id in self._said:
            return True
        if self._of_tenant[tenant_id] >= self._max_of_tenant:
            return False
        tenant_id = sys.intern(tenant_id)
        self._said[response_id] = said_at_ms, tenant_id
        self._of_tenant[tenant_id] += 1
        if len(self._said) <= self._max_ids:
            return True
        self.take(next(iter(self._said)))
        return False

    def take(self, response_id: str) -> int | None:
        """When it was said; it is kept no longer."""
        entry = self._said.pop(response_id, None)
        if entry is None:
            return None
        said_at_ms, tenant_id = entry
        self._of_tenant[tenant_id] -= 1
        if not self._of_tenant[tenant_id]:
            del self._of_tenant[tenant_id]
        return said_at_ms

    def forget(self, now_ms: int) -> None:
        """Drops what was kept for long enough."""
        while self._said:
            response_id, (said_at_ms, _) = next(iter(self._said.items()))
            if said_at_ms + KEEP_MS > now_ms:
                break
            self.take(response_id)
