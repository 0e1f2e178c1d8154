"""The admission process on a real broker and a real Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.settings import KafkaSettings
from tests.unit.agents.harness import Region


@pytest.fixture
def region(kafka_settings: KafkaSettings, redis_url: str, tmp_path: Path) -> Iterator[Region]:
    region = Region(kafka_settings, redis_url, tmp_path)
    yield region
    region.close()


@pytest.mark.parametrize("placement", ["fused", "split"])
def test_both_placements_admit_and_refuse_alike(region: Region, placement: str) -> None:
    region.beat()
    good = region.request("Tell me something")
    with region.admission(placement):
        region.send(good)
        written = region.read_until([good.response_id])
    [(topic, partition, work)] = written.admitted[good.response_id]
    [(home, offset, opened)] = written.opened[good.response_id]
    assert topic == region.topics.lane("default", work.lane).name
    assert partition in (2, 6)
    assert home == work.generated_partition == 5
