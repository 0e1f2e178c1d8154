"""The whole process over a real Kafka: started, asked, killed, started again, stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import httpx
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from deploy.tenants_file import write_tenants
from schemas.billed import Billed
from schemas.codec import decode
from schemas.money import decimal_units
from schemas.usage import UsageEvent
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.reading import kept_offsets, read_offsets
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import Topic, Topics
from tests.servers import free_ports, until
from tests.unit.billing_jobs.events import usage_event

SECRET = "s" * 40
NOON = datetime.now(UTC).replace(day=1, hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)
"""Of the last day of last month: the log has times of its own, and takes no events that are far from them."""
NOON_MS = int(NOON.timestamp()) * 1_000
_regions = count(1)
CONFIG = """
[[pools]]
name = "default"
engine = "simulated"

[[models]]
name = "tiny"
path = "models/tiny"
pool = "default"
context_window = 512
price = { uncached_input = "0.10", cached_input = "0.02", output = "0.40", reasoning = "0.40" }
"""


class Billing:
    """How to start the process, and where it answers."""

    def __init__(self, kafka: KafkaSettings, folder: Path) -> None:
        self.port, self.health_port = free_ports(2)
        region = f"billing{next(_regions)}"
        self.topics = Topics(region, ["default"], kafka.partitions)
        config = folder / "sluice.toml"
        config.write_text(CONFIG)
        tenants = folder / "tenants.toml"
        write_tenants(tenants, [])
        self.environment = {
            **os.environ,
            "SLUICE_CONFIG": str(config),
            "SLUICE_REGION": region,
            "SLUICE_DATA_DIR": str(folder),
            "SLUICE_DEPLOYMENT_SECRET": SECRET,
            "SLUICE_HEALTH_PORT": str(self.health_port),
            "SLUICE_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "SLUICE_KAFKA__SESSION_TIMEOUT_MS": str(kafka.session_timeout_ms),
            "SLUICE_BILLING__PORT": str(self.port),
            "SLUICE_BILLING__ANALYSTS_PORT": "0",
            "SLUICE_TENANTS_FILE": str(tenants),
            "SLUICE_BILLING__BATCH_ROWS": "50",
            "SLUICE_BILLING__BATCH_WAIT_MS": "50",
        }
        self.output = folder / "billing.log"
        self.http = httpx.Client(headers={"Authorization": f"Bearer {SECRET}"}, timeout=60)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.output.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "billing_jobs"], env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            until(lambda: self.is_ready(process), "billing is ready")
            yield process
        finally:
            process.kill()
            process.wait(timeout=60)

    def is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, self.output.read_text()
        try:
            return self.http.get(f"http://127.0.0.1:{self.health_port}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def sql(self, query: str) -> list[list[object]]:
        answer = self.http.post(f"http://127.0.0.1:{self.port}/internal/sql", json={"query": query})
        assert answer.status_code == 200, answer.text
        rows: list[list[object]] = answer.json()["rows"]
        return rows

    def metrics(self) -> str:
        return self.http.get(f"http://127.0.0.1:{self.health_port}/metrics").text

    def counts(self) -> list[object]:
        """Rows, and the sum of the costs, both raw."""
        return self.sql("SELECT count(), uniqExact(usage_id), sum(cost_pico) FROM usage_events")[0]


@pytest.fixture
def billing(kafka_settings: KafkaSettings, tmp_path: Path) -> Iterator[Billing]:
    billing = Billing(kafka_settings, tmp_path)
    provision(kafka_settings, [billing.topics.prices])
    with billing.http:
        yield billing


def event(number: int) -> UsageEvent:
    """Of last month."""
    return usage_event(
        number, accepted_at_ms=NOON_MS, first_token_at_ms=NOON_MS + 120, ended_at_ms=NOON_MS + 900
    )  # fmt: skip


def expected(events: int) -> list[object]:
    return [str(events), str(events), str(events * (10 * 100_000 + 4 * 20_000 + 32 * 400_000))]


def put(kafka_settings: KafkaSettings, topic: Topic, numbers: range, partition: int | None = 0) -> None:
    """`partition` None: that of each one's id."""
    producer = KafkaProducer(kafka_settings, "test")
    for used in map(event, numbers):
        producer.produce(topic.name, used.encode(), key=used.response_id, partition=partition)
    assert producer.flush(60) == 0


