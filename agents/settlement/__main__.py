"""Wires and runs settlement until SIGTERM or SIGINT."""

import asyncio
import signal
import sys
import threading

import structlog

from agents.quota.store import RedisQuota
from agents.settlement.core import LaneQueues, Settlement
from agents.settlement.spending import Spending
from schemas.codec import Undecodable
from streams.clocks import now_ms
from streams.dead_letters import letter_of
from streams.entry_point import EXIT_FAILED, exit_code
from streams.garbage import collect_seldom
from streams.health import HealthServer
from streams.log.kafka import QUIET_FETCH_WAIT_MS, UNHURRIED_FETCH_BYTES, KafkaConsumer, KafkaProducer, log_id
from streams.log.port import LogConsumer, LogError, LogRecord
from streams.price_list import PriceList, PriceReader, wait_for_prices
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

    topics, prices = settings.topics, PriceList()
    directory, quota = TomlTenantDirectory(settings.tenants_file), RedisQuota(redis, settings.region)
    producer = KafkaProducer(settings.kafka, "settlement")

    def bury(record: LogRecord, error: Undecodable) -> None:
        letter = letter_of(record, "settlement", error.reason, error.detail, now_ms())
        producer.produce(topics.dead_letters.name, letter.encode(), key=letter.key)

    price_reader = PriceReader(
        lambda: KafkaConsumer(settings.kafka, None, "settlement-prices", fetch_wait_ms=QUIET_FETCH_WAIT_MS),
        topics.prices.name, prices, bury,
    )  # fmt: skip
    spending = Spending(
        topics=topics, producer=producer, quota=quota, directory=directory, region=settings.region, prices=prices,
        reader=price_reader, clock_ms=now_ms, log_id=lambda: log_id(settings.kafka, topics.usage.name),
    )  # fmt: skip
    with asyncio.Runner() as loop:
        settlement = Settlement(
            topics=topics,
            consumer=KafkaConsumer(
                settings.kafka, f"{settings.region}.settlement", "settlement", fetch_min_bytes=UNHURRIED_FETCH_BYTES
            ),
            producer=producer,
            quota=quota,
            directory=directory,
            queued=LaneQueues(topics, reader_of),
            spending=spending,
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
            wait_for_prices(spending.read_prices, stopping)
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
            price_reader.close()
            loop.run(redis.aclose())
            health.close()
    return 0


def main() -> int:
    return exit_code("settlement", run)


if __name__ == "__main__":
    sys.exit(main())
