"""How soon a response that is ended early leaves the engine: from the act until its blocks are free, by way.

Streams run on the whole stack, with the simulated engine; one after the other is cancelled, edited, left, or ends by
its deadline or a phrase that its tenant forbids; phrases also many in one step. A phrase stands from the token behind
it on, since words are forbidden whole: before that it may become a longer one. In the turn in which the engine drops it
the worker writes its ending, which says when that was (`stage_ms`). What others have ended it stops in silence: then it
is when the attempt's account had come to `usage`, by the broker's clock, which is later by the way there. vLLM drops it
with its next step, which is measured beside that, on an engine alone.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic, sleep, time

import aiohttp
import orjson

from benchmarks.engine_throughput import ENGINE_ARGS, question
from benchmarks.figures import Report, percentile
from benchmarks.spoken import chat_body
from benchmarks.stacks import MODEL, MODEL_PATH, metrics_of, records_of, running_stack
from deploy.local.runner import Stack, simulated
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.vllm_engine import VllmEngine
from schemas.control import CONTROL, Cancel
from schemas.endings import ENDINGS, EndingCode
from schemas.generated import GENERATED, Ending, Frame, Opened
from schemas.request import Message, Sampling, TextPart
from schemas.usage import USAGE, ComputeRecord, UsageEvent
from streams.chat_tokenizer import ChatTokenizer

PHRASE = "the silver dragon"
"""That the tenant `guarded` of a fresh stack forbids."""
PHRASE_STANDS = f"{PHRASE}."
"""With the token behind it: from there on nothing makes it another one."""
SCRIPT = "Nobody knew who lived behind the hill, and everybody told another story of it. " * 20 + f"It was {PHRASE}. "
"""Longer than it takes until all streams have begun, one after the other."""
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 20.0, "step_ms": 20.0, "kv_blocks": 262_144, "script": SCRIPT,
}  # fmt: skip
DEADLINE_MS = 15_000
"""Of every response: who is ended in another way is ended long before."""
ACTS_PER_S = 20.0
BEGUN = 10
"""Tokens of each stream, before anything is done to one."""
MAX_TOKENS = 3_000
GOAL_MS = 50.0
END_TIMEOUT_S = 60.0
ACCOUNTS_TIMEOUT_S = 30.0
HEARTBEAT_LOOK_S = 0.1
VLLM_STREAMS = 16
VLLM_LOOK_S = 0.001


@dataclass(slots=True)
class _Stream:
    """`acted_at_ms`: Unix time, of what is to end it."""

    socket: aiohttp.ClientWebSocketResponse
    response_id: str = ""
    told: int = 0
    acted_at_ms: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    code: str = ""
    """Of its terminal; empty as long as none has come."""

    async def ask(self, number: int, delay_s: float, **fields: object) -> None:
        await asyncio.sleep(delay_s)
        body = chat_body(MODEL, f"Story {number}, please.", MAX_TOKENS, ignore_eos=True, on_disconnect="cancel")
        await self.send({"type": "request", "request_id": "1", "body": body | fields})
        async for frame in self.socket:
            message = orjson.loads(frame.data)
            self._hear(message)
            if self.code:
                return

    def _hear(self, message: dict[str, object]) -> None:
        kind = message["type"]
        if kind == "accepted" and not self.response_id:
            self.response_id = str(message["response_id"])
        elif message.get("response_id") != self.response_id:
            return  # what came of an edit
        elif kind == "delta":
            self.told = int(str(message["sequence_number"]))
            if self.told >= BEGUN:
                self.begun.set()
        elif kind == "terminal":
            self.code = str(message["code"])
            self.begun.set()

    async def send(self, message: dict[str, object]) -> None:
        await self.socket.send_str(orjson.dumps(message).decode())


_Act = Callable[[aiohttp.ClientSession, _Stream], Awaitable[None]]


async def _cancel_over_http(session: aiohttp.ClientSession, stream: _Stream) -> None:
    async with session.post(f"/v1/responses/{stream.response_id}/cancel") as answer:
        answer.raise_for_status()


async def _cancel_on_socket(_session: aiohttp.ClientSession, stream: _Stream) -> None:
    await stream.send({"type": "cancel", "response_id": stream.response_id})


async def _edit(_session: aiohttp.ClientSession, stream: _Stream) -> None:
    body = chat_body(MODEL, "Another one, please.", 4, ignore_eos=True)
    await stream.send({"type": "edit", "request_id": "2", "response_id": stream.response_id, "body": body})


async def _leave(_session: aiohttp.ClientSession, stream: _Stream) -> None:
    await stream.socket.close()


async def _wait(_session: aiohttp.ClientSession, _stream: _Stream) -> None:
    """It ends by itself."""


@dataclass(frozen=True, slots=True)
class _Way:
    name: str
    act: _Act
    code: EndingCode
    tenant: str = "demo"
    begins_in_turn: bool = False
    """For what happens at one place of every stream: so it happens in turn."""


WAYS = (
    _Way("a cancel over HTTP", _cancel_over_http, EndingCode.CANCELLED),
    _Way("a cancel on a socket", _cancel_on_socket, EndingCode.CANCELLED),
    _Way("an edit", _edit, EndingCode.CANCELLED),
    _Way("a viewer who left", _leave, EndingCode.CANCELLED),
    _Way("a phrase", _wait, EndingCode.SAFETY_HALTED, "guarded", begins_in_turn=True),
    _Way("a phrase, of all at once", _wait, EndingCode.SAFETY_HALTED, "guarded"),
    _Way("a deadline", _wait, EndingCode.DEADLINE_EXCEEDED),
)


async def _end_all(stack: Stack, way: _Way, count: int, rng: random.Random) -> list[_Stream]:
    """So many streams run; then one after the other is ended while the others go on."""
    headers = {"Authorization": f"Bearer {stack.api_key(way.tenant)}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(stack.gateway_url, connector=connector, headers=headers) as session:
        sockets = [await session.ws_connect("/v1/stream", compress=0, max_msg_size=0) for _ in range(count)]
        streams = [_Stream(socket) for socket in sockets]
        fields = {"store": True} if way.act is _edit else {}
        moments_s = [(slot + rng.random()) / ACTS_PER_S for slot in range(count)]
        begin_s = moments_s if way.begins_in_turn else [0.0] * count
        clients = [
            asyncio.create_task(stream.ask(number, delay_s, **fields))
            for number, (stream, delay_s) in enumerate(zip(streams, begin_s, strict=True))
        ]
        async with asyncio.timeout(END_TIMEOUT_S):
            await asyncio.gather(*(stream.begun.wait() for stream in streams))

            async def end(stream: _Stream, delay_s: float) -> None:
                await asyncio.sleep(delay_s)
                stream.acted_at_ms = time() * 1_000
                await way.act(session, stream)

            await asyncio.gather(*map(end, streams, moments_s))
            await asyncio.gather(*clients)
    return streams


class _Told:
    """What the log says of responses, by their ids."""

    def __init__(self) -> None:
        self.freed_at_ms: dict[str, int] = {}
        self.computed: dict[str, ComputeRecord] = {}
        self.usage: defaultdict[str, list[UsageEvent]] = defaultdict(list)
        self.asked_at_ms: dict[str, int] = {}
        self.deadline_ms: dict[str, int] = {}
        self.said_at_ms: dict[str, float] = {}
        """When the phrase stood."""
        self._text: defaultdict[str, str] = defaultdict(str)

    def read(self, stack: Stack) -> None:
        topics = stack.plan.settings.topics
        for record in records_of(stack, topics.usage.name, END_TIMEOUT_S):
            usage = USAGE.validate_json(record.value or b"")
            if isinstance(usage, UsageEvent):
                self.usage[usage.response_id].append(usage)
            elif isinstance(usage, ComputeRecord):
                self.computed[usage.response_id] = usage
                self.freed_at_ms[usage.response_id] = record.timestamp_ms
        for record in records_of(stack, topics.control.name, END_TIMEOUT_S):
            control = CONTROL.validate_json(record.value or b"")
            if isinstance(control, Cancel):
                self.asked_at_ms.setdefault(control.response_id, control.requested_at_ms)
        for record in records_of(stack, topics.generated.name, END_TIMEOUT_S):
            told = GENERATED.validate_json(record.value or b"")
            if isinstance(told, Opened):
                self.deadline_ms[told.response_id] = told.deadline_ms
            elif isinstance(told, Ending) and told.written_by == "worker":
                self.freed_at_ms[told.response_id] = told.stage_ms["worker"]
            elif isinstance(told, Frame):
                self._hear(told)

    def _hear(self, frame: Frame) -> None:
        for response_id, text in zip(frame.response_id, frame.text, strict=True):
            if response_id in self.said_at_ms:
                continue
            # A phrase may be torn between rows: so much of the text before is kept.
            self._text[response_id] = self._text[response_id][-len(PHRASE_STANDS) :] + text
            if PHRASE_STANDS in self._text[response_id]:
                self.said_at_ms[response_id] = frame.emitted_at_us / 1_000

    def is_accounted(self, stream: _Stream, code: EndingCode) -> bool:
        """Once, by the rule of its ending, with no token less than its viewer was told."""
        response_id = stream.response_id
        if response_id not in self.freed_at_ms or len(self.usage[response_id]) != 1:
            return False
        [event] = self.usage[response_id]
        generated = self.computed[response_id].generated_tokens
        return (
            event.ending is code
            and event.billable == ENDINGS[code].billed
            and stream.told <= event.released_tokens <= event.output_tokens <= generated
        )


def _read_when_accounted(stack: Stack, streams: Sequence[_Stream]) -> _Told:
    """Accounts come a moment after what clients are told."""
    deadline_s = monotonic() + ACCOUNTS_TIMEOUT_S
    while True:
        told = _Told()
        told.read(stack)
        if all(stream.response_id in told.freed_at_ms and told.usage[stream.response_id] for stream in streams):
            return told
        if monotonic() > deadline_s:
            return told


def _add(report: Report, what: str, waits_ms: Sequence[float]) -> None:
    report.add(f"{what} p50", percentile(waits_ms, 0.5), "ms")
    report.add(f"{what} p99", percentile(waits_ms, 0.99), "ms", GOAL_MS)


def _report_way(report: Report, way: _Way, streams: Sequence[_Stream], told: _Told) -> int:
    """Returns how many are not accounted for as they should be."""
    ids = [stream.response_id for stream in streams if stream.response_id in told.freed_at_ms]
    acted_ms = {stream.response_id: stream.acted_at_ms for stream in streams}
    since_ms: dict[str, float] = dict(acted_ms)
    if way.act is _leave:
        taken_ms = [told.asked_at_ms[each] - acted_ms[each] for each in ids if each in told.asked_at_ms]
        report.add("a viewer who left: until it is taken for gone p50", percentile(taken_ms, 0.5), "ms")
        since_ms = {each: float(at_ms) for each, at_ms in told.asked_at_ms.items()}
    elif way.code is EndingCode.DEADLINE_EXCEEDED:
        since_ms = {each: float(at_ms) for each, at_ms in told.deadline_ms.items()}
    elif way.code is EndingCode.SAFETY_HALTED:
        since_ms = told.said_at_ms
    _add(
        report,
        f"{way.name}: blocks free after",
        [told.freed_at_ms[each] - since_ms[each] for each in ids if each in since_ms],
    )
    return sum(not told.is_accounted(stream, way.code) for stream in streams)


def _blocks_held(stack: Stack) -> float:
    """Of the worker's engine, once nothing runs there: it tells so with its next heartbeat."""
    deadline_s = monotonic() + ACCOUNTS_TIMEOUT_S
    while True:
        held = metrics_of(stack, "worker-1")["sluice_worker_kv_blocks_used"]
        if not held or monotonic() > deadline_s:
            return held
        sleep(HEARTBEAT_LOOK_S)


