"""A whole world of stages in memory: tenants, a model, a tokenizer of words, quota by its model, a log of lists."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jinja2 import TemplateError
from pydantic import TypeAdapter

from agents.admission.pipeline import Pipeline
from agents.admission.publisher import PublishFailed, PublishTooLarge
from agents.admission.routing import QueueBound, WorkersView
from agents.admission.services import Services
from agents.safety.prompt_policies import PromptPolicies
from schemas.base import Record, Scope
from schemas.batch import BatchJob
from schemas.dead_letter import DeadLetter
from schemas.generated import Ending, Opened, Source
from schemas.request import LANES, AdmittedRequest, Message, ReplyTo, Request, Sampling, TextPart, Tool
from schemas.verdict import Verdict
from schemas.worker import WorkerState
from streams.directory import ApiKey, Embedding, Limits, Model, Pool, ProducerKey, Tenant
from streams.ids import ResponseIds, parse_response_id
from streams.log.port import Headers, LogRecord
from streams.safety_policy import SafetyPolicy
from streams.signing import sign_job, sign_request
from streams.topics import Topics
from tests.unit.agents.quota.quota_model import ModelQuota

NOW = 1_790_000_000_000
SECRET = b"s" * 32
IDS = ResponseIds("local", [SECRET])
PRODUCER_KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC_KEY = base64.b64encode(
    PRODUCER_KEY.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
).decode()
RESPONSE = "resp_local-3_018f3c2e9d7a7b4e8c1d2e3f4a5b6c7d"


VAULT, SPECIAL = 900, 999
"""Tokens: the first of three that the tenant denies in this order, and one that is no text. Behind the three stands the
second of them again, without the space in front of it."""
OPEN_THE_VAULT = [VAULT, VAULT + 1, VAULT + 2]


R = TypeVar("R", bound=Record)
_ANY: TypeAdapter[Opened | Ending | AdmittedRequest | DeadLetter | Verdict] = TypeAdapter(
    Opened | Ending | AdmittedRequest | DeadLetter | Verdict
)


class Words:
    """One token per word, and three of the template. The template does not take an assistant's turn at the end.

    A raw prompt has one token in front of its words. Token ids below `VAULT` are told as words of that length.
    """

    vocabulary_size = 1_000

    def encode_chat(self, messages: Sequence[Message], *, tools: Sequence[Tool], at_most: int) -> list[int]:
        if messages[-1].role == "assistant":
            raise TemplateError("the last turn must be the user's")
        return [0, 0, 0, *(len(word) for message in messages for word in message.text.split())]

    def encode_prompt(self, text: str, *, at_most: int) -> list[int]:
        return [1, *(len(word) for word in text.split())]

    def readings(self, token_ids: Sequence[int]) -> Sequence[str]:
        return [self._read(token_ids, special) for special in ("<|end|>", "", " ")]

    def _read(self, token_ids: Sequence[int], special: str) -> str:
        words = {SPECIAL: special}
        words |= {VAULT + i: word for i, word in enumerate((" open", " the", " vault", "the"))}
        return "".join(words.get(token_id, " " + "w" * token_id) for token_id in token_ids)


class Directory:
    def __init__(self, *tenants: Tenant) -> None:
        self.all = {tenant.tenant_id: tenant for tenant in tenants}

    def tenant(self, tenant_id: str) -> Tenant | None:
        return self.all.get(tenant_id)

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        raise NotImplementedError

    def producer_key(self, tenant_id: str, key_id: str) -> ProducerKey | None:
        tenant = self.tenant(tenant_id)
        return next((key for key in tenant.producer_keys if key.key_id == key_id), None) if tenant else None

    def tenants(self) -> list[Tenant]:
        return list(self.all.values())


class Catalog:
    def __init__(self, *models: Model, pools: Sequence[str]) -> None:
        self._models = models
        self._pools = {name: Pool(name=name, engine="simulated") for name in pools}

    def model(self, name_or_alias: str) -> Model | None:
        return next((m for m in self._models if name_or_alias in (m.name, *m.aliases)), None)

    def models(self) -> list[Model]:
        return list(self._models)

    def pool(self, name: str) -> Pool:
        return self._pools[name]

    def pools(self) -> list[Pool]:
        return list(self._pools.values())

    def change_model(self, name: str, **fields: object) -> None:
        self._models = tuple(m.model_copy(update=fields) if m.name == name else m for m in self._models)

    def drop_model(self, name: str) -> None:
        self._models = tuple(m for m in self._models if m.name != name)

    def change_pool(self, name: str, **fields: object) -> None:
        self._pools[name] = self._pools[name].model_copy(update=fields)


@dataclass
class Log:
    """Keeps what is published, in order. `fail_after`: so many writes succeed, then none; `max_bytes`: of a record."""

    topics: Topics
    records: list[LogRecord] = field(default_factory=list)
    fail_after: int | None = None
    max_bytes: int = 4_194_304

    async def publish(self, topic: str, value: bytes, *, key: str, partition: int | None = None) -> int:
        if self.fail_after is not None and len(self.records) >= self.fail_after:
            raise PublishFailed("scripted")
        if len(value) > self.max_bytes:
            raise PublishTooLarge("scripted")
        offset = sum(record.topic == topic and record.partition == (partition or 0) for record in self.records)
        self.records.append(LogRecord(topic, partition or 0, offset, key.encode(), value, (), NOW))
        return offset

    async def note(self, topic: str, value: bytes, *, key: str) -> int:
        return await self.publish(topic, value, key=key)

    def of(self, kind: type[R], topic: str) -> list[tuple[LogRecord, R]]:
        entries = [
            (record, _ANY.validate_json(record.value or b"")) for record in self.records if record.topic == topic
        ]
        return [(record, entry) for record, entry in entries if isinstance(entry, kind)]

    @property
    def endings(self) -> list[Ending]:
        return [entry for _, entry in self.of(Ending, self.topics.generated.name)]

    @property
    def dead(self) -> list[DeadLetter]:
        return [entry for _, entry in self.of(DeadLetter, self.topics.dead_letters.name)]

    @property
    def kinds(self) -> list[str]:
        """Topics in the order of writing, without the region."""
        return [record.topic.removeprefix("local.") for record in self.records]


class World:
    """`now_ms` is everybody's clock; Unix time is `set_back_ms` behind it."""

    def __init__(
        self, max_attempts: int = 3, queue_bound: QueueBound = QueueBound(10**6, 10**4),
        prefix_load_excess: float = 0.25, pools: Sequence[str] = ("default", "other"), max_moves: int = 0,
    ) -> None:  # fmt: skip
        self.now_ms = NOW
        self.set_back_ms = 0
        self.topics = Topics("local", pools)
        self.read: dict[Source, bytes] = {}
        """Records of `requests` that have come, for who reads them again."""
        self.directory = Directory(
            Tenant(
                tenant_id="acme", tier="paid", limits=Limits(max_output_tokens=50, tokens_per_minute=500),
                policy=SafetyPolicy(version=7, prompt_deny=["open the vault"]),
                models=["tiny", "big", "elsewhere", "embed", "fixed"],
                producer_keys=[ProducerKey(key_id="p1", public_key=PUBLIC_KEY)],
            ),
            Tenant(tenant_id="gold", tier="premium", limits=Limits(max_output_tokens=2_000)),
        )  # fmt: skip
        self.catalog = Catalog(
            Model(name="tiny", aliases=["default"], path="unused", pool="default", context_window=100),
            Model(name="big", aliases=["best"], path="unused", pool="other", context_window=100, fallback="tiny"),
            Model(name="secret", path="unused", pool="default", context_window=100),
            Model(name="elsewhere", path="unused", pool="other", context_window=100),
            Model(
                name="embed", path="unused", pool="other", context_window=100,
                embedding=Embedding(dimensions=128, shorter=[64, 32]),
            ),
            Model(
                name="fixed", path="unused", pool="other", context_window=100_000, embedding=Embedding(dimensions=1_024)
            ),
            pools=self.topics.pools,
        )  # fmt: skip
        self.quota = ModelQuota(NOW)
        self.workers = WorkersView()
        self.log = Log(self.topics)
        self.recoveries = 0
        self.services = Services(
            topics=self.topics, request_secrets=[SECRET], pseudonym_secret=SECRET, ids=IDS,
            directory=self.directory, catalog=self.catalog,
            tokenizers={name: Words() for name in ("tiny", "big", "secret", "elsewhere", "embed", "fixed")},
            quota=self.quota, workers=self.workers,
            queue_bound=queue_bound, prompt_policies=PromptPolicies(), trust_window_ms=300_000,
            clock_ms=lambda: self.now_ms - self.set_back_ms, prefix_load_excess=prefix_load_excess,
            max_moves=max_moves, read_source=self._read_source,
        )  # fmt: skip
        self.pipeline = Pipeline(
            self.services, self.log, self._recover, max_attempts, sleep=self._sleep, monotonic_ms=lambda: self.now_ms
        )

    async def _read_source(self, source: Source) -> bytes | None:
        return self.read.get(source)

    async def _recover(self) -> None:
        self.recoveries += 1

    async def _sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1_000)
        self.quota.now_ms = self.now_ms

    def change(self, tenant_id: str = "acme", **fields: object) -> None:
        """The operator edits the tenants file."""
        self.directory.all[tenant_id] = self.directory.all[tenant_id].model_copy(update=fields)

    def limit(self, **limits: int) -> None:
        """Of `acme`, beside those that it has."""
        self.change(limits=self.directory.all["acme"].limits.model_copy(update=limits))

    def beat(self, worker_id: str = "worker-1", **fields: object) -> None:
        values: dict[str, object] = {
            "worker_id": worker_id, "pool": "default", "model": "tiny", "engine": "simulated", "state": "ready",
            "beat_at_ms": self.now_ms, "lease_ms": 4_000, "home_partitions": [5],
            "lane_partitions": {lane: [2] for lane in LANES},
        }  # fmt: skip
        self.workers.update(worker_id, WorkerState.model_validate(values | fields))

    def request(self, text: str = "hello there", *, tenant: str = "acme", **fields: object) -> Request:
        values: dict[str, object] = {
            "response_id": RESPONSE, "scope": Scope(tenant_id=tenant, traceparent="00-trace"), "model": "default",
            "messages": [Message(role="user", content=[TextPart(text=text)])], "sampling": Sampling(max_tokens=10),
            "accepted_at_ms": NOW, "deadline_ms": NOW + 60_000,
        }  # fmt: skip
        values |= fields
        response_id = str(values["response_id"])
        values.setdefault("reply_to", ReplyTo(partition=parse_response_id(response_id).partition))
        return Request.model_validate(values)

    def record(self, request: Request, headers: Headers | None = None) -> LogRecord:
        value, topic = request.encode(), self.topics.requests.name
        signed = sign_request(SECRET, topic, value) if headers is None else headers
        self.read[Source(topic=topic, partition=1, offset=41)] = value
        return LogRecord(topic, 1, 41, request.response_id.encode(), value, tuple(signed), NOW + 2)

    async def crash_after(self, record: LogRecord, writes: int) -> None:
        """A delivery that writes so many records and dies; the log takes more again afterwards."""
        self.log.fail_after = writes
        with pytest.raises(PublishFailed):
            await self.pipeline.handle_request(record)
        self.log.fail_after = None

    def store_calls(self) -> list[str]:
        """Which operations of the store are asked for from now on, in order."""
        calls: list[str] = []

        def noted(name: str, method: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
            async def call(*arguments: object, **named: object) -> object:
                calls.append(name)
                return await method(*arguments, **named)

            return call

        for name in ("reserve", "decide", "refuse"):
            setattr(self.quota, name, noted(name, getattr(self.quota, name)))
        return calls

    async def submit(self, *jobs: LogRecord) -> None:
        """Producers' jobs, and what becomes of them in the queues, until nothing waits in a queue any more."""
        read = len(self.log.records)
        for job in jobs:
            await self.pipeline.handle_job(job)
        while read < len(self.log.records):
            record = self.log.records[read]
            read += 1
            if record.topic.startswith(("local.admission.jobs.", "local.admission.aside")):
                await self.pipeline.handle_queued_job(record)

    def job(
        self, body: dict[str, object] | bytes | None = None, *, custom_id: str = "line-1", tenant_id: str = "acme",
        key_id: str = "p1", expires_ms: int = NOW + 600_000, key: Ed25519PrivateKey = PRODUCER_KEY, offset: int = 9,
    ) -> LogRecord:  # fmt: skip
        if not isinstance(body, bytes):
            default = {"model": "default", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 10}
            body = BatchJob(body=default if body is None else body).encode()
        topic = self.topics.intake_batch.name
        headers = sign_job(
            key, topic=topic, tenant_id=tenant_id, key_id=key_id, custom_id=custom_id, expires_ms=expires_ms,
            value=body,
        )  # fmt: skip
        return LogRecord(topic, 2, offset, custom_id.encode(), body, tuple(headers), NOW)
