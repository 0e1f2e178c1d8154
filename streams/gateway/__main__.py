"""`python -m streams.gateway`: reads settings, wires one gateway, serves until SIGTERM or SIGINT."""

import asyncio
import resource
import signal
import sys

import httpx
import structlog
import uvloop
from prometheus_client import REGISTRY

from streams.blobs.folder import FolderBlobs
from streams.entry_point import exit_code
from streams.garbage import collect_seldom
from streams.gateway.batches.service import BatchStores
from streams.gateway.batches.sql import SqlBatches
from streams.gateway.conversations.sql import SqlConversations
from streams.gateway.files.folder import keep_taking_up, take_up
from streams.gateway.files.sql import SqlFiles
from streams.gateway.history.store import connect_history
from streams.gateway.http.usage_reader import HttpUsageReader
from streams.gateway.idempotency.sql import SqlIdempotencyKeys
from streams.gateway.runtime import GROUP, GatewayRuntime, GatewayServer
from streams.gateway.stored.sql import SqlStoredResponses
from streams.health import HealthServer
from streams.keyring import Purpose
from streams.log.kafka import KafkaConsumer, KafkaProducer, KafkaWatch
from streams.log.port import LogConsumer, LogProducer
from streams.log.watch import LogWatch
from streams.metadata.database import Database
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import Settings, SettingsError
from streams.toml_directory import SettingsCatalog, TomlTenantDirectory, read_tenants
from streams.tracing.tracing import Tracing, tracing_of

FOLLOWED_FETCH_WAIT_MS = 20

_log = structlog.get_logger()


class KafkaClients:
    """Opens this gateway's clients of Kafka."""

    def __init__(self, settings: Settings) -> None:
        self._kafka = settings.kafka
        self._group = f"{settings.region}.{GROUP}"
        self._gateway_id = settings.gateway.gateway_id

    def producer(self) -> LogProducer:
        # `requests` is kept uncompressed: the broker would undo it, record by record, before the first token.
        return KafkaProducer(self._kafka, self._gateway_id, compression="none")

    def member(self) -> LogConsumer:
        return KafkaConsumer(self._kafka, self._group, self._gateway_id, instance_id=self._gateway_id)

    def reader(self) -> LogConsumer:
        return KafkaConsumer(self._kafka, None, f"{self._gateway_id}-reader")

    def watch(self) -> LogWatch:
        return KafkaWatch(self._kafka, f"{self._gateway_id}-watch")

    def follower(self) -> LogConsumer:
        # What it begins to read waits for the fetch that is out.
        return KafkaConsumer(self._kafka, None, f"{self._gateway_id}-follower", fetch_wait_ms=FOLLOWED_FETCH_WAIT_MS)

    def asker(self) -> LogConsumer:
        return KafkaConsumer(self._kafka, self._group, f"{self._gateway_id}-asker")


async def serve(settings: Settings, tracing: Tracing | None) -> None:
    """Until a signal; raises when a part of the gateway fails for good."""
    database = Database(settings.metadata, settings.data_dir)
    await _check(database)
    blobs = FolderBlobs(settings.files_folder)
    try:
        has_files = await take_up(blobs, settings, database)
    except SettingsError:
        blobs.close()
        await database.close()
        raise
    timeout = httpx.Timeout(settings.billing.query_timeout_s + 1)
    async with httpx.AsyncClient(base_url=settings.billing.client_url, timeout=timeout, trust_env=False) as client:
        runtime = GatewayRuntime(
            settings,
            clients=KafkaClients(settings),
            redis=connect_history(settings.redis),
            directory=TomlTenantDirectory(settings.tenants_file),
            catalog=SettingsCatalog(settings),
            stored=SqlStoredResponses(database),
            keys=SqlIdempotencyKeys(database),
            batches=BatchStores(SqlFiles(database), SqlBatches(database), blobs),
            conversations=SqlConversations(database),
            usage=HttpUsageReader(client, settings.keyring(Purpose.BILLING).current.decode()),
            registry=REGISTRY,
            tracing=tracing,
            database_is_away=lambda: database.circuit_is_open,
        )
        health = HealthServer(settings.health_host, settings.health_port, runtime.gateway.why_not_ready)
        edge = settings.gateway
        server = GatewayServer(
            runtime.server_config, runtime.stop, stall_s=edge.viewer_stall_ms / 1_000, leave=runtime.gateway.leave,
            leave_s=edge.leave_ms / 1_000,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop_soon)
        taking_up = None if has_files else asyncio.ensure_future(keep_taking_up(blobs, settings, database))
        try:
            await runtime.start()
            running = asyncio.ensure_future(runtime.run())
            serving = asyncio.ensure_future(server.serve())
            await asyncio.wait((running, serving), return_when=asyncio.FIRST_COMPLETED)
            server.stop_soon(at_once=running.done())
            await serving
            if not running.done():
                running.cancel()
            await asyncio.wait((running,))
        finally:
            if taking_up is not None:
                taking_up.cancel()
            await runtime.close()
            blobs.close()
            health.close()
        if not running.cancelled():
            running.result()


async def _check(database: Database) -> None:
    """Raises SettingsError for tables of another release. One that is away is no reason not to serve the rest."""
    try:
        await database.check()
    except MetadataUnavailable as error:
        _log.error("metadata_unavailable", why=str(error))
    except SettingsError:
        await database.close()
        raise


def _check_shared(settings: Settings) -> None:
    """Raises SettingsError where gateways on several machines would each have their own."""
    if settings.kafka.is_on_loopback:
        return
    wrong = []
    if not settings.metadata.url:
        wrong.append(
            "metadata.url: must be named where Kafka is not on this machine, for gateways share what they store;"
            " of one alone it may be sqlite:////PATH"
        )
    if settings.files.folder is None:
        wrong.append(
            "files.folder: must be named where Kafka is not on this machine, for gateways share what lies there"
        )
    if wrong:
        raise SettingsError("\n".join(wrong))


def run(settings: Settings) -> int:
    """0 after a signal. Raises SettingsError, and what a part of the gateway failed with."""
    settings.check_secrets(*Purpose)
    _check_shared(settings)
    read_tenants(settings.tenants_file)
    tracing = tracing_of(settings)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    collect_seldom()
    _log.info("gateway_starting", host=settings.gateway.host, port=settings.gateway.port)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, tracing))
    _log.info("gateway_stopped")
    return 0


def main() -> int:
    return exit_code(lambda settings: settings.gateway.gateway_id, run)


if __name__ == "__main__":
    sys.exit(main())
