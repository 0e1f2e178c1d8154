"""A region of its own on the real broker, an admission process in it, and readers of what it writes."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import SecretStr

from schemas.base import Scope
from schemas.batch import BatchJob
from schemas.dead_letter import DeadLetter
from schemas.generated import GENERATED, Ending, Opened
from schemas.request import LANES, AdmittedRequest, Lane, Message, ReplyTo, Request, Sampling, TextPart
from schemas.verdict import Verdict
from schemas.worker import WorkerState
from streams.ids import parse_response_id
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.log.port import Headers, LogRecord
from streams.provisioning import provision
from streams.settings import KafkaSettings, Settings
from streams.signing import sign_job, sign_request
from streams.topics import Partitions, Topics

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "sluice-tiny"
REPLY_PARTITIONS = 8
"""A region for each test: a broker makes 64 in a second."""
SECRET = b"a deployment secret of the tests, 32+"
POOL = "default"
MODEL_SETTINGS = {
    "name": "sluice-tiny", "aliases": ["default"], "path": str(MODEL), "pool": POOL, "context_window": 4_096,
}  # fmt: skip


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def job_id(region: "Region", custom_id: str) -> str:
    return region.ids.derive(region.topics.counts.responses, "acme", "intake.batch", custom_id, at_ms=0)


def message(text: str) -> Message:
    return Message(role="user", content=[TextPart(text=text)])


@dataclass
class Written:
    """What stands in the log about the requests of a test."""

    opened: dict[str, list[tuple[int, int, Opened]]] = field(default_factory=dict)
    endings: dict[str, list[tuple[int, Ending]]] = field(default_factory=dict)
    admitted: dict[str, list[tuple[str, int, AdmittedRequest]]] = field(default_factory=dict)
    verdicts: dict[str, list[Verdict]] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    admitted_at_ms: dict[str, int] = field(default_factory=dict)

    @property
    def concluded(self) -> set[str]:
        return set(self.admitted) | set(self.endings)


class Region:
    """Topics under a name of their own."""

    def __init__(self, kafka: KafkaSettings, redis_url: str, directory: Path) -> None:
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.kafka = kafka
        self.redis_url = redis_url
        self.directory = directory
        self.topics = Topics(self.name, [POOL], Partitions(responses=REPLY_PARTITIONS))
        self.ids = Settings(region=self.name, deployment_secret=SecretStr(SECRET.decode())).response_ids
        self.producer_key = Ed25519PrivateKey.generate()
        self._producer = KafkaProducer(kafka, "test")
        self._readers: list[KafkaConsumer] = []
        provision(kafka, self.topics.all(["acme"]))
        self._write_tenants()
        self._reader = KafkaConsumer(kafka, None, "test-reader", fetch_wait_ms=10)
        read = [self.topics.generated, self.topics.verdicts, self.topics.dead_letters]
        read += [self.topics.lane(POOL, lane) for lane in LANES]
        self._reader.assign({p: 0 for topic in read for p in self._reader.partitions(topic.name)})
        self.written = Written()

    def _write_tenants(self) -> None:
        public = self.producer_key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.tenants_file.write_text(
            f"""
[[tenants]]
tenant_id = "acme"
tier = "paid"
[tenants.limits]
requests_per_minute = 1000000
tokens_per_minute = 1000000000
concurrent_responses = 100000
[tenants.policy]
version = 3
prompt_deny = ["open the vault"]
prompt_deny_patterns = [{{ pattern = 'vault [0-9]+', category = "privacy" }}]
[[tenants.producer_keys]]
key_id = "producer-1"
public_key = "{base64.b64encode(public).decode()}"

