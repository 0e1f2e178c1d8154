"""Files and batches in memory: what the contracts' suites hold against the database, and gateways are tested on."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from streams.clocks import now_ms
from streams.gateway.batches.core import FINAL, Batch, Held
from streams.gateway.batches.port import LEASE_MS, Event, NoRoom, NoSuchFile, TooManyBatches
from streams.gateway.files.port import CONDEMNED_KEPT_MS, UPLOADED_WITHIN_MS, Deletion, Page, Share, StoredFile
from streams.gateway.idempotency.decision import made_before
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import Claim, KeyUnknown
from streams.metadata.unavailable import MetadataUnavailable

_T = TypeVar("_T")


@dataclass(slots=True)
class _FileRow:
    tenant_id: str
    begun_at_ms: int
    file: StoredFile | None = None
    is_gone: bool = False
    kept_until_ms: int = 0
    """Of one that is gone."""


class MemoryFiles:
    """`is_away`: every call fails. Its `clock` may be replaced."""

    def __init__(self) -> None:
        self._rows: dict[str, _FileRow] = {}
        self.is_away = False
        self.clock: Callable[[], int] = now_ms
        self.is_in_use: Callable[[str], bool] = lambda _: False

    def __len__(self) -> int:
        return len(self._rows)

    def _at_hand(self) -> dict[str, _FileRow]:
        if self.is_away:
            raise MetadataUnavailable("away")
        return self._rows

    def _there(self, tenant_id: str) -> list[StoredFile]:
        return [
            row.file
            for row in self._at_hand().values()
            if row.tenant_id == tenant_id and row.file is not None and not self._has_gone(row)
        ]

    def _has_gone(self, row: _FileRow) -> bool:
        if row.is_gone or row.file is None:
            return True
        expires_at_ms = row.file.expires_at_ms
        return expires_at_ms is not None and expires_at_ms <= self.clock() and not self.is_in_use(row.file.file_id)

    async def begin(self, tenant_id: str, file_id: str) -> None:
        row = self._at_hand().setdefault(file_id, _FileRow(tenant_id, self.clock()))
        if row.file is None and not row.is_gone:
            row.begun_at_ms = self.clock()

    async def complete(self, file: StoredFile, share: Share | None, lasts_ms: int | None) -> StoredFile | None:
        row = self._at_hand().get(file.file_id)
        if row is None or row.is_gone:
            return None  # It took too long.
        if row.file is not None:
            return row.file
        if share is not None and not self.has_room(file.tenant_id, share, file.size_bytes):
            row.is_gone = True
            return None
        at_ms = self.clock()
        row.file = replace(file, created_at_ms=at_ms, expires_at_ms=None if lasts_ms is None else at_ms + lasts_ms)
        return row.file

    def has_room(self, tenant_id: str, share: Share, size_bytes: int = 1) -> bool:
        """For one more file, of so many bytes."""
        own = self._there(tenant_id)
        held_bytes = sum(each.size_bytes for each in own)
        return len(own) < share.files and held_bytes + size_bytes <= share.size_bytes

    async def held_bytes(self, tenant_id: str) -> int:
        return sum(file.size_bytes for file in self._there(tenant_id))

    async def held(self) -> Share:
        tenants = {row.tenant_id for row in self._at_hand().values()}
        files = [file for tenant_id in tenants for file in self._there(tenant_id)]
        return Share(len(files), sum(file.size_bytes for file in files))

    async def one(self, tenant_id: str, file_id: str) -> StoredFile | None:
        return next((file for file in self._there(tenant_id) if file.file_id == file_id), None)

    async def page(self, tenant_id: str, page: Page) -> Sequence[StoredFile] | None:
        known = sorted(self._there(tenant_id), key=lambda file: (file.created_at_ms, file.file_id))
        if page.order == "desc":
            known.reverse()
        found = [file for file in known if page.purpose in (None, file.purpose)]
        return _behind(found, page, lambda file: file.file_id, known)

    async def delete(self, tenant_id: str, file_id: str) -> Deletion:
        if await self.one(tenant_id, file_id) is None:
            return Deletion.UNKNOWN
        if self.is_in_use(file_id):
            return Deletion.IN_USE
        self._rows[file_id].is_gone = True
        return Deletion.DONE

    async def due(self, limit: int) -> list[str]:
        rows, now_ms = self._at_hand(), self.clock()
        found = []
        for file_id, row in rows.items():
            late = row.file is None and not row.is_gone and row.begun_at_ms + UPLOADED_WITHIN_MS <= now_ms
            if row.kept_until_ms > now_ms:
                continue
            if late or row.is_gone or (row.file is not None and self._has_gone(row)):
                row.is_gone = True
                found.append(file_id)
        return found[:limit]

    async def drop(self, file_ids: Sequence[str]) -> None:
        rows = self._at_hand()
        for file_id in file_ids:
            if (row := rows.get(file_id)) is not None and (row.is_gone or row.file is None):
                del rows[file_id]

    async def unknown(self, file_ids: Sequence[str]) -> list[str]:
        return [each for each in file_ids if each not in self._at_hand()]

    async def condemn(self, file_ids: Sequence[str]) -> None:
        for file_id in await self.unknown(file_ids):
            now_ms = self.clock()
            self._rows[file_id] = _FileRow("", now_ms, is_gone=True, kept_until_ms=now_ms + CONDEMNED_KEPT_MS)


@dataclass(slots=True)
class _BatchRow:
    held: Held
    leased_until_ms: int = 0
    ended_at_ms: int | None = None


class MemoryBatches:
    """`is_away`: every call fails. Its clock is that of its files; `keys` are those of whatever else is asked for."""

    def __init__(
        self, files: MemoryFiles, *, lease_ms: int = LEASE_MS, keys: MemoryIdempotencyKeys | None = None
    ) -> None:
        self._files = files
        self._keys = MemoryIdempotencyKeys() if keys is None else keys
        self._lease_ms = lease_ms
        self._rows: dict[str, _BatchRow] = {}
        self.is_away = False
        files.is_in_use = self._needs

    def __len__(self) -> int:
        return len(self._rows)

    def held(self, batch_id: str) -> Held:
        """As it stands."""
        return self._rows[batch_id].held

    def _needs(self, file_id: str) -> bool:
        batches = (row.held.batch for row in self._rows.values())
        return any(batch.input_file_id == file_id and batch.status not in FINAL for batch in batches)

    def _at_hand(self) -> dict[str, _BatchRow]:
        if self.is_away:
            raise MetadataUnavailable("away")
        return self._rows

    def _of(self, tenant_id: str) -> list[_BatchRow]:
        return [row for row in self._at_hand().values() if row.held.batch.tenant_id == tenant_id]

    async def create(
        self, batch: Batch, window_ms: int, *, most_open: int, most_kept: int, share: Share | None = None,
        claim: Claim | None = None,
    ) -> Batch:  # fmt: skip
        self._at_hand()
        if claim is None:
            return await self._create(batch, window_ms, most_open, most_kept, share)
        held = await self._keys.claim(claim)
        if (batch_id := made_before(claim, held)) is None:
            try:
                return await self._create(batch, window_ms, most_open, most_kept, share)
            except Exception:
                await self._keys.drop(claim, held)
                raise
        made = await self.one(claim.tenant_id, batch_id)
        if made is None:
            raise KeyUnknown
        return made

    async def _create(self, batch: Batch, window_ms: int, most_open: int, most_kept: int, share: Share | None) -> Batch:
        own = self._of(batch.tenant_id)
        file = await self._files.one(batch.tenant_id, batch.input_file_id)
        if file is None or file.purpose != "batch":
            raise NoSuchFile
        if share is not None and not self._files.has_room(batch.tenant_id, share):
            raise NoRoom
        if sum(row.held.batch.is_open for row in own) >= most_open:
            raise TooManyBatches
        if len(own) >= most_kept:
            ended = [row.held.batch for row in own if not row.held.batch.is_open]
            if not ended:
                raise TooManyBatches
            del self._rows[min(ended, key=lambda each: (each.created_at_ms, each.batch_id)).batch_id]
        at_ms = self._files.clock()
        batch = batch.model_copy(update={"created_at_ms": at_ms, "expires_at_ms": at_ms + window_ms})
        self._rows[batch.batch_id] = _BatchRow(Held(batch=batch))
        return batch

    async def one(self, tenant_id: str, batch_id: str) -> Batch | None:
        return next((row.held.batch for row in self._of(tenant_id) if row.held.batch.batch_id == batch_id), None)

    async def page(self, tenant_id: str, page: Page) -> Sequence[Batch] | None:
        found = sorted((row.held.batch for row in self._of(tenant_id)), key=lambda b: (b.created_at_ms, b.batch_id))
        found.reverse()
        return _behind(found, page, lambda batch: batch.batch_id, found)

    async def tell(self, tenant_id: str, batch_id: str, event: Event) -> Batch | None:
        if await self.one(tenant_id, batch_id) is None:
            return None
        return self._write(self._rows[batch_id], event).batch

    def _write(self, row: _BatchRow, event: Event) -> Held:
        row.held = event(row.held, self._files.clock())
        if not row.held.batch.is_open and row.ended_at_ms is None:
            row.ended_at_ms = self._files.clock()
        return row.held

    async def claim(self, owner: str, most: int, but: Collection[str] = ()) -> list[Held]:
        rows, now_ms = self._at_hand(), self._files.clock()
        held_of: dict[str, int] = {}
        free: dict[str, _BatchRow] = {}
        for row in sorted(rows.values(), key=_waits):
            tenant_id = row.held.batch.tenant_id
            if row.held.batch.is_open and row.leased_until_ms > now_ms:
                held_of[tenant_id] = held_of.get(tenant_id, 0) + 1
            elif row.held.batch.is_open and row.held.batch.batch_id not in but:
                free.setdefault(tenant_id, row)
        taken = sorted(free.items(), key=lambda each: held_of.get(each[0], 0))[:most]
        for _, row in taken:
            row.held = row.held.model_copy(update={"epoch": row.held.epoch + 1})
            row.leased_until_ms = now_ms + self._lease_ms
        return [row.held for _, row in taken]

    def _leased(self, held: Held) -> _BatchRow | None:
        row = self._at_hand().get(held.batch.batch_id)
        if row is None or row.held.epoch != held.epoch:
            return None
        row.leased_until_ms = self._files.clock() + self._lease_ms
        return row

    async def is_any_free(self) -> bool:
        rows, now_ms = self._at_hand(), self._files.clock()
        return any(row.held.batch.is_open and row.leased_until_ms <= now_ms for row in rows.values())

    async def change(self, held: Held, event: Event) -> Held | None:
        row = self._leased(held)
        return None if row is None else self._write(row, event)

    async def renew(self, held: Held) -> Held | None:
        row = self._leased(held)
        return None if row is None else row.held

    async def renumber(self, held: Held) -> Held | None:
        row = self._leased(held)
        if row is None:
            return None
        row.held = row.held.model_copy(update={"epoch": row.held.epoch + 1})
        return row.held

    async def release(self, held: Held) -> None:
        if (row := self._leased(held)) is not None:
            row.leased_until_ms = self._files.clock()

    async def over_among(self, batch_ids: Sequence[str]) -> list[str]:
        opened = {name for name, row in self._at_hand().items() if row.held.batch.is_open}
        return [each for each in batch_ids if each not in opened]

    async def purge(self, ended_before_ms: int, limit: int) -> int:
        before_ms = self._files.clock() - ended_before_ms
        gone = [name for name, row in self._at_hand().items() if (row.ended_at_ms or before_ms + 1) <= before_ms]
        for name in gone[:limit]:
            del self._rows[name]
        return len(gone[:limit])


def _waits(row: _BatchRow) -> tuple[int, int, str]:
    """Whoever has been held by nobody for longest comes first."""
    return row.leased_until_ms, row.held.batch.created_at_ms, row.held.batch.batch_id


def _behind(found: list[_T], page: Page, id_of: Callable[[_T], str], known: list[_T]) -> list[_T] | None:
    """`found` are some of those that are `known`, in the same order."""
    if page.after is not None:
        ids = [id_of(each) for each in known]
        if page.after not in ids:
            return None
        behind = {*ids[ids.index(page.after) + 1 :]}
        found = [each for each in found if id_of(each) in behind]
    return found[: page.limit + 1]
