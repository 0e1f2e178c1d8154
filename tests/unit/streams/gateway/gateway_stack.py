"""A gateway over the log in memory and a real Redis, with the pipeline behind it played by the test."""

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from schemas.base import Scope
from schemas.control import Cancel
from schemas.endings import EndingCode
from schemas.generated import Kind
from schemas.logprobs import TokenLogprobs
from schemas.request import OnDisconnect, Request
from schemas.responses import Release, Started, Terminal, TokenUsage
from schemas.usage_query import TOKEN_CLASSES, ExportFormat, UsageQuery
from streams.blobs.memory import MemoryBlobs
from streams.clocks import now_ms
from streams.directory import ApiKey, KeyScope, Model, Pool, Tenant
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.service import BatchStores
from streams.gateway.conversations.memory import MemoryConversations
from streams.gateway.history.store import connect_history
from streams.gateway.http.usage_reader import UsageBucket, UsagePage
from streams.gateway.idempotency.memory import MemoryIdempotencyKeys
from streams.gateway.idempotency.port import IdempotencyKeys
from streams.gateway.runtime import GatewayRuntime, GatewayServer, LogClients
from streams.gateway.service.readings import Readings
from streams.gateway.stored.memory import MemoryStoredResponses
from streams.gateway.stored.port import StoredResponses
from streams.ids import parse_response_id
from streams.log.memory import MemoryConsumer, MemoryLog, MemoryProducer
from streams.log.memory.watch import MemoryWatch
from streams.log.port import LogRecord
from streams.settings import GatewaySettings, KafkaSettings, RedisSettings, Settings
from streams.toml_directory import SettingsCatalog
from streams.topics import Partitions
from streams.tracing.tracing import Tracing

KEY, OTHER_KEY = "sk-test-acme", "sk-test-beta"
MODEL_PATH = Path(__file__).parents[4] / "models" / "sluice-tiny"
SECRET = "s" * 32
Strands = Sequence[tuple[Kind, int] | tuple[Kind, int, int]]
"""Per token the kind of its row, and its call; and its choice, if that is not the first."""
PATIENCE_S = 0.002
"""How long a client of the log in memory waits where Kafka's would wait for something to happen."""


def tenant(tenant_id: str, api_key: str) -> Tenant:
    return Tenant(
        tenant_id=tenant_id, api_keys=[ApiKey(key_id="k1", sha256=hashlib.sha256(api_key.encode()).hexdigest())]
    )


class Directory:
    """Two tenants, each with one key."""

    def __init__(self) -> None:
        self._tenants = {KEY: tenant("acme", KEY), OTHER_KEY: tenant("beta", OTHER_KEY)}
        self.revoked: set[str] = set()

    def tenant(self, tenant_id: str) -> Tenant | None:
        for api_key, found in self._tenants.items():
            if found.tenant_id == tenant_id:
                keys = [key.model_copy(update={"revoked": api_key in self.revoked}) for key in found.api_keys]
                return found.model_copy(update={"api_keys": keys})
        return None

    def narrow(self, api_key: str, *scopes: KeyScope) -> None:
        """Its key may be used for these alone from now on."""
        narrowed = [key.model_copy(update={"scopes": [*scopes]}) for key in self._tenants[api_key].api_keys]
        self._tenants[api_key] = self._tenants[api_key].model_copy(update={"api_keys": narrowed})

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        found = self._tenants.get(api_key)
        return None if found is None or api_key in self.revoked else (found, found.api_keys[0])

    def producer_key(self, tenant_id: str, key_id: str) -> None:
        return None

    def tenants(self) -> list[Tenant]:
        return list(self._tenants.values())


class Usage:
    """Remembers what it was asked, and always tells the same; of line items, that there is one."""

    def __init__(self) -> None:
        self.asked: list[UsageQuery] = []
        self.next_start: int | None = None

    async def usage(self, query: UsageQuery) -> UsagePage:
        self.asked.append(query)
        figures = {"requests": 3, **dict.fromkeys(TOKEN_CLASSES, 7), "suspense_events": 0}
        if "line_item" in query.group_by:
            figures = {"quantity": 7}
        groups = {**{name: f"a {name}" for name in query.group_by}, "currency": "USD", "lane": "batch", "batch": True}
        result = {name: groups[name] for name in query.group_by} | figures | {"cost_pico": "13800000"}
        bucket = UsageBucket(start_time=query.start_time, end_time=query.end_time, estimate=True, results=[result])
        return UsagePage(
            data=[bucket], next_start=self.next_start, finalized_through=query.end_time * 1_000, lag_records=0
        )

    async def export(self, query: UsageQuery, file_format: ExportFormat) -> bytes:
        self.asked.append(query)
        return f"a {file_format} file".encode()


