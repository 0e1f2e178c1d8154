"""The producer over librdkafka."""

from typing import Literal

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from streams.log.kafka.client import ClientErrors, log_error, logger, translated
from streams.log.kafka.config import client_config
from streams.log.port import MAX_RECORD_BYTES, Headers, LogError, OnDelivery, ProducerQueueFull
from streams.settings import KafkaSettings


class KafkaProducer:
    """An idempotent producer. Not blocked by anything but `flush`; may be shared by threads if one of them polls.
    Raises LogError where librdkafka refuses it.

    A record without `on_delivery` whose delivery fails makes the next `poll` or `flush` raise LogError.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        client_id: str,
        *,
        linger_ms: float = 0,
        compression: Literal["none", "lz4", "zstd"] = "lz4",
    ) -> None:
        self._errors = ClientErrors(client_id)
        self._failed: LogError | None = None
        config: dict[str, object] = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": linger_ms,
            "compression.type": compression,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": settings.producer_queue_records,
            "queue.buffering.max.kbytes": 262_144,
            "message.max.bytes": MAX_RECORD_BYTES,
            "delivery.timeout.ms": settings.delivery_timeout_ms,
            "topic.metadata.propagation.max.ms": 5_000,
            "error_cb": self._errors,
            **client_config(settings, client_id),
        }
        with translated("open"):
            self._producer = Producer(config, logger=logger)

    def __len__(self) -> int:
        """Records whose delivery is outstanding."""
        return len(self._producer)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: str | None = None,
        partition: int | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        report = self._report_without_caller if on_delivery is None else on_delivery

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                report(message.offset(), None)
            else:
                report(None, log_error(error, f"deliver to {topic}"))

        try:
            self._producer.produce(
                topic,
                value,
                None if key is None else key.encode(),
                -1 if partition is None else partition,
                delivered,
                headers=list(headers) if headers else None,
            )
        except BufferError:
            raise ProducerQueueFull from None
        except KafkaException as error:
            raise log_error(error.args[0], f"produce to {topic}") from None

    def _report_without_caller(self, _offset: int | None, error: LogError | None) -> None:
        if error is not None:
            self._failed = error

    def poll(self, timeout_s: float = 0.0) -> int:
        events = self._producer.poll(timeout_s)
        self._raise_failed()
        return events

    def flush(self, timeout_s: float) -> int:
        outstanding = self._producer.flush(timeout_s)
        self._raise_failed()
        return outstanding

    def _raise_failed(self) -> None:
        self._errors.raise_fatal()
        if self._failed is not None:
            error, self._failed = self._failed, None
            raise error
