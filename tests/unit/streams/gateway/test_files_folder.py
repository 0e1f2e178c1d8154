"""Where a gateway starts without its disk, files wait for it: none of them is taken for lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streams.blobs.folder import MARK, FolderBlobs
from streams.blobs.port import BlobMissing, BlobsUnavailable
from streams.gateway.files import folder
from streams.gateway.files.folder import keep_taking_up, take_up
from streams.gateway.files.sql import SqlFiles
from streams.metadata.database import Database
from streams.settings import FileSettings, Settings, SettingsError
from tests.contract.databases import database_in
from tests.unit.streams.gateway.batch_stories import once


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = database_in(tmp_path)
    yield database
    await database.close()


async def started(database: Database, data: Path, disk: Path | None = None) -> FolderBlobs:
    """What a gateway has of its files once it has started."""
    settings = Settings(data_dir=data, files=FileSettings(folder=disk))
    blobs = FolderBlobs(settings.files_folder)
    try:
        await take_up(blobs, settings, database)
    finally:
        blobs.close()
    return FolderBlobs(settings.files_folder)


async def test_the_folder_in_the_data_folder_is_made(database: Database, tmp_path: Path) -> None:
    for _ in range(2):
        blobs = await started(database, tmp_path)
        await blobs.write("files/a", once(b"x"))
        blobs.close()
    assert (tmp_path / "files" / MARK).read_text().startswith("The bytes of files")


async def test_a_folder_that_is_named_must_be_there_and_is_marked_once(database: Database, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with pytest.raises(SettingsError, match=f"no folder {disk}"):
        await started(database, tmp_path, disk)
    assert not disk.exists()
    disk.mkdir()
    (await started(database, tmp_path, disk)).close()
    assert (disk / MARK).is_file()


async def test_where_files_are_known_a_folder_without_a_mark_is_not_taken_for_theirs(
    database: Database, tmp_path: Path
) -> None:
    await SqlFiles(database).begin("acme", "file-1")
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    blobs = await started(database, tmp_path, mount_point)
    for doing in (blobs.write("files/a", once(b"x")), blobs.append("batches/a/1.output", 0, b"x"),
                  blobs.delete("files/a"), blobs.delete_under("batches/a"), blobs.tidy(),
                  anext(blobs.read("files/a"))):  # fmt: skip
        with pytest.raises(BlobsUnavailable):
            await doing
    assert not [*mount_point.iterdir()]
    (mount_point / MARK).touch()
    with pytest.raises(BlobMissing):
        await anext(blobs.read("files/a"))
    blobs.close()


async def test_what_was_away_at_the_start_is_taken_up_when_it_comes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "TRY_AGAIN_S", 0.01)
    await database.write(lambda connection: connection.exec_driver_sql("ALTER TABLE files RENAME TO away"))
    disk = tmp_path / "disk"
    disk.mkdir()
    settings = Settings(data_dir=tmp_path, files=FileSettings(folder=disk))
    blobs = FolderBlobs(disk)
    assert not await take_up(blobs, settings, database)
    taking_up = asyncio.ensure_future(keep_taking_up(blobs, settings, database))
    await asyncio.sleep(0.1)
    assert not taking_up.done()
    await database.write(lambda connection: connection.exec_driver_sql("ALTER TABLE away RENAME TO files"))
    await taking_up
    assert (disk / MARK).is_file()
    blobs.close()


async def test_without_the_database_no_folder_is_marked(database: Database, tmp_path: Path) -> None:
    await database.write(lambda connection: connection.exec_driver_sql("DROP TABLE files"))
    disk = tmp_path / "disk"
    disk.mkdir()
    (await started(database, tmp_path, disk)).close()
    assert not [*disk.iterdir()]
