"""Which streams are measured: those that went on behind what another attempt had said."""

import orjson

from benchmarks.clients import Answer
from benchmarks.lost_workers import TOKENS, Seen, continued


def took_over(response_id: str, accepted_tokens: int) -> str:
    told = {"response_id": response_id, "accepted_tokens": accepted_tokens, "event": "taken_over"}
    return orjson.dumps(told).decode()


def heard(response_id: str, gap_s: float, tokens: int = TOKENS, error: str = "") -> Answer:
    return Answer(0.0, 101, 0.1, 9.0, tokens, 40, gap_s, error=error, response_id=response_id)


def test_what_was_taken_over_before_its_first_token_is_not_continued() -> None:
    logs = [
        "\n".join(["a line of something else", took_over("resp_1", 40), took_over("resp_2", 0)]),
        took_over("resp_3", 7),
    ]
    assert continued(logs) == {"resp_1", "resp_3"}


def test_gaps_are_told_apart_and_whatever_is_not_whole_counts() -> None:
    seen = Seen()
    answers = [heard("a", 3.5), heard("b", 0.1), heard("c", 4.0, TOKENS - 1), heard("d", 0.2, error="a gap after 7")]
    seen.add(answers, {"a", "c"})
    assert (seen.gaps_s, seen.others_s) == ([3.5, 4.0], [0.1, 0.2])
    assert seen.bad == {f"{TOKENS - 1} of {TOKENS} tokens": 1, "a gap after 7": 1}
