"""Thirty kills, stops and freezes of real processes under traffic, one of each that `tests/chaos/schedule.py` knows:
nothing accepted is lost, nothing is shown or billed twice, no worker that was overtaken is heard, and what waited where
nobody came back is answered elsewhere.

`make test-long` runs it, `SEED=7` in another order. `make chaos N=500 SEED=7` strikes more often.
"""

import os
from pathlib import Path

import pytest

from tests.chaos.run import Run, run
from tests.chaos.schedule import DECK, schedule

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1_800)]

SEED = int(os.environ.get("SEED", "1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def done(folder: Path) -> Run:
    return run(folder, lambda _stack: schedule(SEED, len(DECK)))


def test_whatever_is_struck_the_history_is_one_that_may_be(done: Run) -> None:
    assert done.verdict.violations == []
    assert done.stopped == ""
    assert done.told["faults"] == len(DECK)
    assert {"completed", "safety_halted"} <= set(done.verdict.endings)
    for what in (
        "jobs", "answers_of_several_choices", "continued_answers", "moved_answers", "answers_by_another_model",
        "moved_to_another_model",
    ):  # fmt: skip
        assert done.verdict.counts[what], what


def test_no_log_holds_a_prompt_or_a_secret(done: Run, folder: Path) -> None:
    assert done.secrets
    logs = [*(folder / "stack" / "logs").glob("*.log")]
    assert logs
    for path in logs:
        text = path.read_text(errors="replace")
        assert not any(secret in text for secret in done.secrets), path.name
        assert "Tell me a story" not in text, path.name
