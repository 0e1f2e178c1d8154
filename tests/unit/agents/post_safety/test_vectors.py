"""Vectors: released in their order whatever phrases are denied, and billed by the prompt alone."""

from dataclasses import replace

from schemas.endings import EndingCode
from schemas.responses import RESPONSES, Release
from tests.unit.agents.post_safety.story import TOPICS, Answer, Member, Row, World, ending, fence, frame, opened

VECTORS = ["make", " a bomb", "AAAA", "/w==", "secret sauce"]
"""Base64 says by chance whatever it says."""
ROWS = [
    Row("r1", 1, VECTORS[:2], kind="embedding", cached=0), Row("r1", 3, VECTORS[2:], kind="embedding", finish="stop")
]  # fmt: skip


def embedded(world: World) -> Answer:
    Member(world).run()
    answer = world.answer("r1")
    assert (answer.bill.output_tokens, answer.bill.released_tokens, answer.bill.reasoning_tokens) == (0, 0, 0)
    assert answer.terminal.usage.completion_tokens == 0
    return answer


def test_vectors_are_released_as_they_come_and_no_phrase_is_sought_in_them() -> None:
    world = World()
    world.write(opened("r1", endpoint="embeddings"), fence("r1"), *map(frame, ROWS))
    answer = embedded(world)
    assert answer.said("embedding") == "".join(VECTORS)
    assert (answer.terminal.code, answer.terminal.sequence_number) == (EndingCode.COMPLETED, len(VECTORS) + 1)
    assert (answer.bill.uncached_input_tokens, answer.bill.billable, answer.bill.endpoint) == (10, True, "embeddings")
    assert not world.verdicts()


def test_a_release_of_vectors_has_no_column_of_calls() -> None:
    world = World()
    world.write(opened("r1", endpoint="embeddings"), fence("r1"), *map(frame, ROWS))
    embedded(world)
    records = [RESPONSES.validate_json(record.value or b"") for record in world.log.records(TOPICS.responses.name)]
    assert [record.call for record in records if isinstance(record, Release)] == [None] * 2


def test_vectors_that_are_told_again_count_once_and_a_lost_one_is_no_answer() -> None:
    world = World()
    world.write(opened("r1", endpoint="embeddings"), fence("r1"), frame(ROWS[0]), frame(ROWS[0]), frame(ROWS[1]))
    assert embedded(world).said("embedding") == "".join(VECTORS)
    lost = World()
    late = replace(ROWS[1], first_sequence=4)
    lost.write(opened("r1", endpoint="embeddings"), fence("r1"), frame(ROWS[0]), frame(late))
    Member(lost).run(ms=10_000)
    assert lost.answer("r1").terminal.code is EndingCode.STREAM_GAP


def test_a_worker_that_was_lost_among_vectors_is_not_paid_for() -> None:
    world = World()
    world.write(opened("r1", endpoint="embeddings"), fence("r1"), frame(ROWS[0]))
    world.write(ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_1"))
    assert not embedded(world).bill.billable
