"""Billing alone on a broker: how its processes are started, where it answers, what is written for it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, Producer, TopicPartition

from deploy.tenants_file import write_tenants
from streams.provisioning import provision
from streams.settings import KafkaSettings
from streams.topics import Topics
from tests.billing_kills.nursery import BILLING, Nursery
from tests.billing_kills.stream import PRICES
from tests.servers import free_ports

PASSWORD = "s" * 40
BATCH_ROWS = 50
PAGE_ROWS = 10_000
READY_S = 90.0
"""From its start on, for the machine may be busy."""
TAKEN = '"event": "partition_taken"'
MODEL = """
[[pools]]
name = "{name}"
engine = "simulated"

[[models]]
name = "{name}"
path = "models/{name}"
pool = "{name}"
context_window = 512
price = {{ {price} }}
"""


class Refused(RuntimeError):
    """What billing answered that is no success."""


class Stand:
    """One region of its own, with its own folder. `kafka`: of a broker that runs."""

    def __init__(self, kafka: KafkaSettings, folder: Path, region: str) -> None:
        folder.mkdir(parents=True)
        self.bootstrap = kafka.bootstrap
        self.topics = Topics(region, [*PRICES], kafka.partitions)
        self._group = f"{region}.billing"
        provision(kafka, [self.topics.usage, self.topics.dead_letters, self.topics.prices, self.topics.alerts])
        self.port, self._health_port = free_ports(2)
        config, tenants = folder / "sluice.toml", folder / "tenants.toml"
        models = (
            MODEL.format(name=name, price=", ".join(f'{field} = "{value}"' for field, value in price.items()))
            for name, price in PRICES.items()
        )
        config.write_text("".join(models))
        write_tenants(tenants, [])
        self.environment = {
            **os.environ,
            "SLUICE_CONFIG": str(config),
            "SLUICE_REGION": region,
            "SLUICE_DATA_DIR": str(folder),
            "SLUICE_DEPLOYMENT_SECRET": PASSWORD,
            "SLUICE_HEALTH_PORT": str(self._health_port),
            "SLUICE_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "SLUICE_KAFKA__SESSION_TIMEOUT_MS": str(kafka.session_timeout_ms),
            "SLUICE_BILLING__PORT": str(self.port),
            "SLUICE_BILLING__ANALYSTS_PORT": "0",
            "SLUICE_BILLING__BATCH_ROWS": str(BATCH_ROWS),
            "SLUICE_BILLING__BATCH_WAIT_MS": "50",
            "SLUICE_BILLING__MAX_QUERY_ROWS": str(PAGE_ROWS),
            "SLUICE_BILLING__QUERY_TIMEOUT_S": "60",
            # It would look for what generated the usage, which nothing has.
            "SLUICE_BILLING__RECONCILE_S": "0",
            "SLUICE_TENANTS_FILE": str(tenants),
        }  # fmt: skip
        self.output = folder / "billing.log"
        self.output.touch()
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        self._consumer = Consumer({
            "bootstrap.servers": kafka.bootstrap, "group.id": self._group, "enable.auto.commit": False, "log_level": 0,
        })  # fmt: skip
        self._http = httpx.Client(headers={"Authorization": f"Bearer {PASSWORD}"}, timeout=120, trust_env=False)

    def close(self) -> None:
        self._http.close()
        self._consumer.close()

    # -- the log ----------------------------------------------------------------------------------------------------

    def write(self, records: Iterable[tuple[str, bytes]]) -> int:
        """How many. Returns once Kafka has them."""
        count = 0
        for key, value in records:
            self._producer.produce(self.topics.usage.name, value, key=key)
            count += 1
            self._producer.poll(0)
        if self._producer.flush(60):
            raise TimeoutError("the broker does not take what is written")
        return count

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self.topics.usage.name, number) for number in range(self.topics.usage.partitions)]

    def committed(self) -> int:
        """How many records were taken out of the log by billing."""
        return sum(max(0, place.offset) for place in self._consumer.committed(self._places(), timeout=30))

    def values(self) -> dict[tuple[int, int], Mapping[str, Any]]:
        """All of the log, by partition and offset."""
        ends = {place.partition: self._consumer.get_watermark_offsets(place, timeout=30)[1] for place in self._places()}
        read: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._consumer.assign([TopicPartition(self.topics.usage.name, number, 0) for number in ends])
        deadline_s = time.monotonic() + 120
        while len(read) < sum(ends.values()):
            if time.monotonic() > deadline_s:
                raise TimeoutError("the log was not read to its end")
            for message in self._consumer.consume(10_000, timeout=1):
                partition, offset = message.partition(), message.offset()
                if partition is not None and offset is not None and message.error() is None:
                    read[partition, offset] = json.loads(message.value() or b"{}")
        self._consumer.unassign()
        return read

    # -- the process ------------------------------------------------------------------------------------------------

    def start(self, nursery: Nursery, **order: Any) -> int:
        return nursery.start(BILLING, self.output, **order)

    def start_plain(self) -> Callable[[], int]:
        """As its runner starts it; what kills it, and gives how it ended."""
        with self.output.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "billing_jobs"], env=self.environment, stdout=said, stderr=subprocess.STDOUT
            )

        def kill() -> int:
            process.kill()
            return process.wait(timeout=60)

        return kill

    def until_taken(self, since: int) -> bool:
        """Whether it has come so far, behind this place of its output, that it reads all partitions."""
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            with self.output.open() as said:
                said.seek(since)
                if said.read().count(TAKEN) >= self.topics.usage.partitions:
                    return True
            time.sleep(0.01)
        return False

    def until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            with suppress(httpx.TransportError):
                if self._http.get(f"http://127.0.0.1:{self._health_port}/readyz").status_code == 200:
                    return
            time.sleep(0.05)
        raise TimeoutError(f"billing is not ready: {self.output.read_text()[-2_000:]}")

    def has_no_lag(self) -> bool:
        return "\nsluice_billing_lag_records 0.0" in self._http.get(
            f"http://127.0.0.1:{self._health_port}/metrics"
        ).text  # fmt: skip

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Raises Refused, httpx.TransportError."""
        answer = self._http.request(method, f"http://127.0.0.1:{self.port}{path}", json=body)
        if answer.is_error:
            raise Refused(answer.text)
        told: dict[str, Any] = answer.json()
        return told

    def sql(self, text: str) -> dict[str, Any]:
        return self.ask("POST", "/internal/sql", {"query": text})
