"""One suite for every store of blobs: in memory, and in a folder."""

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.blobs import folder as folder_module
from streams.blobs.folder import MARK, UNFINISHED, FolderBlobs, mark
from streams.blobs.memory import MemoryBlobs
from streams.blobs.port import CHUNK_BYTES, BlobChanged, BlobMissing, Blobs, BlobsUnavailable, name_of

Change = Callable[[str, bytes], None]


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Blobs, Change]]:
    """And how somebody writes past it."""
    if request.param == "memory":
        blobs = MemoryBlobs()
        yield blobs, blobs.change
        return
    in_folder = blobs_in(tmp_path / "blobs")
    yield in_folder, lambda name, data: _rewrite(tmp_path / "blobs" / name, data)
    in_folder.close()


def blobs_in(folder: Path) -> FolderBlobs:
    mark(folder, make=True)
    return FolderBlobs(folder)


@pytest.fixture
def blobs(store: tuple[Blobs, Change]) -> Blobs:
    return store[0]


def _rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    changed = path.stat()
    os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns + 1))


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for each in data:
        yield each


async def whole(blobs: Blobs, name: str, begin: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in blobs.read(name, begin, end)])


async def test_what_is_written_is_read(blobs: Blobs) -> None:
    written = await blobs.write("files/a", pieces(b"one", b"", b"two"))
    assert (written.size_bytes, written.sha256) == (6, hashlib.sha256(b"onetwo").hexdigest())
    assert await whole(blobs, "files/a") == b"onetwo"
    assert await whole(blobs, "files/a", 2, 5) == b"etw"
    assert await whole(blobs, "files/a", 6) == b""


async def test_a_large_blob_comes_in_pieces(blobs: Blobs) -> None:
    data = os.urandom(3 * CHUNK_BYTES + 17)
    await blobs.write("files/a", pieces(data[:5], data[5:CHUNK_BYTES], data[CHUNK_BYTES:]))
    read = [piece async for piece in blobs.read("files/a")]
    assert b"".join(read) == data
    assert max(map(len, read)) <= CHUNK_BYTES


async def test_what_is_written_again_takes_the_place_of_what_was_there(blobs: Blobs) -> None:
    await blobs.write("files/a", pieces(b"longer than the other"))
    await blobs.write("files/a", pieces(b"other"))
    assert await whole(blobs, "files/a") == b"other"


async def test_what_is_not_written_to_its_end_never_was(blobs: Blobs) -> None:
    async def torn() -> AsyncIterator[bytes]:
        yield b"half"
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await blobs.write("files/a", torn())
    with pytest.raises(BlobMissing):
        await whole(blobs, "files/a")
    await blobs.write("files/a", pieces(b"before"))
    with pytest.raises(ConnectionError):
        await blobs.write("files/a", torn())
    assert await whole(blobs, "files/a") == b"before"


async def test_what_is_not_there_is_missing(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing):
        await whole(blobs, "files/a")
    await blobs.write("files/a", pieces(b"four"))
    with pytest.raises(BlobMissing):
        await whole(blobs, "files/a", 0, 5)
    with pytest.raises(BlobMissing):
        await whole(blobs, "files/a", 5)
    with pytest.raises(BlobMissing):
        await blobs.append("files/b", 1, b"x")
    with pytest.raises(BlobMissing):
        await blobs.append("files/a", 5, b"x")


async def test_what_is_changed_while_it_is_read_is_told(store: tuple[Blobs, Change]) -> None:
    blobs, change = store
    data = b"a" * (2 * CHUNK_BYTES)
    await blobs.write("files/a", pieces(data))
    async with aclosing(blobs.read("files/a")) as read:
        assert await anext(read) == b"a" * CHUNK_BYTES
        change("files/a", b"b" * len(data))
        with pytest.raises(BlobChanged):
            await anext(read)


