"""Vectors: released in their order whatever phrases are denied, and billed by the prompt alone."""

from dataclasses import replace

from schemas.endings import EndingCode
from schemas.generated import Ending
from schemas.responses import Release
from tests.unit.agents.post_safety.story import Member, Row, World, ending, fence, frame, opened

VECTORS = ["make", " a bomb", "AAAA", "/w==", "secret sauce"]
"""Base64 says by chance whatever it says."""
ROWS = [
    Row("r1", 1, VECTORS[:2], kind="embedding", cached=0), Row("r1", 3, VECTORS[2:], kind="embedding", finish="stop")
]  # fmt: skip


def embedded(*said: Row | Ending, ms: int = 1_500) -> World:
    world = World()
    records = [frame(each) if isinstance(each, Row) else each for each in said]
    world.write(opened("r1", endpoint="embeddings"), fence("r1"), *records)
    Member(world).run(ms)
    answer = world.answer("r1")
    assert (answer.bill.output_tokens, answer.bill.released_tokens, answer.bill.reasoning_tokens) == (0, 0, 0)
    assert answer.terminal.usage.completion_tokens == 0
    return world


def test_vectors_are_released_as_they_come_and_no_phrase_is_sought_in_them() -> None:
    world = embedded(*ROWS)
    answer = world.answer("r1")
    assert answer.said("embedding") == "".join(VECTORS)
    assert (answer.terminal.code, answer.terminal.sequence_number) == (EndingCode.COMPLETED, len(VECTORS) + 1)
    assert (answer.bill.uncached_input_tokens, answer.bill.billable, answer.bill.endpoint) == (10, True, "embeddings")
    assert not world.verdicts()


def test_a_release_of_vectors_has_no_column_of_calls() -> None:
    records = embedded(*ROWS).responses()
    assert [record.call for record in records if isinstance(record, Release)] == [None] * 2


def test_vectors_that_are_told_again_count_once_and_a_lost_one_is_no_answer() -> None:
    assert embedded(ROWS[0], *ROWS).answer("r1").said("embedding") == "".join(VECTORS)
    lost = embedded(ROWS[0], replace(ROWS[1], first_sequence=4), ms=10_000)
    assert lost.answer("r1").terminal.code is EndingCode.STREAM_GAP


def test_a_worker_that_was_lost_among_vectors_is_not_paid_for() -> None:
    interrupted = ending("r1", EndingCode.GENERATION_INTERRUPTED, attempt="att_1")
    assert not embedded(ROWS[0], interrupted).answer("r1").bill.billable
