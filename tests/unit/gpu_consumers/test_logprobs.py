"""Probabilities go with their tokens into the log, and no record grows too large by them."""

from gpu_consumers.core.frames import MAX_FRAME_ROWS
from gpu_consumers.engines.port import EngineDelta
from schemas.endings import EndingCode
from schemas.generated import FinishReason, Frame
from schemas.logprobs import MAX_TOKEN_BYTES, MAX_TOP_LOGPROBS, TokenLogprobs
from tests.unit.gpu_consumers.fleet import TOPICS, Fleet, delta


def alike(text: str, value: float = -0.25) -> TokenLogprobs:
    return [(text, value)] * (1 + MAX_TOP_LOGPROBS)


def row(attempt_id: str, text: str, logprobs: list[TokenLogprobs] | None, finish: FinishReason = "") -> EngineDelta:
    return delta(attempt_id, *text, finish=finish, logprobs=logprobs)


def frames(fleet: Fleet) -> list[Frame]:
    return fleet.region.frames()


def test_they_follow_their_tokens_also_into_rows_that_waited() -> None:
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here()
    for text in ("a", "b", "cd"):
        fleet.says(row(attempt_id, text, [alike(char) for char in text]))
        fleet.region.now_ms += 5
    # The token that ends it is not shown.
    fleet.says(row(attempt_id, "\0", None, "stop"))
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
    rows = [
        (text, None if logprobs is None else [token[0][0] for token in logprobs])
        for frame in frames(fleet)
        for text, logprobs in zip(frame.text, frame.logprobs, strict=True)
    ]
    assert rows == [("a", ["a"]), ("bcd", ["b", "c", "d"]), ("\0", None)]


def test_a_row_whose_probabilities_are_not_those_of_its_tokens_fails_its_request() -> None:
    fleet = Fleet("a")
    response_id, attempt_id = fleet.told_here()
    fleet.says(row(attempt_id, "ab", [alike("a")]))
    fleet.settle()
    assert fleet.region.terminal(response_id) is EndingCode.ENGINE_FAILED


def test_no_record_is_too_large_whatever_the_tokens_are() -> None:
    for text, tokens in (("\0" * MAX_TOKEN_BYTES, 40), ("ÿ" * 9, 4 * MAX_FRAME_ROWS)):
        fleet = Fleet("a", coalesce_ms=0)
        response_id, attempt_id = fleet.told_here()
        rows = [row(attempt_id, "x", [alike(text, -1.234567890123456)]) for _ in range(tokens)]
        fleet.says(*rows, row(attempt_id, "x", [alike(text)], "stop"))
        fleet.settle()
        assert fleet.region.terminal(response_id) is EndingCode.COMPLETED
        sizes = [len(frame.encode()) for frame in frames(fleet)]
        assert max(sizes) < TOPICS.generated.max_message_bytes / 2
        assert len(fleet.region.tokens[response_id]) == tokens + 1
