"""However much is said at once, the log takes it; what it cannot take ends the answer that said it, and no other."""

import asyncio
from unittest import mock

from prometheus_client import CollectorRegistry

from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.parsing.bounds import MAX_ARGUMENTS_CHARS
from gpu_consumers.worker import Ports, Worker
from schemas.endings import EndingCode
from streams.log.port import MAX_RECORD_BYTES
from streams.settings import WorkerSettings
from tests.unit.gpu_consumers.fleet import TOPICS, Fleet, delta

CHOICES = 32


def test_no_record_is_too_large_where_all_choices_tell_long_arguments_in_one_step() -> None:
    """Greedy ones say the same at the same time, and a parser may keep all of a call until its name is said."""
    fleet = Fleet("a", coalesce_ms=0, max_running=CHOICES)
    response_id, attempt_id = fleet.told_here(choices=CHOICES)
    arguments = "\0" * MAX_ARGUMENTS_CHARS
    fleet.says(*(delta(attempt_id, arguments, choice=choice, kind="tool_arguments") for choice in range(CHOICES)))
    fleet.says(*(delta(attempt_id, choice=choice, finish="stop") for choice in range(CHOICES)))
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    assert len(fleet.region.tokens[response_id]) == CHOICES
    frames = fleet.region.frames()
    assert max(len(frame.encode()) for frame in frames) < TOPICS.generated.max_message_bytes / 2


async def test_what_no_record_holds_ends_its_own_answer_and_neither_its_worker_nor_anothers() -> None:
    """The producer refuses it at once. Taken over it would be said, and refused, again."""
    fleet = Fleet("a", coalesce_ms=0)
    region, [running] = fleet.region, fleet.all
    answers = [fleet.told_here() for _ in range(3)]
    (large, of_large), *others = answers
    producer, engine = region.log.producer("shell"), mock.Mock()
    worker = Worker(
        running.core,
        Ports(engine, mock.Mock(), mock.Mock(), producer, mock.Mock(), mock.Mock()),  # type: ignore[arg-type]
        WorkerSettings(),
        WorkerMetrics(CollectorRegistry()),
        clock_us=lambda: region.now_ms * 1_000,
    )
    texts = ["x" * MAX_RECORD_BYTES, "y", "z"]
    said = [delta(attempt_id, text) for (_, attempt_id), text in zip(answers, texts, strict=True)]
    running.core.deltas(said, region.now_ms * 1_000)
    worker._carry_out()
    for _ in range(3):
        await asyncio.sleep(0)
        producer.poll()
    assert not worker._failed.done()
    engine.abort.assert_called_once_with(of_large)
    fleet.says(*(delta(attempt_id, finish="stop") for _, attempt_id in others))
    fleet.settle()
    assert [region.terminal(response_id) for response_id, _ in others] == [EndingCode.COMPLETED] * 2
    assert [region.text[response_id] for response_id, _ in others] == [["y"], ["z"]]
    [ending] = region.endings()
    assert (ending.response_id, ending.code, ending.attempt_id) == (large, EndingCode.ENGINE_FAILED, of_large)
    fences = region.fences()
    assert [fence.attempt_id for fence in fences if fence.response_id == large] == [of_large]