@pytest.mark.long
def test_killed_while_it_stores_it_goes_on_without_loss_or_double(
    billing: Billing, kafka_settings: KafkaSettings
) -> None:
    topic = billing.topics.usage
    provision(kafka_settings, [topic, billing.topics.dead_letters])
    with billing.running() as process:
        put(kafka_settings, topic, range(1_000), None)
        until(lambda: int(str(billing.counts()[0])) > 100, "a part is stored", every_s=0.1)
        process.kill()
    put(kafka_settings, topic, range(1_000, 1_200), None)
    producer = KafkaProducer(kafka_settings, "test")
    producer.produce(topic.name, b"poison", key="x")
    assert producer.flush(60) == 0
    with billing.running() as process:
        until(lambda: int(str(billing.counts()[1])) >= 1_200, "everything is stored", every_s=0.1)
        until(lambda: "sluice_billing_lag_records 0.0" in billing.metrics(), "no lag", every_s=0.1)
        assert billing.counts() == expected(1_200), "once, not twice"
        assert 'sluice_billing_dead_letters_total{reason="not_json"}' in billing.metrics()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, billing.output.read_text()


def test_who_is_forgotten_while_usage_is_stored_is_named_by_none_of_it_after_a_kill(
    billing: Billing, kafka_settings: KafkaSettings
) -> None:
    topic = billing.topics.usage
    provision(kafka_settings, [topic, billing.topics.dead_letters])
    named = "SELECT countIf(end_user != '') FROM usage_events"
    asked = {"tenant_id": "acme", "pseudonyms": [event(0).scope.end_user], "actor": "ann"}
    with billing.running() as process:
        put(kafka_settings, topic, range(500), None)
        until(lambda: int(str(billing.counts()[0])) > 50, "a part is stored", every_s=0.1)
        assert billing.sql(named) != [["0"]]
        put(kafka_settings, topic, range(500, 1_000), None)
        answer = billing.http.post(f"http://127.0.0.1:{billing.port}/internal/forgotten", json=asked)
        assert answer.json()["rows"] > 50
        process.kill()
    put(kafka_settings, topic, range(1_000, 1_100), None)
    with billing.running():
        until(lambda: int(str(billing.counts()[1])) >= 1_100, "everything is stored", every_s=0.1)
        until(lambda: billing.sql(named) == [["0"]], "nobody is named", every_s=0.1)
        assert billing.counts() == expected(1_100)


def test_how_far_it_is_stands_on_the_log_and_that_some_left_it_unbilled(
    billing: Billing, kafka_settings: KafkaSettings
) -> None:
    topics = billing.topics
    provision(kafka_settings, [topics.usage, topics.dead_letters, topics.alerts, topics.billed])
    producer = KafkaProducer(kafka_settings, "test")

    def produce(number: int) -> int:
        used, offsets = event(number), list[int | None]()
        producer.produce(
            topics.usage.name, used.encode(), key="one partition", on_delivery=lambda offset, _: offsets.append(offset)
        )
        assert producer.flush(60) == 0
        assert offsets[0] is not None
        return offsets[0]

    def told() -> list[Billed]:
        with closing(KafkaConsumer(kafka_settings, None, "test")) as reader:
            offsets = kept_offsets(reader, reader.partitions(topics.billed.name))
            return [decode(Billed, each.value) for each in read_offsets(reader, offsets, time.monotonic() + 60)]

    with billing.running():
        produce(0)
        until(lambda: billing.counts() == expected(1), "it is in the tables", every_s=0.1)
        until(lambda: len(told()) > 0, "it is told")
        assert told()[-1].lost_records == 0
        assert told()[-1].through_ms > NOON_MS
    produce(1)
    end = produce(2) + 1
    with closing(KafkaConsumer(kafka_settings, None, "test")) as reader:
        [place] = [each for each in reader.partitions(topics.usage.name) if reader.watermarks(each)[1]]
    admin = AdminClient({"bootstrap.servers": kafka_settings.bootstrap})
    [deleted] = admin.delete_records([ConfluentPartition(place.topic, place.partition, end)]).values()
    deleted.result(60)
    process = subprocess.run(
        [sys.executable, "-m", "billing_jobs"], env=billing.environment, capture_output=True, timeout=120, check=False
    )
    assert b"left the log before they were stored" in process.stdout
    assert told()[-1].lost_records == 2