async def _aborts_ms(rounds: int) -> list[float]:
    """vLLM alone: from an abort until it runs one less, as its own figures have it."""
    engine = VllmEngine(str(MODEL_PATH), ENGINE_ARGS, 64)
    tokens: Counter[str] = Counter()

    def on_step(deltas: list[EngineDelta]) -> None:
        for delta in deltas:
            tokens[delta.request_id] += len(delta.token_ids)

    def on_died(death: EngineDied) -> None:
        raise death

    await engine.start(on_step, on_died)
    tokenizer = ChatTokenizer(MODEL_PATH)
    waits_ms: list[float] = []
    try:
        for turn in range(rounds):
            names = [f"{turn}-{number}" for number in range(VLLM_STREAMS)]
            for number, name in enumerate(names):
                prompt = tokenizer.encode_chat([Message(role="user", content=[TextPart(text=question(number))])])
                engine.submit(EngineRequest(name, prompt, Sampling(temperature=0, ignore_eos=True), 3_000))
            async with asyncio.timeout(END_TIMEOUT_S):
                while not all(tokens[name] >= BEGUN for name in names):  # noqa: ASYNC110
                    await asyncio.sleep(VLLM_LOOK_S)
                # The last one has nobody beside it, and vLLM steps no more.
                for left, name in zip(range(VLLM_STREAMS - 1, 0, -1), names, strict=False):
                    began_s = monotonic()
                    engine.abort(name)
                    while engine.stats().running > left:  # noqa: ASYNC110
                        await asyncio.sleep(VLLM_LOOK_S)
                    waits_ms.append((monotonic() - began_s) * 1_000)
                    await asyncio.sleep(random.random() / ACTS_PER_S)
            engine.abort(names[-1])
            await asyncio.sleep(0.2)
    finally:
        await engine.close()
    return waits_ms


def run(*, short: bool, seed: int) -> Report:
    count, rounds = (20, 1) if short else (100, 8)
    rng = random.Random(seed)
    setting = {"streams": count, "acts/s": ACTS_PER_S, "seed": seed, "step_ms": ENGINE["step_ms"]}
    report = Report("cancellation", setting)
    options = simulated(ENGINE, max_running=256)
    options = replace(options, environment={"SLUICE_GATEWAY__REQUEST_TIMEOUT_MS": str(DEADLINE_MS)})
    with running_stack(options) as stack:
        ended = {way: asyncio.run(_end_all(stack, way, count, rng)) for way in WAYS}
        told = _read_when_accounted(stack, [stream for streams in ended.values() for stream in streams])
        unaccounted = sum(_report_way(report, way, streams, told) for way, streams in ended.items())
        report.add_lost("ended early and not accounted for once, by the rule of their ending", unaccounted)
        report.add("blocks that the engine still holds", _blocks_held(stack), "blocks", 0)
    aborts_ms = asyncio.run(_aborts_ms(rounds))
    _add(report, f"vLLM alone, {VLLM_STREAMS} streams: blocks free after an abort", aborts_ms)
    report.notes.append("A viewer who left may come back for two seconds: until then nothing is cancelled.")
    return report
