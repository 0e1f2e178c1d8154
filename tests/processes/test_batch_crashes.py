"""A gateway's batches on a real broker, database and folder, killed after each of its steps: every line ends once, and
what has ended does not run again.
"""

import asyncio
import json
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from schemas.request import Request
from streams.blobs.folder import FolderBlobs, mark
from streams.gateway.batches.core import FINAL, Batch
from streams.gateway.batches.sql import SqlBatches
from streams.gateway.batches.told import unpacked
from streams.gateway.files.port import StoredFile, blob_of
from streams.gateway.files.sql import SqlFiles
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.metadata.database import Database
from streams.metadata.engine import FILE_NAME
from streams.metadata.schema import migrate
from streams.metadata.tables import BATCHES
from streams.settings import MetadataSettings
from tests.processes.region import Region
from tests.servers import until
from tests.unit.streams.gateway.batch_stories import CHAT, custom_ids, line, on_intake, once, result_of

METADATA = MetadataSettings(busy_timeout_ms=20_000, statement_timeout_ms=20_000)
LINES = 150
BATCH = "batch_0123"
FILE = "file-0123"
IN_FLIGHT = {"SLUICE_BATCHES__LINES_IN_FLIGHT": "40"}
TIMEOUT_S = 120.0


class Pipeline:
    """Plays all that stands behind the intake: each response is decided once, whoever writes it again."""

    def __init__(self, region: Region) -> None:
        self._topics = region.topics
        self._kafka = region.kafka
        self._stop = threading.Event()
        self.published: Counter[str] = Counter()
        """By response id."""
        self._thread = threading.Thread(target=self._play, daemon=True)

    def _play(self) -> None:
        reader = KafkaConsumer(self._kafka, None, "test-pipeline", fetch_wait_ms=10)
        producer = KafkaProducer(self._kafka, "test-pipeline")
        reader.assign(dict.fromkeys(reader.partitions(self._topics.intake_batch.name), 0))
        while not self._stop.is_set():
            for record in reader.poll(500, 0.1):
                request = on_intake(record.value or b"")
                if not isinstance(request, Request):
                    continue  # The cancel of a line that nobody waits for any more.
                self.published[request.response_id] += 1
                if self.published[request.response_id] == 1:
                    place = unpacked(request.reply_to.custom_id or "")
                    assert place is not None
                    code = "overloaded" if place.line % 10 == 9 else None
                    value, key = result_of(request, code).encode(), request.reply_to.custom_id
                    producer.produce(self._topics.batch_results.name, value, key=key)
            producer.poll(0)
        producer.flush(60)
        reader.close()

    @contextmanager
    def playing(self) -> Iterator["Pipeline"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join(timeout=60)


class World:
    """What outlives a process: its database and its folder."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.data = region.directory / "data"
        migrate(METADATA, self.data)
        self.files = self.data / "files"
        mark(self.files, make=True)

    async def _with_stores(self, work: Any) -> Any:
        database, blobs = Database(METADATA, self.data), FolderBlobs(self.files)
        try:
            return await work(database, blobs)
        finally:
            blobs.close()
            await database.close()

    def create(self) -> None:
        async def work(database: Database, blobs: FolderBlobs) -> None:
            files = SqlFiles(database)
            await files.begin("acme", FILE)
            content = "\n".join([*map(line, custom_ids(LINES)), "{broken"]).encode()
            written = await blobs.write(blob_of(FILE), once(content))
            file = StoredFile(FILE, "acme", "a.jsonl", "batch", written.size_bytes, written.sha256, 0, None)
            assert await files.complete(file, None, None) is not None
            batch = Batch(
                batch_id=BATCH, tenant_id="acme", project_id="default", key_id="k1", input_file_id=FILE, endpoint=CHAT,
                completion_window="1h", created_at_ms=0, expires_at_ms=0,
            )  # fmt: skip
            await SqlBatches(database).create(batch, 3_600_000, most_open=9, most_kept=9)

        asyncio.run(self._with_stores(work))

    def end_leases(self) -> None:
        """As time would."""

        async def work(database: Database, _blobs: FolderBlobs) -> None:
            await database.write(lambda connection: connection.execute(update(BATCHES).values(leased_until_ms=0)))

        asyncio.run(self._with_stores(work))

    @property
    def is_open(self) -> bool:
        """Asked often, and so without all that a store is."""
        with closing(sqlite3.connect(f"file:{self.data / FILE_NAME}?mode=ro", uri=True, timeout=20)) as connection:
            return bool(connection.execute("SELECT is_open FROM batches").fetchone()[0])

    def batch(self) -> Batch:
        async def work(database: Database, _blobs: FolderBlobs) -> Batch:
            found = await SqlBatches(database).one("acme", BATCH)
            assert found is not None
            return found

        found: Batch = asyncio.run(self._with_stores(work))
        return found

    def told(self, file_id: str | None) -> list[dict[str, Any]]:
        assert file_id is not None
        return [json.loads(each) for each in (self.files / blob_of(file_id)).read_text().splitlines()]


@pytest.fixture
def world(region: Region) -> World:
    world = World(region)
    world.create()
    return world


def run_to_the_end(world: World) -> None:
    with world.region.process("tests.processes.batch_runner", **IN_FLIGHT) as process:
        until(lambda: not world.is_open or process.poll() is not None, "the batch ends", TIMEOUT_S, every_s=0.1)
        assert process.poll() is None, f"a batch ends no gateway:\n{world.region.logs()}"


def check(world: World, pipeline: Pipeline) -> None:
    batch = world.batch()
    assert batch.status in FINAL
    assert (batch.total, batch.completed + batch.failed) == (LINES + 1, LINES + 1), world.region.logs()
    told = [each["custom_id"] for each in (*world.told(batch.output_file_id), *world.told(batch.error_file_id))]
    assert Counter(told) == Counter([*custom_ids(LINES), ""])
    assert len(world.told(batch.output_file_id)) == batch.completed == LINES - LINES // 10
    assert len(pipeline.published) == LINES
    assert not (world.files / "batches" / BATCH).exists()
    assert sorted(path.name for path in (world.files / "files").iterdir()) == sorted(
        [FILE, str(batch.output_file_id), str(batch.error_file_id)]
    )


SELDOM = [pytest.param(kill, marks=pytest.mark.long) for kill in ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10")]
"""What all of them together, and the model of a run, try too."""


@pytest.mark.parametrize("kill", [*SELDOM, "4:3", "6:2"])
def test_killed_after_a_step_another_process_goes_on(world: World, kill: str) -> None:
    with Pipeline(world.region).playing() as pipeline:
        with world.region.process("tests.processes.batch_runner", KILL_AFTER=kill, **IN_FLIGHT) as process:
            until(lambda: process.poll() is not None, f"it is killed after step {kill}", TIMEOUT_S)
            assert process.returncode == -signal.SIGKILL, world.region.logs()
        world.end_leases()
        run_to_the_end(world)
        check(world, pipeline)
        # Only what was on its way when it was killed is published again, and once more by who was taken for dead.
        assert sum(pipeline.published.values()) < 2 * LINES


def test_killed_again_and_again_it_ends_all_the_same(world: World) -> None:
    with Pipeline(world.region).playing() as pipeline:
        for kill in ("2", "3", "4", "6", "7", "5:2", "8", "9"):
            with world.region.process("tests.processes.batch_runner", KILL_AFTER=kill, **IN_FLIGHT) as process:
                until(lambda: process.poll() is not None, f"it is killed after step {kill}", TIMEOUT_S)
                assert process.returncode == -signal.SIGKILL, world.region.logs()
            world.end_leases()
        run_to_the_end(world)
        check(world, pipeline)


@pytest.mark.parametrize("step", ["3", "8"])
def test_a_file_that_is_gone_after_a_crash_ends_its_batch_and_no_process(world: World, step: str) -> None:
    with Pipeline(world.region).playing():
        with world.region.process("tests.processes.batch_runner", KILL_AFTER=step, **IN_FLIGHT) as process:
            until(lambda: process.poll() is not None, f"it is killed after step {step}", TIMEOUT_S)
        gone: Path = world.files / blob_of(FILE) if step == "3" else world.files / "batches" / BATCH
        remove(gone)
        world.end_leases()
        run_to_the_end(world)
        batch = world.batch()
        assert batch.status.value == "failed"
        assert [each.code for each in batch.problems] == ["input_file_missing" if step == "3" else "output_lost"]


def remove(path: Path) -> None:
    for each in [path] if path.is_file() else [*path.iterdir()]:
        each.unlink()
