"""What feeds a gateway alone are records as post-safety's: every stream's tokens in order, none left out."""

from benchmarks.ready_records import WORD, release, rows_due
from schemas.responses import RESPONSES, Release


def test_records_are_those_of_post_safety() -> None:
    record = RESPONSES.validate_json(release(["resp_local-0_" + "0" * 32, "resp_local-0_" + "1" * 32], [6, 1], 5))
    assert isinstance(record, Release)
    assert record.first_sequence == [6, 1]
    assert record.text == [WORD * 5] * 2
    assert record.text_ends == [[5, 10, 15, 20, 25]] * 2


def test_every_stream_has_its_tokens_in_turn_and_at_its_rate() -> None:
    seen: dict[int, list[int]] = {}
    written = 0
    for record in range(1, 301):
        rows = rows_due(record, written, streams=7, rows_per_s=50.0, tokens=3)
        written += len(rows)
        for stream, first in rows:
            seen.setdefault(stream, []).append(first)
    assert written == 150, "three seconds' rows"
    assert sorted(seen) == list(range(7))
    for firsts in seen.values():
        assert firsts == [3 * turn + 1 for turn in range(len(firsts))]
