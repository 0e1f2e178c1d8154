"""The log port over librdkafka. The classic group protocol; see `streams.log.port` for what callers may rely on."""

from streams.log.kafka.client import log_error, settled
from streams.log.kafka.config import client_config, tls_context
from streams.log.kafka.consumer import QUIET_FETCH_WAIT_MS, UNHURRIED_FETCH_BYTES, KafkaConsumer
from streams.log.kafka.identity import log_id
from streams.log.kafka.producer import KafkaProducer
from streams.log.kafka.watch import KafkaWatch

__all__ = [
    "QUIET_FETCH_WAIT_MS",
    "UNHURRIED_FETCH_BYTES",
    "KafkaConsumer",
    "KafkaProducer",
    "KafkaWatch",
    "client_config",
    "log_error",
    "log_id",
    "settled",
    "tls_context",
]
