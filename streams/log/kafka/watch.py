"""What a cluster says of itself, asked of Kafka's administrators' API."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as NativePartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from streams.log.kafka.client import log_error, translated
from streams.log.kafka.config import client_config
from streams.log.port import LogError, TopicPartition
from streams.log.watch import Sight
from streams.settings import KafkaSettings

CALL_TIMEOUT_S = 5.0
_NOT_THERE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC)


@contextmanager
def asked_in_time(what: str, timeout_s: float) -> Iterator[None]:
    """An error of the client library, or a silent broker, as a LogError."""
    try:
        yield
    except KafkaException as error:
        raise log_error(error.args[0], what) from None
    except TimeoutError:
        raise LogError(f"{what}: no answer within {timeout_s:g} s", retriable=True) from None


class KafkaWatch:
    """Opens one client, which is quiet between looks. Raises LogError where librdkafka refuses it."""

    def __init__(self, settings: KafkaSettings, client_id: str) -> None:
        with translated("open"):
            self._admin = AdminClient({**client_config(settings, client_id), "log_level": 0})

    def look(self, partitions: Collection[TopicPartition], groups: Collection[str]) -> Sight:
        with asked_in_time("what the log says of itself", CALL_TIMEOUT_S):
            # One call for each: the API takes one group at a time. All are asked before the first is waited for.
            asked = {
                group: self._admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=CALL_TIMEOUT_S
                )[group]
                for group in groups
            }
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            ends = self._admin.list_offsets(
                {NativePartition(each.topic, each.partition): latest for each in partitions},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=CALL_TIMEOUT_S,
            ) if partitions else {}  # fmt: skip
            reached: dict[TopicPartition, int] = {}
            for place, future in ends.items():
                try:
                    reached[TopicPartition(place.topic, place.partition)] = future.result(CALL_TIMEOUT_S).offset
                except KafkaException as error:
                    if error.args[0].code() not in _NOT_THERE:
                        raise
            committed = {
                group: {
                    TopicPartition(each.topic, each.partition): each.offset
                    for each in future.result(CALL_TIMEOUT_S).topic_partitions
                    if each.offset >= 0
                }
                for group, future in asked.items()
            }
        return Sight(reached, committed)

    def close(self) -> None:
        """Its threads end with the last reference to it: the library has no other way."""
        del self._admin