async def test_what_is_appended_stands_where_it_was_said_and_nothing_behind_it(blobs: Blobs) -> None:
    await blobs.append("parts/a", 0, b"one")
    await blobs.append("parts/a", 3, b"two of a writer that was killed")
    await blobs.append("parts/a", 3, b"two")
    assert await whole(blobs, "parts/a") == b"onetwo"
    await blobs.append("parts/a", 0, b"anew")
    assert await whole(blobs, "parts/a") == b"anew"


@settings(max_examples=25, deadline=None)
@given(parts=st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=20))
def test_a_writer_that_was_killed_now_and_then_leaves_what_it_knew_of(parts: list[tuple[bytes, bool]]) -> None:
    async def story() -> None:
        blobs = MemoryBlobs()
        known = b""
        for data, is_known in parts:
            await blobs.append("parts/a", len(known), data)
            known += data if is_known else b""
        if known:
            assert await whole(blobs, "parts/a", 0, len(known)) == known

    asyncio.run(story())


async def test_what_is_deleted_is_gone_and_may_be_deleted_again(blobs: Blobs) -> None:
    for name in ("batches/one/1.output", "batches/one/2.output", "batches/onemore/1.output"):
        await blobs.append(name, 0, b"x")
    await blobs.write("files/a", pieces(b"x"))
    for _ in range(2):
        await blobs.delete("files/a")
        await blobs.delete_under("batches/one")
    for name in ("files/a", "batches/one/1.output", "batches/one/2.output"):
        with pytest.raises(BlobMissing):
            await whole(blobs, name)
    assert await whole(blobs, "batches/onemore/1.output") == b"x"


@pytest.mark.parametrize("parts", [("..",), ("files", "..", "x"), ("/etc",), ("files", ""), ("files", ".x"), ("a b",)])
def test_a_name_stays_in_the_store(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no name"):
        name_of(*parts)


async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path / "blobs")
    await blobs.write("files/a", pieces(b"secret"))
    await blobs.append("parts/a", 0, b"secret")
    for path in (tmp_path / "blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    blobs.close()


async def test_what_a_killed_writer_has_left_goes_in_time(tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path)
    await blobs.tidy()
    await blobs.write("files/a", pieces(b"x"))
    old, young = tmp_path / UNFINISHED / "old", tmp_path / UNFINISHED / "young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    await blobs.tidy()
    assert (old.exists(), young.exists()) == (False, True)
    assert await whole(blobs, "files/a") == b"x"
    blobs.close()


async def test_a_disk_that_is_away_loses_nothing_and_takes_nothing(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"
    blobs = blobs_in(disk)
    await blobs.write("files/a", pieces(b"x"))

    async def fails() -> None:
        for doing in (whole(blobs, "files/a"), blobs.write("files/b", pieces(b"x")), blobs.append("parts/a", 0, b"x"),
                      blobs.append("parts/a", 1, b"x"), blobs.delete("files/a"), blobs.delete_under("files"),
                      blobs.tidy()):  # fmt: skip
            with pytest.raises(BlobsUnavailable, match=MARK):
                await doing

    disk.rename(away)
    await fails()
    assert not disk.exists()
    disk.mkdir()  # where it is mounted
    await fails()
    assert not [*disk.iterdir()]
    disk.rmdir()
    away.rename(disk)
    assert await whole(blobs, "files/a") == b"x"
    blobs.close()


async def test_a_disk_that_goes_while_something_is_written_is_told(tmp_path: Path) -> None:
    disk, away = tmp_path / "disk", tmp_path / "away"
    blobs = blobs_in(disk)

    async def torn() -> AsyncIterator[bytes]:
        yield b"x" * CHUNK_BYTES
        disk.rename(away)

    with pytest.raises(BlobsUnavailable):
        await blobs.write("files/a", torn())
    assert not disk.exists()
    await asyncio.to_thread(blobs._threads.shutdown)


async def test_a_large_blob_goes_to_disk_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = blobs_in(tmp_path)
    flushed: list[int] = []
    flush = os.fsync

    def heard(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_size)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", heard)
    monkeypatch.setattr(folder_module, "FLUSHED_BYTES", 2 * CHUNK_BYTES)
    await blobs.write("files/a", pieces(*[b"x" * CHUNK_BYTES] * 7))
    blobs.close()
    assert flushed[:4] == [2 * CHUNK_BYTES, 4 * CHUNK_BYTES, 6 * CHUNK_BYTES, 7 * CHUNK_BYTES]


async def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = blobs_in(tmp_path)

    def full(_file: object, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "_write_all", full)
    with pytest.raises(BlobsUnavailable, match="No space left"):
        await blobs.write("files/a", pieces(b"x" * CHUNK_BYTES))
    for _ in range(200):
        if not [*(tmp_path / UNFINISHED).iterdir()]:
            break
        await asyncio.sleep(0.05)
    assert not [*(tmp_path / UNFINISHED).iterdir()]
    blobs.close()


def pass_time(blobs: Blobs, folder: Path) -> None:
    """All that is there was written long ago."""
    if isinstance(blobs, MemoryBlobs):
        blobs.pass_time()
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))