_BALANCE = threading.RLock()
"""The log in memory is single-threaded, and gateways that share one balance it from a thread each."""


class PatientConsumer(MemoryConsumer):
    """Waits a moment when there is nothing, as a thread that polls needs it."""

    def poll(self, max_records: int, timeout_s: float) -> list[LogRecord]:
        with _BALANCE:
            records = super().poll(max_records, timeout_s)
        if not records:
            time.sleep(min(timeout_s, PATIENCE_S))
        return records


class PatientProducer(MemoryProducer):
    """Waits a moment when it has nothing to report: the thread that polls it does nothing else."""

    def poll(self, timeout_s: float = 0.0) -> int:
        reported = super().poll(timeout_s)
        if not reported:
            time.sleep(min(timeout_s, PATIENCE_S))
        return reported


class MemoryClients:
    def __init__(self, log: MemoryLog, gateway_id: str = "gateway-1") -> None:
        self.log = log
        self._gateway_id = gateway_id

    def producer(self) -> Any:
        return PatientProducer(self.log, self._gateway_id, 100_000)

    def member(self) -> Any:
        return PatientConsumer(self.log, "gateways", self._gateway_id, "earliest")

    def reader(self) -> Any:
        return PatientConsumer(self.log, None, f"{self._gateway_id}-reader", "earliest")

    def watch(self) -> Any:
        return MemoryWatch(self.log)

    def follower(self) -> Any:
        return PatientConsumer(self.log, None, f"{self._gateway_id}-follower", "earliest")

    def asker(self) -> Any:
        return PatientConsumer(self.log, "gateways", f"{self._gateway_id}-asker", "earliest")


def gateway_settings(redis_url: str, region: str, **gateway: Any) -> Settings:
    edge = {"port": 0, "history_flush_ms": 20, "admission_timeout_ms": 20_000, **gateway}
    return Settings(
        region=region,
        deployment_secret=SECRET,
        kafka=KafkaSettings(partitions=Partitions(responses=2, requests=2)),
        redis=RedisSettings(url=redis_url),
        gateway=GatewaySettings.model_validate(edge),
        models=[Model(name="tiny", aliases=["small"], path=str(MODEL_PATH), pool="default", context_window=2_048)],
        pools=[Pool(name="default", engine="simulated")],
    )


