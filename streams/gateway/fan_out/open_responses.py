"""The responses that a gateway accepted and that have not ended, of all tenants and of each."""

from collections import Counter


class OpenResponses:
    def __init__(self) -> None:
        self._tenants: dict[str, str] = {}
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tenants)

    def of(self, tenant_id: str) -> int:
        return self._of_tenant.get(tenant_id, 0)

    def add(self, response_id: str, tenant_id: str) -> None:
        self._tenants[response_id] = tenant_id
        self._of_tenant[tenant_id] += 1

    def discard(self, response_id: str) -> None:
        """Idempotent."""
        if (tenant_id := self._tenants.pop(response_id, None)) is not None:
            self._of_tenant[tenant_id] -= 1
            if not self._of_tenant[tenant_id]:
                del self._of_tenant[tenant_id]
