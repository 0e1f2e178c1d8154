"""What the release before makes of records of `usage` that it does not know."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.base import Scope
from schemas.usage import ComputeRecord, Presence
from tests.versions.before import release_before

HOUR_MS = 500_000 * 3_600_000
READS = """
import json, sys
from billing_jobs.cut import cut_of, parse_batch
from billing_jobs.pricing import PriceBook
from schemas.codec import Undecodable, decode
from schemas.usage import USAGE
from streams.log import LogRecord

values = [value.encode() for value in json.load(sys.stdin)]
records = [LogRecord("usage", 0, offset, None, value, (), int(sys.argv[1])) for offset, value in enumerate(values)]
batch = parse_batch(cut_of(records, 1), records, PriceBook([]))
read = {"compute": len(batch.compute), "billing": [[each.record.offset, each.reason] for each in batch.unusable]}
try:
    decode(USAGE, values[1])
except Undecodable as error:
    read["settlement"] = error.reason
print(json.dumps(read))
"""


@pytest.fixture
def package() -> Iterator[Path]:
    with release_before() as folder:
        yield folder


def test_an_hour_of_a_worker_is_one_dead_letter_of_its_billing_and_harms_no_other_record(package: Path) -> None:
    """So billing is upgraded before workers: docs/operators.md."""
    attempt = ComputeRecord(
        response_id="resp_local-0_1", scope=Scope(tenant_id="acme"), attempt_id="att_1", worker_id="worker-1",
        pool="default", model="tiny", prompt_tokens=1, cached_tokens=0, generated_tokens=1, engine_ms=1,
        outcome="completed",
    )  # fmt: skip
    presence = Presence(scope=Scope(tenant_id="sluice"), worker_id="worker-1", pool="default", hour_ms=HOUR_MS)
    values = [record.encode().decode() for record in (attempt, presence, attempt)]
    environment = {**os.environ, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", READS, str(HOUR_MS)], input=json.dumps(values), env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "compute": 2, "billing": [[1, "unknown_type"]], "settlement": "unknown_type",
    }  # fmt: skip