class Pipeline:
    """Plays admission to post-safety: reads `requests`, writes `responses`."""

    def __init__(self, log: MemoryLog, settings: Settings) -> None:
        self.log = log
        self.topics = settings.topics
        self._read: set[str] = set()

    def requests(self) -> list[Request]:
        return [Request.model_validate_json(r.value or b"") for r in self.log.records(self.topics.requests.name)]

    def pass_over(self) -> None:
        """Whatever was asked so far is not asked for any more: another gateway's pipeline has answered it."""
        self._read = {request.response_id for request in self.requests()}

    async def next_request(self) -> Request:
        """The next one that was not asked for yet."""

        def fresh() -> list[Request]:
            return [request for request in self.requests() if request.response_id not in self._read]

        await until(fresh, "a request arrives")
        found = min(fresh(), key=lambda request: request.accepted_at_ms)
        self._read.add(found.response_id)
        return found

    def cancels(self) -> list[Cancel]:
        return [Cancel.model_validate_json(r.value or b"") for r in self.log.records(self.topics.control.name)]

    def write(self, response_id: str, record: Started | Release | Terminal) -> None:
        partition = parse_response_id(response_id).partition
        self.log.append(self.topics.responses.name, record.encode(), key=response_id, partition=partition)

    def start(self, request: Request, **fields: Any) -> None:
        """With what admission and post-safety repeat of the request."""
        repeated = {"endpoint": request.endpoint, "choices": request.choices, "echo": request.echo}
        record = started(request.response_id, request.scope, request.on_disconnect, **{**repeated, **fields})
        self.write(request.response_id, record)

    def release(
        self, request: Request, first: int, tokens: Sequence[str], strands: Strands | None = None, *,
        likeliest: int | None = None,
    ) -> None:  # fmt: skip
        told = release(request.response_id, request.scope, first, tokens, strands, likeliest=likeliest)
        self.write(request.response_id, told)

    def say(self, request: Request, first: int, kind: Kind, *tokens: str, call: int = 0) -> None:
        """Tokens of one kind and call."""
        self.release(request, first, tokens, [(kind, call)] * len(tokens))

    def end(self, request: Request, sequence: int, code: EndingCode = EndingCode.COMPLETED, **fields: Any) -> None:
        self.write(request.response_id, terminal(request.response_id, request.scope, sequence, code, **fields))

    async def answer(self, tokens: Sequence[str], **started: Any) -> Request:
        """Answers the next request in full."""
        request = await self.next_request()
        self.start(request, **started)
        for number, token in enumerate(tokens, 1):
            self.release(request, number, [token], likeliest=request.sampling.logprobs)
        self.end(request, len(tokens) + 1)
        return request

    async def ends(self, code: EndingCode, *tokens: str, kind: Kind = "content", **fields: Any) -> Request:
        """Ends the next request so; it has started if anything is said."""
        request = await self.next_request()
        if tokens:
            self.start(request)
            self.say(request, 1, kind, *tokens)
        self.end(request, len(tokens) + 1, code, **fields)
        return request


def started(response_id: str, scope: Scope, on_disconnect: OnDisconnect = "continue", **fields: Any) -> Started:
    return Started(
        response_id=response_id, scope=scope, requested_model="small", lane="standard", pool="default",
        prompt_tokens=4, accepted_at_ms=now_ms(), deadline_ms=now_ms() + 60_000, on_disconnect=on_disconnect,
        **{"model": "tiny", **fields},
    )  # fmt: skip


