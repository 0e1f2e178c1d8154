from typing import Any

from benchmarks.worker_alone import Written


def frame(*rows: tuple[str, int, int]) -> dict[str, Any]:
    """Of each row its response, its first token and how many."""
    return {
        "response_id": [response_id for response_id, _, _ in rows],
        "first_sequence": [first for _, first, _ in rows],
        "token_ids": [[7] * count for _, _, count in rows],
    }


def test_only_what_was_written_while_all_ran_counts() -> None:
    written = Written()
    written.add(frame(("a", 1, 2), ("b", 1, 1)), counts=False)
    written.add(frame(("a", 3, 4), ("b", 2, 1)), counts=True)
    written.add(frame(("a", 7, 1)), counts=False)
    assert (written.tokens, written.rows, written.frames, written.streams, written.wrong) == (5, 2, 1, 2, [])


def test_a_token_that_is_missing_or_said_twice_is_found() -> None:
    written = Written()
    written.add(frame(("a", 1, 2), ("b", 1, 1)), counts=True)
    written.add(frame(("a", 4, 1), ("b", 1, 1)), counts=True)
    assert written.wrong == ["a: token 4 after 2", "b: token 1 after 1"]