[[tenants]]
tenant_id = "tiny"
[tenants.limits]
requests_per_minute = 1
"""
        )

    @property
    def tenants_file(self) -> Path:
        return self.directory / "tenants.toml"

    def environment(self, placement: str, **extra: str) -> dict[str, str]:
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLUICE_")},
            "SLUICE_REGION": self.name,
            "SLUICE_DATA_DIR": str(self.directory / "data"),
            "SLUICE_TENANTS_FILE": str(self.tenants_file),
            "SLUICE_DEPLOYMENT_SECRET": SECRET.decode(),
            "SLUICE_KAFKA__BOOTSTRAP": self.kafka.bootstrap,
            "SLUICE_KAFKA__SESSION_TIMEOUT_MS": "1000",
            "SLUICE_KAFKA__PARTITIONS__RESPONSES": str(REPLY_PARTITIONS),
            "SLUICE_REDIS__URL": self.redis_url,
            "SLUICE_ADMISSION__PLACEMENT": placement,
            "SLUICE_POOLS": json.dumps([{"name": POOL, "engine": "simulated"}]),
            "SLUICE_MODELS": json.dumps([MODEL_SETTINGS]),
            **extra,
        }  # fmt: skip

    def admission(self, placement: str = "fused", **extra: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return self.process("agents.admission", placement, **extra)

    @contextmanager
    def process(self, module: str, placement: str = "fused", **extra: str) -> Iterator[subprocess.Popen[bytes]]:
        """A running process; killed at the end unless it has ended."""
        log = (self.directory / f"{module}-{uuid.uuid4().hex[:6]}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, env=self.environment(placement, **extra),
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            log.close()

    def logs(self) -> str:
        return "\n".join(path.read_text()[-4_000:] for path in self.directory.glob("*.log"))

    # -- writing

    def request(self, text: str = "Hello there", *, tenant: str = "acme", **fields: object) -> Request:
        response_id = self.ids.mint(3)
        values: dict[str, object] = {
            "response_id": response_id,
            "scope": Scope(tenant_id=tenant, region=self.name, traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
            "model": "default",
            "messages": [message(text)],
            "sampling": Sampling(max_tokens=16),
            "reply_to": ReplyTo(partition=parse_response_id(response_id).partition),
            "accepted_at_ms": now_ms(),
            "deadline_ms": now_ms() + 60_000,
        }
        return Request.model_validate(values | fields)

    def send(self, request: Request, headers: Headers | None = None) -> None:
        value, topic = request.encode(), self.topics.requests.name
        self.put(topic, value, sign_request(SECRET, topic, value) if headers is None else headers, request.response_id)

    def put(self, topic: str, value: bytes, headers: Headers = (), key: str | None = None) -> None:
        self._producer.produce(topic, value, key=key, headers=headers)
        self._producer.poll(0)

    def signed_job(
        self, custom_id: str, body: Mapping[str, object], *, key: Ed25519PrivateKey | None = None, for_ms: int = 60_000
    ) -> tuple[bytes, Headers]:
        value, topic = BatchJob(body=dict(body)).encode(), self.topics.intake_batch.name
        headers = sign_job(
            key or self.producer_key, topic=topic, tenant_id="acme", key_id="producer-1", custom_id=custom_id,
            expires_ms=now_ms() + for_ms, value=value,
        )  # fmt: skip
        return value, headers

    def job(
        self, custom_id: str, body: Mapping[str, object], *, key: Ed25519PrivateKey | None = None, for_ms: int = 60_000
    ) -> None:
        value, headers = self.signed_job(custom_id, body, key=key, for_ms=for_ms)
        self.put(self.topics.intake_batch.name, value, headers, custom_id)

    def beat(self, worker_id: str = "worker-1", **fields: object) -> WorkerState:
        state = WorkerState.model_validate(
            {
                "worker_id": worker_id, "pool": POOL, "model": "sluice-tiny", "engine": "simulated", "state": "ready",
                "beat_at_ms": now_ms(), "lease_ms": 600_000, "home_partitions": [5],
                "lane_partitions": {lane: [2, 6] for lane in Lane},
            } | fields
        )  # fmt: skip
        self.put(self.topics.workers.name, state.encode(), key=worker_id)
        self.flush()
        return state

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    # -- reading

    @contextmanager
    def member_of(self, group: str) -> Iterator[KafkaConsumer]:
        """Reads no partition; sees what the others of its group have committed."""
        with closing(KafkaConsumer(self.kafka, f"{self.name}.{group}", "test-watcher")) as member:
            yield member

    def read(self, timeout_s: float = 0.0) -> Written:
        for record in self._reader.poll(5_000, timeout_s):
            self._take(record)
        return self.written

    def _take(self, record: LogRecord) -> None:
        assert record.value is not None
        written, topic = self.written, record.topic
        if topic == self.topics.generated.name:
            entry = GENERATED.validate_json(record.value)
            if isinstance(entry, Opened):
                written.opened.setdefault(entry.response_id, []).append((record.partition, record.offset, entry))
            elif isinstance(entry, Ending):
                written.endings.setdefault(entry.response_id, []).append((record.partition, entry))
        elif topic == self.topics.verdicts.name:
            verdict = Verdict.model_validate_json(record.value)
            written.verdicts.setdefault(verdict.response_id, []).append(verdict)
        elif topic == self.topics.dead_letters.name:
            written.dead.append(DeadLetter.model_validate_json(record.value))
        else:
            work = AdmittedRequest.model_validate_json(record.value)
            written.admitted.setdefault(work.response_id, []).append((topic, record.partition, work))
            written.admitted_at_ms.setdefault(work.response_id, now_ms())

    def read_until(
        self, concluded: Sequence[str], timeout_s: float = 60, *, dead_letters: int = 0, at_least: int = 0
    ) -> Written:
        """Reads until every one of these responses is in a lane or has an ending, and so many in all."""
        deadline_s = time.monotonic() + timeout_s
        wanted = set(concluded)
        while not (
            wanted <= self.read(0.05).concluded
            and len(self.written.dead) >= dead_letters
            and len(self.written.concluded) >= at_least
        ):
            assert time.monotonic() < deadline_s, (
                f"{len(wanted - self.written.concluded)} of {len(wanted)} have no outcome:\n{self.logs()}"
            )
        return self.written

    def close(self) -> None:
        self._reader.close()
        self.flush()
