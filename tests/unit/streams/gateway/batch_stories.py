"""Batches on stores in memory, run step by step, and killed after any of them; the pipeline is played."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

from schemas.batch import BatchError, BatchResponse, BatchResult, LineCancel
from schemas.request import Request
from streams.blobs.memory import MemoryBlobs
from streams.gateway.batches.core import Batch
from streams.gateway.batches.line_log import LineLog
from streams.gateway.batches.memory import MemoryBatches, MemoryFiles
from streams.gateway.batches.port import LEASE_MS
from streams.gateway.batches.results import Follower
from streams.gateway.batches.run import BatchRun, LostLease, Services
from streams.gateway.batches.told import unpacked
from streams.gateway.files.port import StoredFile, blob_of
from streams.log.memory import MemoryLog
from streams.log.port import Headers, LogRecord
from streams.settings import BatchSettings
from tests.unit.streams.gateway.gateway_stack import Directory, gateway_settings, memory_log

CHAT: Final = "/v1/chat/completions"
_ON_INTAKE: TypeAdapter[Request | LineCancel] = TypeAdapter(
    Annotated[Request | LineCancel, Field(discriminator="type")]
)
SETTINGS = gateway_settings("redis://127.0.0.1:1/0", "story")
Outcome = Callable[[str], str | None]
"""By custom id: the code of the error that a line ends with; None: it is answered."""


class Killed(Exception):
    """The process is gone, without a word."""


def line(custom_id: str, **fields: Any) -> str:
    body = {"model": "tiny", "messages": [{"role": "user", "content": f"Say {custom_id}"}], "max_tokens": 4}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields})


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def result_of(request: Request | LineCancel, code: str | None) -> BatchResult:
    """What post-safety writes of it."""
    result = BatchResult(
        scope=request.scope, id=request.response_id, custom_id=request.reply_to.custom_id or "", response=None
    )
    if code is None:
        assert isinstance(request, Request)
        said = f"You said {request.messages[-1].text}"
        message = {"role": "assistant", "content": said}
        body = {
            "id": request.response_id, "object": "chat.completion", "created": 1, "model": "tiny",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
        }  # fmt: skip
        result.response = BatchResponse(status_code=200, request_id=request.response_id, body=body)
    else:
        result.error = BatchError(code=code, message="It went wrong.", param=None)
    return result


def on_intake(value: bytes) -> Request | LineCancel:
    """A line, or the cancel of one."""
    return _ON_INTAKE.validate_json(value)


class _Sender:
    """What it is given is on the log at once."""

    def __init__(self, log: MemoryLog, seen: Callable[[str, bytes], None]) -> None:
        self._log = log
        self._seen = seen

    def send(
        self, topic: str, value: bytes | None, *, key: str | None = None, partition: int | None = None,
        headers: Headers = (),
    ) -> "asyncio.Future[int]":  # fmt: skip
        self._seen(topic, value or b"")
        sent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        sent.set_result(self._log.append(topic, value, key=key, partition=partition or 0, headers=headers))
        return sent


class StoryResults:
    """Reads in one go what `streams.gateway.batches.results` reads on a thread."""

    def __init__(self, log: MemoryLog, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._follower: Follower | None = None
        self._reached: list[int] = []

    async def ends(self) -> list[int]:
        return [stored.next_offset for stored in self._log.partitions(self._topic)]

    def follow(self, follower: Follower) -> None:
        self._follower = follower
        self._reached = list(follower.positions)

    def leave(self, follower: Follower) -> None:
        if self._follower is follower:
            self._follower = None

    def reached(self, _follower: Follower) -> tuple[int, ...]:
        return tuple(self._reached)

    async def unread(self, _follower: Follower) -> dict[int, int]:
        return {number: end for number, end in enumerate(await self.ends()) if self._reached[number] < end}

    def read(self) -> None:
        for number, offset in enumerate(self._reached):
            for record in self._log.records(self._topic, number)[offset:]:
                self._reached[number] = record.offset + 1
                place = unpacked((record.key or b"").decode())
                if self._follower is not None and place is not None and place.batch_id == self._follower.batch_id:
                    self._follower.take(place, record.value or b"")


class Story:
    """One tenant's batch. `now_ms` is everybody's clock."""

    def __init__(self, *, outcome: Outcome = lambda _: None, **options: Any) -> None:
        self.log = memory_log(SETTINGS)
        self.topics = SETTINGS.topics
        self.now_ms = 1_700_000_000_000
        self.files = MemoryFiles()
        self.files.clock = lambda: self.now_ms
        self.batches = MemoryBatches(self.files)
        self.blobs = MemoryBlobs()
        self.options = BatchSettings(**{"lines_in_flight": 4, **options})
        self.outcome = outcome
        self.answers = True
        """Whether the pipeline answers anything."""
        self.answered: dict[str, int] = {}
        """By response id, how often it ran."""
        self.withdrawn: set[str] = set()
        """Response ids of lines that were cancelled before they ran."""
        self.kills: set[int] = set()
        """At which of all steps that are done the process is killed."""
        self.kill_after = 0
        """After which step it is killed, once."""
        self.steps: list[int] = []
        self.repeated: list[int] = []
        """Lines that were published though they had ended."""
        self._seen_at: set[tuple[int, int]] = set()
        """What the pipeline has read of the intake, by partition and offset."""

    async def upload(self, content: bytes, file_id: str = "file-1", tenant_id: str = "acme") -> StoredFile:
        await self.files.begin(tenant_id, file_id)
        written = await self.blobs.write(blob_of(file_id), once(content))
        file = StoredFile(file_id, tenant_id, "lines.jsonl", "batch", written.size_bytes, written.sha256, 0, None)
        there = await self.files.complete(file, None, None)
        assert there is not None
        return there

    async def create(self, *lines: str, window_ms: int = 3_600_000) -> Batch:
        file = await self.upload("\n".join(lines).encode())
        batch = Batch(
            batch_id="batch_0123", tenant_id="acme", project_id="default", key_id="k1", input_file_id=file.file_id,
            endpoint=CHAT, completion_window="1h", created_at_ms=0, expires_at_ms=0,
        )  # fmt: skip
        return await self.batches.create(batch, window_ms, most_open=10, most_kept=10)

    @property
    def batch(self) -> Batch:
        return self.batches.held("batch_0123").batch

    def _step(self, step: int) -> None:
        self.steps.append(step)
        if len(self.steps) - 1 in self.kills or step == self.kill_after:
            self.kill_after = 0
            raise Killed

    def services(self) -> tuple[Services, StoryResults]:
        """Of a process that has just begun."""
        results = StoryResults(self.log, self.topics.batch_results.name)
        sender = _Sender(self.log, self._seen)
        log = LineLog(SETTINGS, SETTINGS.response_ids, sender, Directory())
        services = Services(
            self.batches, self.files, self.blobs, log, results, self.options, lambda: self.now_ms, self._step,  # type: ignore[arg-type]
        )  # fmt: skip
        return services, results

    def _seen(self, topic: str, value: bytes) -> None:
        if topic == self.topics.intake_batch.name and isinstance(asked := on_intake(value), Request):
            place = unpacked(asked.reply_to.custom_id or "")
            assert place is not None
            if self.batches.held(place.batch_id).progress.has_ended(place.line):
                self.repeated.append(place.line)

    def _published(self) -> list[LogRecord]:
        records = self.log.records(self.topics.intake_batch.name)
        return sorted(records, key=lambda record: record.timestamp_ms)

    def intake(self) -> list[Request | LineCancel]:
        """All that was published there, in order."""
        return [on_intake(record.value or b"") for record in self._published()]

    def requests(self) -> list[Request]:
        """All lines that were published, in order."""
        return [each for each in self.intake() if isinstance(each, Request)]

    def cancels(self) -> list[LineCancel]:
        return [each for each in self.intake() if isinstance(each, LineCancel)]

    def lose_intake(self) -> None:
        """Nobody ever reads what stands on it."""
        self._seen_at |= {(record.partition, record.offset) for record in self._published()}

    def lose_log(self) -> None:
        """Another one stands in its place."""
        self.log = memory_log(SETTINGS)
        self._seen_at.clear()

    def play(self, most: int = 1_000) -> None:
        """The pipeline: each response is decided once, whoever writes it again; its result may come twice."""
        for record in [each for each in self._published() if (each.partition, each.offset) not in self._seen_at][:most]:
            self._seen_at.add((record.partition, record.offset))
            request = on_intake(record.value or b"")
            place = unpacked(request.reply_to.custom_id or "")
            assert place is not None
            if request.response_id in self.answered or request.response_id in self.withdrawn:
                continue
            if isinstance(request, LineCancel):
                self.withdrawn.add(request.response_id)
                value = result_of(request, "cancelled").encode()
            else:
                self.answered[request.response_id] = 1
                value = result_of(request, self.outcome(place.custom_id)).encode()
            for _ in range(1 + place.line % 2):
                key, partition = request.reply_to.custom_id, place.line % self.topics.batch_results.partitions
                self.log.append(self.topics.batch_results.name, value, key=key, partition=partition)

    async def run(self, *, until: Callable[[], bool] = lambda: False, most_steps: int = 2_000) -> None:
        """One process after another, each until it is killed, and as long as the batch is open."""
        for _ in range(most_steps):
            if not self.batch.is_open or until():
                return
            await self._process(until, most_steps)
            self.now_ms += LEASE_MS + 1
        raise AssertionError(f"it does not end: {self.batch}")

    async def _process(self, until: Callable[[], bool], most_steps: int) -> None:
        services, results = self.services()
        for held in await self.batches.claim("gateway", 1):
            with suppress(Killed, LostLease):
                run = BatchRun(held, services)
                for _ in range(most_steps):
                    if until() or not await run.step():
                        break
                    if self.answers:
                        self.play()
                    results.read()
                    self.now_ms += 10
                await run.close()

    async def told(self, file_id: str | None) -> list[dict[str, Any]]:
        """The lines of one of its files."""
        if file_id is None:
            return []
        assert await self.files.one("acme", file_id) is not None
        content = b"".join([piece async for piece in self.blobs.read(blob_of(file_id))])
        return [json.loads(each) for each in content.splitlines()]

    async def ends(self) -> dict[str, list[dict[str, Any]]]:
        """By custom id, what both files say of it."""
        found: dict[str, list[dict[str, Any]]] = {}
        for file_id in (self.batch.output_file_id, self.batch.error_file_id):
            for each in await self.told(file_id):
                found.setdefault(each["custom_id"], []).append(each)
        return found


def custom_ids(count: int) -> list[str]:
    return [f"line-{number}" for number in range(count)]