def release(
    response_id: str, scope: Scope, first: int, tokens: Sequence[str], strands: Strands | None = None, *,
    likeliest: int | None = None,
) -> Release:  # fmt: skip
    """A row for each run of tokens of one kind, call and choice: all of them content where nothing else is said. With
    `likeliest` that many are told with each token of content.
    """
    each = zip(tokens, strands or [("content", 0)] * len(tokens), strict=True)
    runs = [(strand, [token for token, _ in run]) for strand, run in groupby(each, itemgetter(1))]
    rows, lengths = len(runs), [len(run) for _, run in runs]
    firsts = [first + sum(lengths[:row]) for row in range(rows)]
    logprobs = None if likeliest is None else [
        None if kind != "content" else [likely(token, number, likeliest) for number, token in enumerate(run, begin)]
        for ((kind, *_), run), begin in zip(runs, firsts, strict=True)
    ]  # fmt: skip
    return Release(
        scopes=[scope], scope=[0] * rows, response_id=[response_id] * rows,
        choice=[strand[2] if len(strand) == 3 else 0 for strand, _ in runs],
        first_sequence=firsts, kind=[strand[0] for strand, _ in runs],
        text=["".join(run) for _, run in runs], text_ends=[[*accumulate(map(len, run))] for _, run in runs],
        emitted_at_us=[time.time_ns() // 1_000] * rows, call=strands and [strand[1] for strand, _ in runs],
        logprobs=logprobs,
    )  # fmt: skip


def likely(token: str, number: int, likeliest: int) -> TokenLogprobs:
    """What is told of a token with that number: itself, and so many beside it."""
    own = token.encode().decode("latin-1")
    return [(own, -number / 8), *[(f"{own}{rank}", -rank / 8) for rank in range(likeliest)]]


def terminal(
    response_id: str, scope: Scope, sequence: int, code: EndingCode = EndingCode.COMPLETED, **fields: Any
) -> Terminal:
    usage = TokenUsage(prompt_tokens=4, cached_tokens=1, completion_tokens=sequence - 1)
    reasons = fields.pop("finish_reasons", ["stop"] if code is EndingCode.COMPLETED else [])
    return Terminal(
        response_id=response_id, scope=scope, sequence_number=sequence, code=code, finish_reasons=reasons, usage=usage,
        ended_at_ms=now_ms(), **{"model": "tiny", **fields},
    )  # fmt: skip


def unread(monkeypatch: pytest.MonkeyPatch, *partitions: int) -> None:
    """These are neither a gateway's nor can it follow them from now on, as while the log is away."""
    of, wanted = Readings.of, Readings.wanted
    monkeypatch.setattr(Readings, "of", lambda self, each: None if each in partitions else of(self, each))
    monkeypatch.setattr(Readings, "wanted", lambda self, each: each not in partitions and wanted(self, each))


async def until(condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(0.005)


class Stack:
    """A served gateway and what stands behind it."""

    def __init__(
        self, settings: Settings, log: MemoryLog, runtime: GatewayRuntime, server: GatewayServer, directory: Directory,
        usage: Usage,
    ) -> None:  # fmt: skip
        self.running: asyncio.Future[None]
        self.settings = settings
        self.server = server
        self.log = log
        self.runtime = runtime
        self.directory = directory
        self.usage = usage
        self.pipeline = Pipeline(log, settings)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def websocket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    def has_released(self, request: Request) -> bool:
        """The gateway has read text of it; memory may have let go of it since."""
        stream = self.runtime.hub.get(request.response_id)
        return stream is not None and (stream.next_sequence or 1) > 1


def memory_log(settings: Settings) -> MemoryLog:
    log = MemoryLog(now_ms)
    for topic in settings.topics.all([]):
        log.create_topic(topic.name, topic.partitions)
    return log


def batch_stores(keys: IdempotencyKeys | None = None) -> BatchStores:
    files = MemoryFiles()
    return BatchStores(files, MemoryBatches(files, keys=_in_memory(keys)), MemoryBlobs())


def _in_memory(keys: IdempotencyKeys | None) -> MemoryIdempotencyKeys | None:
    return keys if isinstance(keys, MemoryIdempotencyKeys) else None


@asynccontextmanager
async def serving(
    settings: Settings, log: MemoryLog, *, clients: LogClients | None = None, disconnect_grace_ms: int = 50,
    elsewhere_grace_ms: int = 50, tracing: Tracing | None = None, stored: StoredResponses | None = None,
    keys: IdempotencyKeys | None = None, batches: BatchStores | None = None, leave_s: float = 0,
) -> AsyncIterator[Stack]:  # fmt: skip
    """A gateway on a free port until the block ends; with `clients` on another log than the one in memory, with
    `stored`, `keys` and `batches` on stores that others have too.
    """
    directory, usage = Directory(), Usage()
    keys = MemoryIdempotencyKeys() if keys is None else keys
    responses = MemoryStoredResponses() if stored is None else stored
    in_memory = responses if isinstance(responses, MemoryStoredResponses) else MemoryStoredResponses()
    runtime = GatewayRuntime(
        settings, clients=clients or MemoryClients(log, settings.gateway.gateway_id),
        redis=connect_history(settings.redis), directory=directory, catalog=SettingsCatalog(settings),
        usage=usage, stored=responses, registry=CollectorRegistry(),
        conversations=MemoryConversations(in_memory, _in_memory(keys)), keys=keys, tracing=tracing,
        batches=batches or batch_stores(keys),
        disconnect_grace_ms=disconnect_grace_ms, elsewhere_grace_ms=elsewhere_grace_ms,
    )  # fmt: skip
    stall_s = settings.gateway.viewer_stall_ms / 1_000
    server = GatewayServer(
        runtime.server_config, runtime.stop, stall_s=stall_s, leave=runtime.gateway.leave, leave_s=leave_s
    )
    stack = Stack(settings, log, runtime, server, directory, usage)
    await runtime.start()
    running = stack.running = asyncio.ensure_future(runtime.run())
    serve = asyncio.ensure_future(server.serve())
    try:
        await until(lambda: server.started and runtime.pump.owned, "the gateway is ready")
        stack.port = server.port
        yield stack
    finally:
        server.stop_soon()
        await serve
        running.cancel()
        await asyncio.wait((running,))
        await runtime.close()
    if not running.cancelled():
        running.result()
