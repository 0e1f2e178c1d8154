"""Admission's producers: there when the first record comes, and one for each kind of write."""

from agents.admission.publisher import LogPublisher
from streams.log.memory import MemoryLog
from streams.log.port import LogProducer


async def test_an_open_publisher_has_its_producers_before_the_first_record() -> None:
    log = MemoryLog()
    log.create_topic("records", 1)
    log.create_topic("notes", 1)
    made: list[str] = []

    def producer(name: str) -> LogProducer:
        made.append(name)
        return log.producer(name)

    publisher = LogPublisher(lambda: producer("records"), lambda: producer("notes"))
    assert made == []
    await publisher.open()
    assert made == ["records", "notes"]
    assert await publisher.publish("records", b"1", key="k") == 0
    assert await publisher.note("notes", b"2", key="k") == 0
    await publisher.close(5)
    assert made == ["records", "notes"]
