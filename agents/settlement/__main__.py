"""Wires and runs settlement until SIGTERM or SIGINT."""

import asyncio
import signal
import sys
import threading

import structlog

from agents.quota.store import RedisQuota
from agents.settlement.core import LaneQueues, Settlement
from streams.clocks import now_ms
from streams.entry_point import EXIT_FAILED, exit_code
from streams.garbage import collect_seldom
from streams.health import HealthServer
from streams.log.kafka import UNHURRIED_FETCH_BYTES, KafkaConsumer, KafkaProducer
from streams.log.port import LogConsumer, LogError
from streams.redis_client import connect_quota
from streams.settings import Settings
from streams.stop_signals import on_signals
from streams.toml_directory import TomlTenantDirectory

_log = structlog.get_logger()


def run(settings: Settings) -> int:
    """0 after a signal, `EXIT_FAILED` after a failure of the log."""
    stopping = threading.Event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda _number: stopping.set())
    redis = connect_quota(settings.redis)
    readers: dict[str, LogConsumer] = {}

    def reader_of(pool: str) -> LogConsumer:
        if pool not in readers:
            readers[pool] = KafkaConsumer(settings.kafka, f"{settings.region}.workers.{pool}", "settlement-reader")
        return readers[pool]

    with asyncio.Runner() as loop:
        settlement = Settlement(
            topics=settings.topics,
            consumer=KafkaConsumer(
                settings.kafka, f"{settings.region}.settlement", "settlement", fetch_min_bytes=UNHURRIED_FETCH_BYTES
            ),
            producer=KafkaProducer(settings.kafka, "settlement"),
            quota=RedisQuota(redis, settings.region),
            directory=TomlTenantDirectory(settings.tenants_file),
            queued=LaneQueues(settings.topics, reader_of),
            clock_ms=now_ms,
            wait=stopping.wait,
            run=loop.run,
        )

        def ready() -> str | None:
            if not settlement.assigned:
                return "no partitions yet"
            return None if settlement.store_answers else "the quota store does not answer"

        health = HealthServer(settings.health_host, settings.health_port, ready)
        _log.info("settlement_starts", health_port=health.port)
        try:
            settlement.start()
            collect_seldom()
            while not stopping.is_set():
                settlement.step()
            settlement.close()
        except LogError as error:
            _log.error("settlement_failed", error=str(error))
            return EXIT_FAILED
        finally:
            for reader in readers.values():
                reader.close()
            loop.run(redis.aclose())
            health.close()
    return 0


def main() -> int:
    return exit_code("settlement", run)


if __name__ == "__main__":
    sys.exit(main())
