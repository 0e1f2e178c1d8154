"""Who comes back by the rule of the chat page is spread; who comes every second is not."""

import random
from collections import Counter
from pathlib import Path

from benchmarks.herd import PAGE_MS, SLICE_S, Herd, Wait, as_the_page, every_second

CONNECTION = Path(__file__).parents[3] / "streams/gateway/http/pages/assets/connection.js"


def reached(wait: Wait, away_s: float, advised_ms: int = 0) -> Herd:
    """300 that lose a gateway in one moment, which is back after `away_s`."""
    rng, herd = random.Random(3), Herd()
    for _ in range(300):
        at_s, attempts = 0.0, 0
        while at_s < away_s or not attempts:
            at_s += wait(attempts, 0 if attempts else advised_ms, rng)
            attempts += 1
        herd.reached_s.append(at_s)
    return herd


def test_who_comes_back_as_the_page_does_is_spread() -> None:
    for away_s in (0.0, 3.0, 12.0):
        assert reached(every_second, away_s).most_in_a_slice() == 300
        # As many as come within the shortest wait come in no 100 ms.
        assert reached(as_the_page, away_s).most_in_a_slice() <= 300 * SLICE_S / (PAGE_MS[0] / 1_000) * 1.25
    assert reached(as_the_page, 12.0).most_in_a_slice() <= 30


def test_nobody_comes_before_it_is_advised() -> None:
    herd = reached(as_the_page, 0.0, advised_ms=2_000)
    assert min(herd.reached_s) >= 2.0
    assert max(Counter(int(at_s / SLICE_S) for at_s in herd.reached_s).values()) <= 30


def test_the_rule_is_the_pages_own() -> None:
    source = CONNECTION.read_text()
    assert f"RETRY_MS = [{', '.join(map(str, PAGE_MS))}]" in source
    assert "wait_ms + Math.random() * wait_ms" in source
