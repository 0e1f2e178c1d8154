"""`python -m agents.post_safety`: one member of the post-safety group, until SIGTERM or SIGINT."""

import os
import signal
import socket
import sys

import structlog

from agents.post_safety.metrics import Metrics
from agents.post_safety.process import GROUP, DeliveryFailed, PostSafetyProcess
from streams.entry_point import EXIT_FAILED, exit_code
from streams.garbage import collect_seldom
from streams.health import HealthServer
from streams.log.kafka import QUIET_FETCH_WAIT_MS, KafkaConsumer, KafkaProducer
from streams.log.port import LogError
from streams.settings import Settings
from streams.toml_directory import TomlTenantDirectory
from streams.tracing.tracing import tracing_of

_log = structlog.get_logger()


def run(settings: Settings) -> int:
    """The exit code: 0 after a signal, `EXIT_FAILED` after what only a rebuild repairs."""
    stopping = False

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    client_id = f"{GROUP}-{socket.gethostname()}-{os.getpid()}"
    process = PostSafetyProcess(
        topics=settings.topics,
        settings=settings.post_safety,
        directory=TomlTenantDirectory(settings.tenants_file),
        generated=KafkaConsumer(settings.kafka, f"{settings.region}.{GROUP}", client_id),
        control=KafkaConsumer(settings.kafka, None, f"{client_id}-control", fetch_wait_ms=QUIET_FETCH_WAIT_MS),
        policies=KafkaConsumer(settings.kafka, None, f"{client_id}-policies"),
        parked=KafkaConsumer(settings.kafka, None, f"{client_id}-parked"),
        workers=KafkaConsumer(settings.kafka, None, f"{client_id}-workers", fetch_wait_ms=QUIET_FETCH_WAIT_MS),
        producer=KafkaProducer(settings.kafka, client_id),
        metrics=Metrics(),
        tracing=tracing_of(settings),
    )
    health = HealthServer(settings.health_host, settings.health_port, process.not_ready)
    _log.info("started", health_port=health.port)
    try:
        process.start()
        collect_seldom()
        while not stopping:
            process.step()
        process.close()
    except (LogError, DeliveryFailed) as error:
        _log.error("failed", error=str(error))
        return EXIT_FAILED
    finally:
        health.close()
    _log.info("stopped")
    return 0


def main() -> int:
    return exit_code(GROUP, run)


if __name__ == "__main__":
    sys.exit(main())
