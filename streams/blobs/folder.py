"""Blobs as files in a folder, which may be shared over a network. Prompts lie in it: it is for its owner alone.

The folder bears a mark. Where that is not found, as where a disk is not mounted, the store is away: nothing of it is
missing for good, and nothing is written there.
"""

import asyncio
import hashlib
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

from streams.blobs.port import CHUNK_BYTES, BlobChanged, BlobMissing, BlobsUnavailable, Written

THREADS: Final = 4
TIMEOUT_S: Final = 30.0
"""Of one piece, on a disk that hardly answers."""
UNFINISHED: Final = ".unfinished"
"""Where a blob lies while it is written; no blob's name begins with a dot."""
FLUSHED_BYTES: Final = 67_108_864
"""Of a blob that is written, together: a disk has `TIMEOUT_S` for them."""
LEFT_AFTER_S: Final = 24 * 3_600
"""What has not been written to for so long is written by nobody."""
MARK: Final = ".sluice-files"
_SAYS: Final = "The bytes of files lie here. Without this one no gateway uses the folder.\n"
_NOT_FOUND: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_Done = TypeVar("_Done")


class _Writing:
    """A blob on its way. One thread at a time has it, whoever gives it up meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root
        descriptor, name = tempfile.mkstemp(dir=_made(root, root / UNFINISHED))  # 0600
        self._path = Path(name)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._flushed_bytes = 0
        self._lock = threading.Lock()

    def put(self, data: bytes) -> None:
        with self._lock:
            _write_all(self._file, data)
            self._digest.update(data)
            self._size_bytes += len(data)
            if self._size_bytes - self._flushed_bytes >= FLUSHED_BYTES:
                os.fsync(self._file.fileno())
                self._flushed_bytes = self._size_bytes

    def finish(self, path: Path) -> Written:
        with self._lock:
            os.fsync(self._file.fileno())
            self._file.close()
            folder = _made(self._root, path.parent)
            self._path.replace(path)
            _flush_folder(folder)
            return Written(self._size_bytes, self._digest.hexdigest())

    def give_up(self) -> None:
        with self._lock:
            self._file.close()
            self._path.unlink(missing_ok=True)


class FolderBlobs:
    """All methods are called from one event loop; files are touched on threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs")

    async def mark(self, *, make: bool = False) -> None:
        """From now on blobs lie there; `make`: in a folder that need not be there yet. Raises BlobMissing where there
        is none, and BlobsUnavailable.
        """
        await self._on_thread(lambda: mark(self._folder, make=make))

    async def is_marked(self) -> bool:
        """Raises BlobMissing where there is no folder, and BlobsUnavailable."""
        return await self._on_thread(lambda: _is_marked(self._folder))

    async def write(self, name: str, pieces: AsyncIterator[bytes]) -> Written:
        writing = await self._run(lambda: _Writing(self._folder))
        try:
            async for piece in _gathered(pieces):
                await self._run(partial(writing.put, piece))
            return await self._run(lambda: writing.finish(self._folder / name))
        except BaseException:
            self._threads.submit(writing.give_up)
            raise

    async def read(self, name: str, begin: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        file = await self._run(lambda: (self._folder / name).open("rb", buffering=0))
        try:
            opened = await self._run(lambda: _version(file))
            until = opened[0] if end is None else end
            if opened[0] < max(begin, until):
                raise BlobMissing(name)
            at = begin
            while at < until:
                piece, version = await self._run(partial(_piece, file, at, min(CHUNK_BYTES, until - at)))
                if not piece or version != opened:
                    raise BlobChanged(name)
                at += len(piece)
                yield piece
        finally:
            file.close()

    async def append(self, name: str, at: int, data: bytes) -> None:
        await self._run(lambda: _append(self._folder, self._folder / name, at, data))

    async def delete(self, name: str) -> None:
        with suppress(BlobMissing):
            await self._run(lambda: (self._folder / name).unlink())

    async def delete_under(self, name: str) -> None:
        await self._run(lambda: shutil.rmtree(self._folder / name, onerror=_unless_gone))

    async def left_under(self, name: str, at_once: int) -> AsyncGenerator[list[str], None]:
        slices = _left_under(self._folder / name, time.time() - LEFT_AFTER_S, at_once)
        while (left := await self._run(lambda: next(slices, None))) is not None:
            yield left

    async def tidy(self) -> None:
        await self._run(lambda: _remove_left(self._folder / UNFINISHED, time.time() - LEFT_AFTER_S))

    def close(self) -> None:
        """What is begun goes on by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], _Done]) -> _Done:
        return await self._on_thread(partial(self._in_store, work))

    def _in_store(self, work: Callable[[], _Done]) -> _Done:
        """What is not found is missing where the store is there before and after."""
        self._require_mark()
        try:
            return work()
        except _NOT_FOUND:
            self._require_mark()
            raise

    def _require_mark(self) -> None:
        if not (self._folder / MARK).is_file():
            raise BlobsUnavailable(f"there is no {MARK} in {self._folder}")

    async def _on_thread(self, work: Callable[[], _Done]) -> _Done:
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        running.add_done_callback(_hear)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.shield(running)
        except _NOT_FOUND as error:
            raise BlobMissing(error.strerror or "missing") from None
        except OSError as error:  # TimeoutError is one
            raise BlobsUnavailable(error.strerror or f"no answer within {TIMEOUT_S:g} s") from None


def mark(folder: Path, *, make: bool) -> None:
    """See `FolderBlobs.mark`. Raises OSError."""
    if make:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if _is_marked(folder):
        return
    descriptor = os.open(folder / MARK, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        _write_all(file, _SAYS.encode())
        os.fsync(descriptor)
    _flush_folder(folder)


def _is_marked(folder: Path) -> bool:
    if not folder.is_dir():
        raise FileNotFoundError
    return (folder / MARK).is_file()


def _made(root: Path, folder: Path) -> Path:
    """With the folders between; never the root, in whose place there would be another one."""
    at = root
    for name in folder.relative_to(root).parts:
        at = at / name
        at.mkdir(exist_ok=True, mode=0o700)
    return folder


def _hear(running: "asyncio.Future[_Done]") -> None:
    """Also of what nobody waits for any more."""
    if not running.cancelled():
        running.exception()


async def _gathered(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """In pieces that are worth a thread's while."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) >= CHUNK_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _write_all(file: BinaryIO, data: bytes) -> None:
    """A file without a buffer may take a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _piece(file: BinaryIO, at: int, size_bytes: int) -> tuple[bytes, tuple[int, int]]:
    """With the version that it is of."""
    file.seek(at)
    return file.read(size_bytes), _version(file)


def _version(file: BinaryIO) -> tuple[int, int]:
    """Another one when somebody has written to it. Its size comes first."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _append(root: Path, path: Path, at: int, data: bytes) -> None:
    folder = _made(root, path.parent)
    descriptor = os.open(path, os.O_RDWR | (0 if at else os.O_CREAT), 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        if os.fstat(descriptor).st_size < at:
            raise FileNotFoundError
        file.truncate(at)
        file.seek(at)
        _write_all(file, data)
        os.fsync(descriptor)
    if not at:
        _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_gone(_function: object, _path: object, failure: tuple[type[BaseException], BaseException, object]) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]


def _left_under(folder: Path, before_s: float, at_once: int) -> Iterator[list[str]]:
    """The folder is read once: what is held of it does not grow with it."""
    if folder.is_dir():
        with os.scandir(folder) as entries:
            while names := [entry.name for entry in islice(entries, at_once)]:
                yield [name for name in names if _written_s(folder / name) < before_s]


def _written_s(path: Path) -> float:
    """When anything of it was written to last."""
    try:
        return max(each.stat().st_mtime for each in (path, *path.rglob("*")))
    except FileNotFoundError:
        return math.inf  # Somebody removes it.


def _remove_left(folder: Path, before_s: float) -> None:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < before_s:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # Its writer, or another gateway, was quicker.