async def left_under(blobs: Blobs, name: str) -> list[str]:
    return sorted([each async for left in blobs.left_under(name, 2) for each in left])


async def test_what_nothing_was_written_to_for_a_day_is_left(blobs: Blobs, tmp_path: Path) -> None:
    assert await left_under(blobs, "batches") == []
    for name in ("batches/old/1.output", "batches/old/1.errors", "batches/young/1.output", "files/a"):
        await blobs.append(name, 0, b"x")
    assert await left_under(blobs, "batches") == []
    pass_time(blobs, tmp_path / "blobs")
    await blobs.append("batches/young/1.output", 1, b"x")
    await blobs.append("batches/new/1.output", 0, b"x")
    assert await left_under(blobs, "batches") == ["old"]
    await blobs.append("batches/old/2.output", 0, b"x")
    assert await left_under(blobs, "batches") == []
    pass_time(blobs, tmp_path / "blobs")
    await blobs.delete_under("batches/old")
    assert await left_under(blobs, "batches") == ["new", "young"]


async def test_what_is_left_is_told_in_slices_of_what_is_looked_at(blobs: Blobs, tmp_path: Path) -> None:
    for name in ("files/a", "files/c", "files/b", "files/d", "files/e"):
        await blobs.append(name, 0, b"x")
    pass_time(blobs, tmp_path / "blobs")
    await blobs.append("files/b", 1, b"x")
    told = [left async for left in blobs.left_under("files", 2)]
    assert len(told) == 3, "so that no slice takes long, however few of a large folder are left"
    assert sorted(each for left in told for each in left) == ["a", "c", "d", "e"]


async def test_what_is_deleted_between_two_slices_hides_nothing(blobs: Blobs, tmp_path: Path) -> None:
    for number in range(20):
        await blobs.append(f"batches/{number}/1.output", 0, b"x")
    pass_time(blobs, tmp_path / "blobs")
    told: set[str] = set()
    async for left in blobs.left_under("batches", 3):
        told |= {*left}
        for each in left:
            await blobs.delete_under(f"batches/{each}")
    assert told == {str(number) for number in range(20)}


async def test_a_folder_is_read_once_and_no_further_than_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold a million files."""
    blobs, scandir, opened, read = blobs_in(tmp_path), os.scandir, 0, 0

    @contextmanager
    def counted(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        nonlocal opened
        opened += 1

        def entries() -> Iterator[os.DirEntry[str]]:
            nonlocal read
            for entry in found:
                read += 1
                yield entry

        with scandir(folder) as found:
            yield entries()

    for number in range(10):
        await blobs.append(f"files/{number}", 0, b"x")
    pass_time(blobs, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", counted)
        read_by_then = [read async for _ in blobs.left_under("files", 3)]
    blobs.close()
    assert (opened, read_by_then) == (1, [3, 6, 9, 10])
