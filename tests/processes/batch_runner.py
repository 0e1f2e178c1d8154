"""Runs the batches of a region in a process of its own, and kills it after a step: `KILL_AFTER` is `step` or
`step:times`.
"""

import asyncio
import os
import signal
import sys
from collections import Counter

from streams.blobs.folder import FolderBlobs
from streams.clocks import now_ms
from streams.entry_point import exit_code
from streams.gateway.__main__ import KafkaClients
from streams.gateway.batches.line_log import LineLog
from streams.gateway.batches.results import Results
from streams.gateway.batches.run import Services
from streams.gateway.batches.runner import Runner
from streams.gateway.batches.sql import SqlBatches
from streams.gateway.files.sql import SqlFiles
from streams.log.producer_thread import ProducerThread
from streams.metadata.database import Database
from streams.settings import Settings
from streams.toml_directory import TomlTenantDirectory


def killed_after(told: str) -> "Counter[int]":
    """How often each step may still be done."""
    step, _, times = told.partition(":")
    return Counter({int(step): int(times or 1)}) if step else Counter()


async def run_batches(settings: Settings) -> None:
    left = killed_after(os.environ.get("KILL_AFTER", ""))

    def step(number: int) -> None:
        if number in left:
            left[number] -= 1
            if not left[number]:
                os.kill(os.getpid(), signal.SIGKILL)

    database = Database(settings.metadata, settings.data_dir)
    blobs = FolderBlobs(settings.files_folder)
    clients = KafkaClients(settings)
    producer = ProducerThread(clients.producer())
    log = LineLog(settings, settings.response_ids, producer, TomlTenantDirectory(settings.tenants_file))
    results = Results(clients.reader, settings.topics.batch_results.name)
    services = Services(
        SqlBatches(database), SqlFiles(database), blobs, log, results, settings.batches, now_ms, step
    )  # fmt: skip
    await Runner(services, "runner").run()


def run(settings: Settings) -> int:
    asyncio.run(run_batches(settings))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code("batches", run))
