from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.settings import KafkaSettings
from tests.processes.region import Region


@pytest.fixture
def region(kafka_settings: KafkaSettings, redis_url: str, tmp_path: Path) -> Iterator[Region]:
    region = Region(kafka_settings, redis_url, tmp_path)
    yield region
    region.close()
