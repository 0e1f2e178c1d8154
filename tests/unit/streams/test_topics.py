from agents.admission.entrances import MAX_JOB_LIFETIME_MS
from schemas.request import LANES
from streams.settings import GatewaySettings
from streams.topics import LONGEST_OUTAGE_MS, LONGEST_RESPONSE_MS, Topics

TOPICS = Topics("eu1", ["small", "large"])


def test_what_an_open_response_needs_outlives_it_and_an_outage() -> None:
    longest_request_ms = max(
        bound.le for bound in GatewaySettings.model_fields["request_timeout_ms"].metadata if hasattr(bound, "le")
    )
    assert max(MAX_JOB_LIFETIME_MS, longest_request_ms) <= LONGEST_RESPONSE_MS
    lanes = [TOPICS.lane(pool, lane) for pool in ("small", "large") for lane in LANES]
    lanes += [TOPICS.jobs(pool) for pool in ("small", "large")]
    for topic in [TOPICS.requests, TOPICS.generated, TOPICS.validated, TOPICS.reserved, TOPICS.screened, *lanes]:
        assert topic.retention_ms is not None
        assert topic.retention_ms >= LONGEST_RESPONSE_MS + LONGEST_OUTAGE_MS, topic.name


def test_only_the_broker_dates_what_billing_settlement_and_deadlines_go_by() -> None:
    for topic in (TOPICS.requests, TOPICS.intake_batch, TOPICS.generated, TOPICS.responses, TOPICS.usage):
        assert topic.extra["message.timestamp.type"] == "LogAppendTime", topic.name


def test_every_name_is_the_regions_own() -> None:
    topics = TOPICS.all(["acme"])
    assert len({topic.name for topic in topics}) == len(topics)
    assert all(topic.name.startswith("eu1.") for topic in topics)


def test_what_tenants_write_before_quota_decides_is_bounded_in_bytes() -> None:
    for topic in (TOPICS.requests, TOPICS.intake_batch):
        assert topic.retention_bytes is not None, topic.name
        assert topic.retention_bytes * topic.partitions <= 64 * 1024**3
        assert topic.config["retention.bytes"] == str(topic.retention_bytes)
