"""Keys in memory: what the contract's suite holds against the database, and gateways are tested on."""

from collections.abc import Callable
from dataclasses import dataclass

from streams.clocks import now_ms
from streams.gateway.idempotency.port import KEPT_MS, Claim, Held
from streams.metadata.unavailable import MetadataUnavailable


@dataclass(slots=True)
class _Row:
    digest: bytes
    response_id: str
    began_at_ms: int
    tried_at_ms: int
    expires_at_ms: int


class MemoryIdempotencyKeys:
    """`is_away`: every call fails. Its `clock` may be replaced."""

    def __init__(self, *, kept_ms: int = KEPT_MS) -> None:
        self._kept_ms = kept_ms
        self._rows: dict[tuple[str, str], _Row] = {}
        self.is_away = False
        self.clock: Callable[[], int] = now_ms

    def __len__(self) -> int:
        return len(self._rows)

    def _at_hand(self) -> dict[tuple[str, str], _Row]:
        if self.is_away:
            raise MetadataUnavailable("away")
        return self._rows

    def _of(self, claim: Claim, response_id: str) -> _Row | None:
        """If the key stands for that response."""
        row = self._at_hand().get((claim.tenant_id, claim.key))
        return row if row is not None and row.response_id == response_id else None

    async def claim(self, claim: Claim) -> Held:
        rows, at_ms = self._at_hand(), self.clock()
        row = rows.get((claim.tenant_id, claim.key))
        if row is None or row.expires_at_ms <= at_ms:
            row = _Row(claim.digest, claim.response_id, at_ms, at_ms, at_ms + self._kept_ms)
            rows[claim.tenant_id, claim.key] = row
        return Held(row.digest, row.response_id, row.began_at_ms, row.tried_at_ms, at_ms)

    async def take(self, claim: Claim, held: Held) -> bool:
        row, at_ms = self._of(claim, held.response_id), self.clock()
        if row is None or row.tried_at_ms != held.tried_at_ms:
            return False
        row.tried_at_ms = at_ms
        if row.response_id != claim.response_id:
            row.response_id, row.began_at_ms = claim.response_id, at_ms
            row.expires_at_ms = at_ms + self._kept_ms
        return True

    async def let_go(self, claim: Claim) -> None:
        if (row := self._of(claim, claim.response_id)) is not None:
            row.tried_at_ms = 0

    async def drop(self, claim: Claim, held: Held) -> None:
        row = self._of(claim, claim.response_id)
        if row is not None and row.tried_at_ms == held.tried_at_ms:
            del self._rows[claim.tenant_id, claim.key]

    async def purge(self, limit: int) -> int:
        at_ms = self.clock()
        gone = sorted((row.expires_at_ms, name) for name, row in self._at_hand().items() if row.expires_at_ms <= at_ms)
        return self._forget([name for _, name in gone[:limit]])

    async def shed(self, tenant_id: str, kept: int, limit: int) -> int:
        own = sorted((row.began_at_ms, name) for name, row in self._at_hand().items() if name[0] == tenant_id)
        return self._forget([name for _, name in own[: min(limit, max(0, len(own) - kept))]])

    def _forget(self, names: list[tuple[str, str]]) -> int:
        for name in names:
            del self._rows[name]
        return len(names)