def test_a_first_answer_does_not_wait_for_a_batch_to_gather(billing: Billing, kafka_settings: KafkaSettings) -> None:
    provision(kafka_settings, [billing.topics.usage, billing.topics.dead_letters])
    producer = KafkaProducer(kafka_settings, "test")
    billing.environment["SLUICE_BILLING__BATCH_WAIT_MS"] = "600000"
    with billing.running():
        for number in range(3):
            used = event(number)
            producer.produce(billing.topics.usage.name, used.encode(), key=used.response_id)
            assert producer.flush(60) == 0
            until(lambda: billing.counts() == expected(number + 1), "it is in the tables", every_s=0.1)  # noqa: B023


def test_a_restart_with_another_price_charges_as_before_until_the_change_is_applied(
    billing: Billing, kafka_settings: KafkaSettings
) -> None:
    topic = billing.topics.usage
    provision(kafka_settings, [topic, billing.topics.dead_letters])
    put(kafka_settings, topic, range(5))
    with billing.running() as process:
        until(lambda: billing.counts() == expected(5), "it is in the tables", every_s=0.1)
        stop(process)
    config = Path(billing.environment["SLUICE_CONFIG"])
    config.write_text(config.read_text().replace('output = "0.40"', 'output = "0.80"'))
    with billing.running() as process:
        put(kafka_settings, topic, range(5, 10))
        until(lambda: billing.counts() == expected(10), "it is charged as before", every_s=0.1)
        assert "sluice_billing_prices_not_applied 1.0" in billing.metrics()
        terms = {"uncached_input": "0.10", "cached_input": "0.02", "output": "0.80", "reasoning": "0.40"}
        asked = {"prices": [{"model": "tiny", "price": {"currency": "USD", **terms}}]}
        url = f"http://127.0.0.1:{billing.port}/internal/prices"
        [change] = billing.http.post(f"{url}/plan", json=asked).json()["changes"]
        assert (change["before"]["per_million_tokens"]["output"], change["after"]["per_million_tokens"]["output"]) == (
            "0.4", "0.8",
        )  # fmt: skip
        named = {"version": 0, "actor": "kim", "reason": "dearer chips"}
        assert billing.http.post(f"{url}/apply", json={**asked, **named}).json()["version"] == 1
        # It was accepted long ago, and has its price.
        put(kafka_settings, topic, range(10, 15))
        until(lambda: billing.counts() == expected(15), "it is charged as before", every_s=0.1)
        month = f"http://127.0.0.1:{billing.port}/internal/invoices/acme/{NOON:%Y-%m}"
        until(
            lambda: billing.http.post(f"{month}/close", json={"actor": "kim"}).status_code == 200,
            "all that was logged is known to be stored, and the month is closed", every_s=0.1,
        )  # fmt: skip
        closed = billing.http.get(month).json()
        assert closed["invoices"][0]["exact"] == decimal_units(int(str(expected(15)[2])))
        stop(process)
    with billing.running():
        assert "sluice_billing_prices_not_applied 0.0" in billing.metrics()
        assert billing.http.get(month).json() == closed
        found = billing.http.get(f"{month}/check").json()
        assert (found["reproduced"], found["to_be_added"], found["missing_events"]) == (True, [], 0)
        # Nobody writes to the hour any more, so it is summed, and is what its events are.
        figures = "SELECT requests FROM usage_hours WHERE kind = 'figures' ORDER BY version DESC LIMIT 1"
        until(lambda: billing.sql(figures) == [["15"]], "its hour is summed", every_s=0.1)
        assert billing.sql("SELECT requests, cost_pico FROM usage_by_hour") == [["15", expected(15)[2]]]


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def decided(billing: Billing, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.cli", "billing", *words, "--data", str(billing.output.parent)]
    return subprocess.run(command, env=billing.environment, capture_output=True, text=True, timeout=240)


def make_anew(kafka_settings: KafkaSettings, topic: Topic) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_settings.bootstrap})
    admin.delete_topics([topic.name])[topic.name].result(60)
    until(lambda: topic.name not in admin.list_topics(timeout=60).topics, "the topic is gone")
    provision(kafka_settings, [topic])


