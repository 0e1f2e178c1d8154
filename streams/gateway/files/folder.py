"""The folder of files at start: marked once, and none is taken for it whose disk is not mounted."""

import asyncio
from typing import Final

import structlog
from sqlalchemy import Connection, select

from streams.blobs.folder import MARK, FolderBlobs
from streams.blobs.port import BlobMissing, BlobsUnavailable
from streams.metadata.database import Database
from streams.metadata.tables import FILES
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import Settings, SettingsError

TRY_AGAIN_S: Final = 20.0

_log = structlog.get_logger()


async def take_up(blobs: FolderBlobs, settings: Settings, database: Database) -> bool:
    """Whether files may be had. Raises SettingsError where the folder that is named is not there. With all else that is
    amiss files are away, and that is no reason not to serve the rest: go on with `keep_taking_up`.
    """
    try:
        await _mark(blobs, settings, database)
    except BlobMissing:
        raise SettingsError(f"files.folder: there is no folder {settings.files_folder}") from None
    except (BlobsUnavailable, MetadataUnavailable) as error:
        _log.error("files_away", why=str(error), repeats=True)
        return False
    return True


async def keep_taking_up(blobs: FolderBlobs, settings: Settings, database: Database) -> None:
    """Until it is: the database may come later than the gateway, and so may the disk."""
    is_up = False
    while not is_up:
        await asyncio.sleep(TRY_AGAIN_S)
        try:
            is_up = await take_up(blobs, settings, database)
        except SettingsError as error:
            _log.error("files_away", why=str(error), repeats=True)
    _log.info("files_are_there")


async def _mark(blobs: FolderBlobs, settings: Settings, database: Database) -> None:
    folder = settings.files.folder
    if folder is None:
        await blobs.mark(make=True)
    elif not await blobs.is_marked():
        if await database.read(_knows_files):
            why = f"{folder} is not mounted, or another one; if it is the right one: touch {folder / MARK}"
            raise BlobsUnavailable(why)
        await blobs.mark()


def _knows_files(connection: Connection) -> bool:
    return connection.execute(select(FILES.c.file_id).limit(1)).first() is not None
