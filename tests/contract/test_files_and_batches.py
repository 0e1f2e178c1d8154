"""One suite for every store of files and batches: in memory, on SQLite, and on Postgres."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import update

from streams.clocks import now_ms
from streams.gateway.batches import core
from streams.gateway.batches.core import Batch, Held, Part, Problem, Status
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.port import LEASE_MS, Batches, NoRoom, NoSuchFile, TooManyBatches
from streams.gateway.batches.sql import SqlBatches
from streams.gateway.files.port import Deletion, Files, Page, Share, StoredFile
from streams.gateway.files.sql import SqlFiles
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import Claim, IdempotencyKeys, KeyReused, KeyUnknown
from streams.gateway.idempotency.sql import SqlIdempotencyKeys
from streams.metadata.database import Database
from streams.metadata.tables import BATCHES, FILES
from streams.metadata.unavailable import MetadataUnavailable
from tests.contract.databases import KINDS, database_in, url_of

LONG_AGO_MS = 10**9


class Stores:
    """`pass_time` lets all leases and uploads of now be of long ago."""

    def __init__(self, files: Files, batches: Batches, keys: IdempotencyKeys, database: Database | None) -> None:
        self.files = files
        self.keys = keys
        self.batches = batches
        self._database = database

    async def pass_time(self) -> None:
        if self._database is None:
            assert isinstance(self.files, MemoryFiles)
            later_ms = self.files.clock() + LONG_AGO_MS
            self.files.clock = lambda: later_ms
            return
        files, batches = FILES.c, BATCHES.c

        def work(connection: object) -> None:
            execute = connection.execute  # type: ignore[attr-defined]
            execute(update(FILES).values(begun_at_ms=files.begun_at_ms - LONG_AGO_MS))
            execute(update(FILES).values(gone_at_ms=files.gone_at_ms - LONG_AGO_MS))
            execute(update(FILES).values(expires_at_ms=files.expires_at_ms - LONG_AGO_MS))
            execute(update(BATCHES).values(leased_until_ms=batches.leased_until_ms - LONG_AGO_MS))
            execute(update(BATCHES).values(ended_at_ms=batches.ended_at_ms - LONG_AGO_MS))

        await self._database.write(work)


def on(database: Database) -> Stores:
    return Stores(SqlFiles(database), SqlBatches(database), SqlIdempotencyKeys(database), database)


@pytest.fixture(params=KINDS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stores]:
    if request.param == "memory":
        files, keys = MemoryFiles(), MemoryIdempotencyKeys()
        yield Stores(files, MemoryBatches(files, keys=keys), keys, None)
        return
    database = database_in(tmp_path, url_of(request))
    yield on(database)
    await database.close()


def file(file_id: str, *, tenant: str = "acme", size_bytes: int = 10, purpose: str = "batch") -> StoredFile:
    return StoredFile(file_id, tenant, f"{file_id}.jsonl", purpose, size_bytes, "ab" * 32, 0, None)


async def add(stores: Stores, *file_ids: str, tenant: str = "acme", lasts_ms: int | None = None) -> None:
    for file_id in file_ids:
        await stores.files.begin(tenant, file_id)
        assert await stores.files.complete(file(file_id, tenant=tenant), None, lasts_ms) is not None


def batch(batch_id: str, *, tenant: str = "acme", file_id: str = "f") -> Batch:
    return Batch(
        batch_id=batch_id, tenant_id=tenant, project_id="p", key_id="k", input_file_id=file_id,
        endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}, created_at_ms=0, expires_at_ms=0,
    )  # fmt: skip


async def create(stores: Stores, *batch_ids: str, tenant: str = "acme", most: int = 100) -> None:
    for batch_id in batch_ids:
        made = batch(batch_id, tenant=tenant, file_id=f"of-{tenant}")
        await stores.batches.create(made, 60_000, most_open=most, most_kept=most)


def cancelled(held: Held, at_ms: int) -> Held:
    return core.tidied(core.finished(core.cancel_asked(held, at_ms), None, None, at_ms))


async def test_a_file_is_seen_once_it_is_complete(stores: Stores) -> None:
    files = stores.files
    await files.begin("acme", "f")
    assert await files.one("acme", "f") is None
    made = await files.complete(file("f"), Share(1, 10), None)
    assert made is not None
    assert abs(made.created_at_ms - now_ms()) < 60_000
    assert await files.one("acme", "f") == made
    assert (made.filename, made.size_bytes, made.expires_at_ms) == ("f.jsonl", 10, None)
    assert await files.complete(file("f", size_bytes=99), None, 1) == made, "again, it stays what it is"
    assert await files.held_bytes("acme") == 10


async def test_a_file_of_another_tenant_is_as_unknown_as_none(stores: Stores) -> None:
    await add(stores, "f")
    await stores.files.begin("beta", "begun")
    for tenant, file_id in (("beta", "f"), ("acme", "g")):
        assert await stores.files.one(tenant, file_id) is None
        assert await stores.files.delete(tenant, file_id) is Deletion.UNKNOWN
    assert await stores.files.page("beta", Page()) == []
    assert await stores.files.page("beta", Page(after="f")) is None
    assert await stores.files.held_bytes("beta") == 0
    await add(stores, "of-beta", tenant="beta")
    assert (await stores.files.held_bytes("beta"), await stores.files.held()) == (10, Share(2, 20)), "of all together"


async def test_a_tenant_has_its_share_and_no_more(stores: Stores) -> None:
    files = stores.files
    await add(stores, "f")
    for file_id, share in (("g", Share(1, 100)), ("h", Share(10, 19))):
        await files.begin("acme", file_id)
        assert await files.complete(file(file_id), share, None) is None
        assert await files.one("acme", file_id) is None
    assert sorted(await files.due(10)) == ["g", "h"]
    await files.begin("acme", "i")
    assert await files.complete(file("i"), Share(2, 20), None) is not None


async def test_what_no_row_names_is_due_a_day_after_it_is_condemned_and_never_becomes_a_file(stores: Stores) -> None:
    files = stores.files
    await add(stores, "there")
    await files.begin("acme", "begun")
    ids = ["strange", "there", "begun", "late"]
    assert await files.unknown(ids) == ["strange", "late"]
    assert await files.unknown([]) == []
    await files.condemn(ids)
    await files.condemn([])
    assert await files.due(10) == []
    await files.begin("acme", "late")
    assert await files.complete(file("late"), None, None) is None, "its writer hears that it took too long"
    assert await files.complete(file("begun"), None, None) is not None
    await stores.pass_time()
    assert sorted(await files.due(10)) == ["late", "strange"]
    assert await files.one("acme", "there") is not None
    assert await files.held_bytes("") == 0
    await files.drop(["late", "strange"])
    assert await files.unknown(ids) == ["strange", "late"]


async def test_files_are_listed_page_by_page(stores: Stores) -> None:
    names = [f"f{number}" for number in range(7)]
    await add(stores, *names)
    await add(stores, "other", tenant="beta")
    for order in ("asc", "desc"):
        seen: list[str] = []
        after: str | None = None
        while True:
            page = await stores.files.page("acme", Page(after, 3, order))
            assert page is not None
            seen += [each.file_id for each in page[:3]]
            if len(page) <= 3:
                break
            after = seen[-1]
        assert sorted(seen) == names
        times = [found.created_at_ms for each in seen if (found := await stores.files.one("acme", each))]
        assert times == sorted(times, reverse=order == "desc")
    assert await stores.files.page("acme", Page(purpose="batch_output")) == []
    assert await stores.files.page("acme", Page(after="unknown")) is None


async def test_a_deleted_file_is_due_until_it_is_dropped(stores: Stores) -> None:
    files = stores.files
    await add(stores, "f", "g")
    assert await files.delete("acme", "f") is Deletion.DONE
    assert await files.delete("acme", "f") is Deletion.UNKNOWN
    assert await files.one("acme", "f") is None
    assert await files.held_bytes("acme") == 10
    await files.drop(["g"])
    assert await files.one("acme", "g") is not None, "what is not due is not dropped"
    assert await files.due(10) == ["f"]
    await files.drop(["f"])
    assert await files.due(10) == []


async def test_what_is_not_completed_in_time_is_due_and_completed_no_more(stores: Stores) -> None:
    await stores.files.begin("acme", "f")
    assert await stores.files.due(10) == []
    await stores.pass_time()
    assert await stores.files.due(10) == ["f"]
    assert await stores.files.complete(file("f"), None, None) is None
    await stores.files.drop(["f"])
    assert await stores.files.complete(file("f"), None, None) is None


async def test_what_is_given_up_is_dropped_at_once(stores: Stores) -> None:
    await stores.files.begin("acme", "f")
    await stores.files.drop(["f"])
    assert await stores.files.complete(file("f"), None, None) is None
    await stores.pass_time()
    assert await stores.files.due(10) == []


async def test_what_is_begun_again_has_its_time_anew_unless_it_is_gone(stores: Stores) -> None:
    files = stores.files
    await files.begin("acme", "f")
    await stores.pass_time()
    await files.begin("acme", "f")
    assert await files.due(10) == []
    await stores.pass_time()
    assert await files.due(10) == ["f"]
    await files.begin("acme", "f")
    assert await files.complete(file("f"), None, None) is None
    await files.drop(["f"])
    await files.begin("acme", "f")
    assert await files.complete(file("f"), None, None) is not None


async def test_a_file_expires_unless_a_batch_reads_it(stores: Stores) -> None:
    await add(stores, "f", "of-acme", lasts_ms=1_000_000)
    await create(stores, "b")
    await stores.pass_time()
    assert await stores.files.one("acme", "f") is None
    assert await stores.files.one("acme", "of-acme") is not None
    assert await stores.files.due(10) == ["f"]
    await stores.batches.tell("acme", "b", cancelled)
    assert await stores.files.one("acme", "of-acme") is None
    assert "of-acme" in await stores.files.due(10)


async def test_a_file_is_not_deleted_while_a_batch_reads_it(stores: Stores) -> None:
    await add(stores, "of-acme")
    await create(stores, "b")
    assert await stores.files.delete("acme", "of-acme") is Deletion.IN_USE
    assert await stores.files.one("acme", "of-acme") is not None
    await stores.batches.tell("acme", "b", cancelled)
    assert await stores.files.delete("acme", "of-acme") is Deletion.DONE
    with pytest.raises(NoSuchFile):
        await create(stores, "c")


async def test_a_batch_is_made_of_a_file_of_lines_of_its_tenant(stores: Stores) -> None:
    await add(stores, "of-acme")
    await stores.files.begin("acme", "out")
    await stores.files.complete(file("out", purpose="batch_output"), None, None)
    with pytest.raises(NoSuchFile):
        await create(stores, "b", tenant="beta")
    for file_id in ("out", "unknown"):
        with pytest.raises(NoSuchFile):
            await stores.batches.create(batch("b", file_id=file_id), 1, most_open=9, most_kept=9)
    made = await stores.batches.create(batch("b", file_id="of-acme"), 60_000, most_open=9, most_kept=9)
    assert made.expires_at_ms == made.created_at_ms + 60_000
    assert (made.status, made.metadata) == (Status.VALIDATING, {"a": "b"})
    assert await stores.batches.one("acme", "b") == made
    assert await stores.batches.one("beta", "b") is None
    assert await stores.batches.tell("beta", "b", core.cancel_asked) is None


async def keyed(stores: Stores, batch_id: str, digest: bytes = b"d", *, tenant: str = "acme", most: int = 9) -> Batch:
    """By a key that is the same of all."""
    made = batch(batch_id, tenant=tenant, file_id=f"of-{tenant}")
    claim = Claim(tenant, "key", digest, batch_id)
    return await stores.batches.create(made, 60_000, most_open=most, most_kept=most, claim=claim)


async def test_a_key_stands_for_one_batch(stores: Stores) -> None:
    await add(stores, "of-acme")
    await add(stores, "of-beta", tenant="beta")
    made = await keyed(stores, "a")
    told = await stores.batches.tell("acme", "a", cancelled)
    assert told is not None
    assert (made.batch_id, await keyed(stores, "b")) == ("a", told), "as it stands, whatever became of it"
    with pytest.raises(KeyReused):
        await keyed(stores, "c", b"other")
    assert (await keyed(stores, "d", tenant="beta")).batch_id == "d"
    held = await stores.keys.claim(Claim("acme", "key", b"of a chat", "resp"))
    assert (held.response_id, held.digest) == ("a", b"d")
    assert await stores.batches.page("acme", Page()) == [told]


async def test_of_many_that_come_with_one_key_one_makes_the_batch(stores: Stores) -> None:
    await add(stores, "of-acme")
    made = await asyncio.gather(*(keyed(stores, f"b{number}") for number in range(8)))
    assert len({each.batch_id for each in made}) == 1
    assert await stores.batches.page("acme", Page()) == made[:1]


async def test_a_batch_that_is_not_made_takes_no_key(stores: Stores) -> None:
    with pytest.raises(NoSuchFile):
        await keyed(stores, "a")
    await add(stores, "of-acme")
    with pytest.raises(TooManyBatches):
        await keyed(stores, "a", most=0)
    assert (await keyed(stores, "b", b"other")).batch_id == "b"


async def test_a_key_whose_batch_is_forgotten_makes_no_other(stores: Stores) -> None:
    await add(stores, "of-acme")
    await keyed(stores, "a")
    await stores.batches.tell("acme", "a", cancelled)
    await create(stores, "b", most=1)
    with pytest.raises(KeyUnknown):
        await keyed(stores, "c")


async def test_whose_files_have_reached_its_share_makes_no_batch_of_them(stores: Stores) -> None:
    """Each makes files of its own, which nobody refuses then."""
    await add(stores, "of-acme", "g")
    await add(stores, "of-beta", tenant="beta")
    make, free = partial(stores.batches.create, window_ms=60_000, most_open=9, most_kept=9), Share(3, 21)
    for share in (Share(2, 21), Share(3, 20)):
        with pytest.raises(NoRoom):
            await make(batch("a", file_id="of-acme"), share=share)
        await make(batch(f"b{share.files}", tenant="beta", file_id="of-beta"), share=share)
    made = await make(batch("a", file_id="of-acme"), share=free, claim=Claim("acme", "key", b"d", "a"))
    await add(stores, "h")
    again = await make(batch("c", file_id="of-acme"), share=free, claim=Claim("acme", "key", b"d", "c"))
    assert again == made, "which was made while there was room"


async def test_batches_are_listed_the_newest_first(stores: Stores) -> None:
    await add(stores, "of-acme")
    names = [f"b{number}" for number in range(5)]
    await create(stores, *names)
    first = await stores.batches.page("acme", Page(limit=2))
    assert first is not None
    assert len(first) == 3
    rest = await stores.batches.page("acme", Page(first[1].batch_id, 10))
    assert rest is not None
    assert sorted(each.batch_id for each in [*first[:2], *rest]) == names
    assert await stores.batches.page("beta", Page()) == []
    assert await stores.batches.page("beta", Page(after="b1")) is None


async def test_a_tenant_has_so_many_batches_and_the_oldest_that_has_ended_goes(stores: Stores) -> None:
    await add(stores, "of-acme")
    await create(stores, "a", "b", most=2)
    with pytest.raises(TooManyBatches):
        await create(stores, "c", most=2)
    await stores.batches.tell("acme", "b", cancelled)
    await create(stores, "c", most=2)
    assert await stores.batches.one("acme", "b") is None
    assert await stores.batches.one("acme", "a") is not None


async def test_what_comes_at_once_is_counted_one_by_one(stores: Stores) -> None:
    names = [f"f{number}" for number in range(12)]
    for name in names:
        await stores.files.begin("acme", name)
    share = Share(3, 1_000)
    completed = await asyncio.gather(*(stores.files.complete(file(name), share, None) for name in names))
    assert sum(each is not None for each in completed) == 3
    assert await stores.files.held_bytes("acme") == 30
    own = [each.file_id for each in completed if each is not None]
    creations = [
        stores.batches.create(batch(f"b{number}", file_id=own[number % 3]), 1_000, most_open=3, most_kept=99)
        for number in range(12)
    ]
    created = await asyncio.gather(*creations, return_exceptions=True)
    assert sum(isinstance(each, Batch) for each in created) == 3
    assert sum(isinstance(each, TooManyBatches) for each in created) == 9


async def test_one_holds_a_batch_at_a_time(stores: Stores) -> None:
    batches = stores.batches
    await add(stores, "of-acme")
    await create(stores, "b")
    (held,) = await batches.claim("one", 5)
    assert (held.batch.batch_id, held.epoch) == ("b", 1)
    assert await batches.claim("two", 5) == []
    await stores.pass_time()
    (other,) = await batches.claim("two", 5)
    assert other.epoch == 2
    assert await batches.change(held, core.cancel_asked) is None
    assert await batches.renew(held) is None
    await batches.release(held)
    assert await batches.claim("three", 5) == []
    assert await batches.renew(other) == other
    await batches.release(other)
    assert [each.epoch for each in await batches.claim("three", 5)] == [3]


async def test_whether_one_waits_for_somebody_to_hold_it(stores: Stores) -> None:
    batches = stores.batches
    assert not await batches.is_any_free()
    await add(stores, "of-acme")
    await create(stores, "a", "b")
    for is_one_left in (True, False):
        assert await batches.is_any_free()
        (held,) = await batches.claim("one", 1)
        assert await batches.is_any_free() is is_one_left
    await batches.release(held)
    assert await batches.is_any_free()
    await batches.tell("acme", held.batch.batch_id, cancelled)
    assert not await batches.is_any_free()


async def test_who_runs_a_batch_takes_others_of_its_tenant_and_never_that_one_from_itself(stores: Stores) -> None:
    batches = stores.batches
    await add(stores, "of-acme")
    await create(stores, "a", "b")
    (held,) = await batches.claim("one", 1)
    await stores.pass_time()
    (other,) = await batches.claim("one", 5, [held.batch.batch_id])
    assert {held.batch.batch_id, other.batch.batch_id} == {"a", "b"}
    await stores.pass_time()
    assert await batches.claim("one", 5, ["a", "b"]) == []
    assert await batches.renew(held) == held


async def test_what_is_renewed_is_held_on(stores: Stores) -> None:
    await add(stores, "of-acme")
    await create(stores, "b")
    (held,) = await stores.batches.claim("one", 1)
    await stores.pass_time()
    assert await stores.batches.renew(held) == held
    assert await stores.batches.claim("two", 1) == []


async def test_who_takes_a_new_number_is_not_met_by_what_it_asked_under_the_old_one(stores: Stores) -> None:
    batches = stores.batches
    await add(stores, "of-acme")
    await create(stores, "b")
    (old,) = await batches.claim("one", 1)
    await stores.pass_time()
    new = await batches.renumber(old)
    assert new is not None
    assert (new.epoch, new.batch, new.progress) == (old.epoch + 1, old.batch, old.progress)
    assert await batches.claim("two", 1) == [], "it is held on"
    assert await batches.change(old, core.cancel_asked) is None
    assert await batches.renumber(old) is None
    assert await batches.renew(new) == new


async def test_of_many_that_claim_at_once_one_has_it(stores: Stores) -> None:
    for tenant in ("acme", "beta", "gamma"):
        await add(stores, f"of-{tenant}", tenant=tenant)
        await create(stores, f"b-{tenant}", tenant=tenant)
    claims = await asyncio.gather(*(stores.batches.claim(f"gateway-{number}", 3) for number in range(8)))
    assert sorted(held.batch.batch_id for claim in claims for held in claim) == ["b-acme", "b-beta", "b-gamma"]


async def test_a_tenant_with_many_batches_keeps_nobody_waiting(stores: Stores) -> None:
    await add(stores, "of-acme")
    await create(stores, *(f"a{number}" for number in range(20)))
    await add(stores, "of-beta", tenant="beta")
    await create(stores, "b", tenant="beta")
    claimed = [held.batch.batch_id for held in await stores.batches.claim("one", 2)]
    assert len(claimed) == 2
    assert "b" in claimed
    (one_more,) = await stores.batches.claim("one", 1)
    assert one_more.batch.tenant_id == "acme"


async def test_an_event_changes_what_stands_and_its_progress_with_it(stores: Stores) -> None:
    batches = stores.batches
    await add(stores, "of-acme")
    await create(stores, "b")
    (held,) = await batches.claim("one", 1)
    part = Part(epoch=1, error_bytes=7)
    event = partial(_validated, part)
    after = await batches.change(held, event)
    assert after is not None
    assert (after.batch.status, after.batch.total, after.batch.failed) == (Status.IN_PROGRESS, 9, 1)
    assert (after.progress.ended, after.progress.positions) == (b"\x02\x00", (1, 2))
    assert await batches.renew(after) == after
    told = await batches.tell("acme", "b", core.cancel_asked)
    assert told is not None
    assert told.status is Status.CANCELLING
    late = await batches.change(after, event)
    assert late is not None
    assert (late.batch.status, late.progress) == (Status.CANCELLING, after.progress), "the row decides, not the memory"


def _validated(part: Part, held: Held, at_ms: int) -> Held:
    return core.validated(held, 9, 1, b"\x02\x00", part, [1, 2], at_ms)


async def test_what_has_ended_is_held_by_nobody_and_forgotten_in_time(stores: Stores) -> None:
    batches = stores.batches
    await add(stores, "of-acme")
    await create(stores, "a", "b")
    (held,) = await batches.claim("one", 1)
    problem = Problem(code="x", message="y", line=3)
    failed = await batches.change(held, lambda found, at_ms: core.tidied(core.lost(found, problem, at_ms)))
    assert failed is not None
    await stores.pass_time()
    assert [each.batch.batch_id for each in await batches.claim("two", 5)] != [failed.batch.batch_id]
    found = await batches.one("acme", failed.batch.batch_id)
    assert found is not None
    assert found.problems == (problem,)
    assert await batches.purge(2 * LONG_AGO_MS, 10) == 0
    assert await batches.purge(LEASE_MS, 10) == 1
    assert await batches.one("acme", failed.batch.batch_id) is None
    assert await batches.purge(LEASE_MS, 10) == 0


async def test_what_changes_nothing_is_not_written(stores: Stores) -> None:
    """Who asks again and again for a cancel keeps nothing from being forgotten."""
    batches = stores.batches
    await add(stores, "of-acme")
    await create(stores, "b")
    ended = await batches.tell("acme", "b", cancelled)
    await stores.pass_time()
    assert await batches.tell("acme", "b", core.cancel_asked) == ended
    assert await batches.purge(LEASE_MS, 10) == 1


async def test_what_is_over_is_told_from_what_is_open(stores: Stores) -> None:
    await add(stores, "of-acme")
    await create(stores, "runs", "over", "ended")
    await stores.batches.tell("acme", "over", cancelled)
    problem = Problem(code="x", message="y")
    await stores.batches.tell("acme", "ended", lambda held, at_ms: core.lost(held, problem, at_ms))
    asked = ["runs", "over", "ended", "unknown"]
    assert await stores.batches.over_among(asked) == ["over", "unknown"], "the one that ended has something to remove"
    assert await stores.batches.over_among(["runs"]) == []


async def test_two_gateways_over_one_file_agree(tmp_path: Path) -> None:
    databases = [database_in(tmp_path), database_in(tmp_path)]
    stores = [on(each) for each in databases]
    for number in range(6):
        tenant = f"t{number}"
        await add(stores[number % 2], f"of-{tenant}", tenant=tenant)
        await create(stores[number % 2], f"b{number}", tenant=tenant)
    claims = await asyncio.gather(*(each.batches.claim("x", 6) for each in stores))
    assert sorted(held.batch.batch_id for claim in claims for held in claim) == [f"b{number}" for number in range(6)]
    for database in databases:
        await database.close()


async def test_while_the_store_is_away_it_says_so() -> None:
    files = MemoryFiles()
    batches = MemoryBatches(files)
    files.is_away = batches.is_away = True
    with pytest.raises(MetadataUnavailable):
        await files.one("acme", "f")
    with pytest.raises(MetadataUnavailable):
        await batches.claim("one", 1)
