"""Thirty kills of billing alone, at chosen points and at any moment, under usage that comes late, and again: what is
stored, summed, invoiced and in the ledger is what an oracle makes of the same usage.

`make test-long` runs it, `SEED=7` with other usage and other moments. `make kills N=1000 SEED=7` kills more often.
"""

import os
from pathlib import Path

import pytest

from tests.billing_kills.parts import run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]

SEED = int(os.environ.get("SEED", "1"))
KILLS = 30


def test_killed_at_any_moment_billing_is_exact_and_naive_ways_to_bill_are_not(tmp_path: Path) -> None:
    done = run(tmp_path, KILLS, SEED)
    assert done.stopped == ""
    assert done.violations == []
    assert (done.told["kills"], done.told["compared"]) == (KILLS, 2)
    assert done.told["usage_events"]
    assert done.told["records_written_again"]
    commit_first, store_first = done.told["naive"]["commit first"], done.told["naive"]["store first"]
    assert commit_first["lost_records"] > 0 == commit_first["doubled_records"]
    assert store_first["doubled_records"] > 0 == store_first["lost_records"]
