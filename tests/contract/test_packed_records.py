"""What producers pack is unpacked by the broker, and refused where it is larger than a record may be: no reader of ours
has to unpack it. Against a real broker, with the intake as it is provisioned.
"""

import zlib

import pytest
from confluent_kafka import KafkaError, Producer

from streams.log.kafka import KafkaConsumer, client_config
from streams.log.reading import kept_offsets, read_offsets
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import Topic, Topics

BOMB = b" " * 50_000_000
"""Packed, a hundredth of what a batch may have."""


@pytest.fixture(scope="module")
def intake(kafka_settings: KafkaSettings) -> Topic:
    topics = Topics("packed", ["default"])
    provision(kafka_settings, topics.all([]))
    return topics.intake_batch


def outcome(settings: KafkaSettings, topic: Topic, value: bytes, codec: str) -> KafkaError | None:
    """Of one record, from a client that checks nothing itself."""
    told: list[KafkaError | None] = []
    producer = Producer(
        {**client_config(settings, "stranger"), "compression.type": codec, "message.max.bytes": 100_000_000}
    )
    producer.produce(topic.name, value, partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(60) == 0
    return told[0]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_swells_beyond_a_record_is_refused_and_what_does_not_is_kept_unpacked(
    kafka_settings: KafkaSettings, intake: Topic, codec: str
) -> None:
    assert len(zlib.compress(BOMB)) < intake.max_message_bytes / 50
    refused = outcome(kafka_settings, intake, BOMB, codec)
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert outcome(kafka_settings, intake, f"a job by {codec}".encode(), codec) is None
    reader = KafkaConsumer(kafka_settings, None, "reader")
    offsets = kept_offsets(reader, reader.partitions(intake.name))
    values = [record.value for record in read_offsets(reader, offsets, 2**40)]
    reader.close()
    assert f"a job by {codec}".encode() in values
    assert all(value is not None and len(value) < 100 for value in values)


def test_topics_that_outsiders_write_and_admission_reads_are_kept_unpacked() -> None:
    topics = Topics("packed", ["default"])
    for topic in (
        topics.requests,
        topics.intake_batch,
        topics.jobs("default"),
        topics.aside,
        topics.later,
        topics.moved,
    ):
        assert topic.config["compression.type"] == "uncompressed", topic.name