@pytest.mark.long
def test_a_topic_that_was_made_anew_is_recognised_and_billed_when_an_operator_says_so(
    billing: Billing, kafka_settings: KafkaSettings
) -> None:
    topic = billing.topics.usage
    provision(kafka_settings, [topic, billing.topics.dead_letters])
    put(kafka_settings, topic, range(20))
    with billing.running() as process:
        until(lambda: billing.counts() == expected(20), "it is in the tables", every_s=0.1)
        refused = decided(billing, "recut", "0", "--from", "0", "--yes")
        assert refused.returncode == 1
        assert "stop them first" in refused.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    make_anew(kafka_settings, topic)
    put(kafka_settings, topic, range(20, 70))

    ended = subprocess.run(
        [sys.executable, "-m", "billing_jobs"], env=billing.environment, capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 70
    assert "was made anew" in ended.stdout + ended.stderr
    shown = decided(billing, "inspect", "--json")
    assert shown.returncode == 0, shown.stderr
    first = json.loads(shown.stdout)["partitions"][0]
    assert (first["begin"], first["end"], first["committed"], first["stored"]) == (0, 50, None, 20)
    assert "sluice billing recut 0 --from 0" in first["wrong"]
    assert decided(billing, "recut", "0", "--from", "51", "--yes").returncode == 1
    assert decided(billing, "recut", "0", "--from", "0").returncode == 1, "nobody confirmed it"
    done = decided(billing, "recut", "0", "--from", "0", "--yes")
    assert done.returncode == 0, done.stderr
    with billing.running():
        until(lambda: billing.counts() == expected(70), "the new log is billed too", every_s=0.1)


@pytest.mark.long
def test_a_topic_that_is_made_anew_under_a_running_process_is_not_billed_from_the_old_position(
    billing: Billing, kafka_settings: KafkaSettings
) -> None:
    topic = billing.topics.usage
    provision(kafka_settings, [topic, billing.topics.dead_letters])
    put(kafka_settings, topic, range(20))
    with billing.running() as process:
        until(lambda: billing.counts() == expected(20), "it is in the tables", every_s=0.1)
        make_anew(kafka_settings, topic)
        put(kafka_settings, topic, range(20, 25))
        assert process.wait(timeout=240) == 70, "the topic is unknown for a moment, or another one"
    ended = subprocess.run(
        [sys.executable, "-m", "billing_jobs"], env=billing.environment, stdout=subprocess.PIPE, timeout=240
    )
    assert ended.returncode == 70
    assert b"was made anew" in ended.stdout


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("SLUICE_DEPLOYMENT_SECRET", "short", "deployment_secret: "),
        ("SLUICE_BILLING__BATCH_ROWS", "0", "billing.batch_rows: "),
        (
            "SLUICE_MODELS",
            '[{"name": "tiny", "path": "", "pool": "default", "context_window": 99, "price": {"output": "0.1234567"}}]',
            "models.tiny.price.output: ",
        ),
    ],
)
def test_wrong_settings_end_it_with_a_line_that_names_the_field(
    variable: str, value: str, named: str, tmp_path: Path
) -> None:
    billing = Billing(KafkaSettings(), tmp_path)
    environment = {**billing.environment, variable: value}
    done = subprocess.run(
        [sys.executable, "-m", "billing_jobs"], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 2
    assert done.stderr.startswith(named)
