"""Binds the stage table to Faust. Placement is the only thing decided here.

*Fused*: one agent on `requests` runs all stages. *Split*: one agent per stage, with topics in between, so that one
stage can be scaled alone; then `requests → validated → reserved → screened → lanes`. Jobs have two agents of their own
in front of that: `intake.batch → jobs.<pool>`, where they wait for room in the queue of that pool and in the quota of
their tenant, and `aside` for those of tenants that have all of their places there. What is read late of `requests`
waits at a gate, and what gives way there stands in `later` (`agents.admission.gate`). One more agent has what goes from
one pool to another: `moved → lanes`.

Idioms that Faust 0.15 needs, each for a fault that was reproduced:

- `concurrency=1`, and `InOrder` instead: more actors commit past unfinished work.
- Nothing is raised into Faust: an exception would acknowledge the event. What cannot be finished ends the process.
- Nothing is sent through Faust: a send that fails later only warns, and the source is committed. A producer of
  librdkafka (`LogPublisher`) awaits every acknowledgement, and costs less CPU time.
- What is read is committed, and offsets without a record are no gap (`agents.admission.faust_consumer`).
- Few records per poll, and room in each buffer for one poll of every partition above the mark at which partitions are
  paused: one full buffer blocks the delivery of all topics, so waiting jobs would stop interactive requests.
- Raw bytes, no codecs; explicit partitions for lanes and `generated`; no tables, no web server, no topic declarations.
"""

import asyncio
import random
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any

import faust
import structlog

from agents.admission.catching_up import AGAIN
from agents.admission.catching_up import LOOK_AHEAD as CATCH_UP_LOOK_AHEAD
from agents.admission.faust_broker import broker_credentials, broker_urls
from agents.admission.faust_consumer import CommittedTransport
from agents.admission.gate import Gate
from agents.admission.in_order import MAX_BYTES_IN_WORK, InOrder
from agents.admission.pipeline import Entry, Handle, Pipeline
from agents.admission.publisher import LogPublisher, Publisher, PublishFailed
from agents.admission.stages import FUSED, STAGES, Stage
from agents.admission.turns import Sleep, Turns
from streams.log.kafka import KafkaProducer
from streams.log.port import LogRecord, TopicPartition
from streams.settings import Settings
from streams.topics import Partitions, Topics

DRAIN_TIMEOUT_S = 5.0
NOTE_LINGER_MS = 50
"""What nobody waits to read leaves in batches: every write costs the broker the same, whatever it holds."""
POLL_RECORDS = 32
BYTES_OF_A_TURN = 16_384
"""At the intake. A larger job takes as many turns: so tenants share bytes as well as jobs."""
LOOK_AHEAD = 2_000
"""Jobs at the intake among which tenants take turns."""
LOOK_AHEAD_BYTES = 33_554_432
TURN_HOLD_S = 10.0
"""Beyond the next turn: for whoever gets that one."""
LONGEST_TURN_S = 30.0
"""From the turn on; a wait for the store, or for threads, is told by who waits."""
PRESSURE_SHARE = 5
"""Faust pauses a partition that delivers while its agent's buffer has less than a fifth of its room left."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Binding:
    """One agent: what it reads and what it does with a record.

    `per_second`: how many it begins; whoever `enter` tells apart takes turns, as far as the agent looks ahead.
    `look_ahead`: so many records are held, where `handle` itself lets them wait for their turns.
    `on_hold` is told that the topic's records wait for these; after another `generation` nobody begins any more.
    """

    name: str
    topic: str
    handle: Handle
    per_second: int | None = None
    look_ahead: int | None = None
    enter: Callable[[LogRecord], Entry] | None = None
    on_hold: Callable[[str, float], None] = lambda _topic, _for_s: None
    generation: Callable[[], int] = lambda: 0
    at_stop: list[Callable[[], None]] = field(default_factory=list)
    """From then on nothing begins that waits: it raises NotBegun."""

    def paced(self, clock_s: Callable[[], float] = monotonic, sleep: Sleep = asyncio.sleep) -> Handle:
        """`handle`, begun when it is the record's turn."""
        if self.per_second is None:
            return self.handle
        began_s: dict[object, float] = {}

        def hold(next_in_s: float) -> None:
            """Who waits for a turn has not stalled, as long as nobody has who had one."""
            oldest_s = next(iter(began_s.values()), None)
            if oldest_s is None or clock_s() - oldest_s < LONGEST_TURN_S:
                self.on_hold(self.topic, next_in_s + TURN_HOLD_S)

        turns = Turns(self.per_second, clock_s, sleep, hold)
        self.at_stop.append(turns.close)

        async def in_turn(record: LogRecord) -> None:
            generation = self.generation()
            entry = Entry("", self.handle) if self.enter is None else self.enter(record)
            await turns.wait(entry.holder, max(1.0, len(record.value or b"") / BYTES_OF_A_TURN), entry.rank)
            if self.generation() != generation:
                # A balance has begun: it cannot be acknowledged any more, and comes again, here or elsewhere.
                return
            key = object()
            began_s[key] = clock_s()
            try:
                await entry.handle(record)
            finally:
                del began_s[key]

        return in_turn

    def window(
        self, in_flight: int, on_failure: Callable[[Exception], None], bytes_in_work: int = MAX_BYTES_IN_WORK
    ) -> InOrder:
        if self.per_second is None:
            return InOrder(self.look_ahead or in_flight, on_failure, limit_bytes=bytes_in_work)
        return InOrder(LOOK_AHEAD, on_failure, limit_bytes=LOOK_AHEAD_BYTES)


def bindings(
    placement: str, topics: Topics, pipeline: Pipeline, jobs_per_second: int,
    in_flight: int = 256, catch_up_per_second: int = 500, catch_up_look_ahead: int = CATCH_UP_LOOK_AHEAD,
) -> list[Binding]:  # fmt: skip
    """The agents of a placement."""
    fused = placement == "fused"
    first = FUSED if fused else STAGES[:1]
    gate = Gate(pipeline, in_flight, catch_up_per_second, catch_up_look_ahead)

    def handle_later(stage: Stage) -> Handle:
        return lambda record: pipeline.handle_admission(record, (stage,))

    async def handle_queued_job(record: LogRecord) -> None:
        await pipeline.handle_queued_job(record, STAGES[1:] if fused else STAGES[1:2])

    agents = [
        Binding(
            "requests",
            topics.requests.name,
            gate.guarded(lambda record: pipeline.handle_request(record, first), pipeline.put_aside),
            # Beside what may wait there is always room for who need not.
            look_ahead=catch_up_look_ahead + in_flight,
            at_stop=[gate.close],
        ),
        Binding(
            "later",
            topics.later.name,
            gate.guarded(lambda record: pipeline.handle_later(record, first), None, pipeline.go_round),
            look_ahead=2 * AGAIN,
            at_stop=[gate.close],
        ),
        Binding(
            "intake",
            topics.intake_batch.name,
            pipeline.handle_job,
            jobs_per_second,
            enter=pipeline.enter_job,
            on_hold=pipeline.services.on_hold,
            generation=pipeline.generation,
        ),
        *(Binding(f"jobs-{pool}", topics.jobs(pool).name, handle_queued_job) for pool in topics.pools),
        Binding("aside", topics.aside.name, handle_queued_job),
        Binding("moved", topics.moved.name, pipeline.handle_moved),
    ]
    if not fused:
        for before, stage in pairwise(STAGES):
            assert before.topic_after is not None
            agents.append(Binding(stage.name, before.topic_after(topics), handle_later(stage)))
    return agents


def buffer_records(counts: Partitions) -> int:
    """Of one agent. A partition is paused when it delivers beyond the mark, so each exceeds it by one poll at most."""
    return PRESSURE_SHARE * POLL_RECORDS * max(counts.requests, counts.intake)


def raw_topic(app: faust.App, name: str) -> Any:
    """Bytes in, bytes out."""
    return app.topic(
        name, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True
    )


def log_record(event: Any) -> LogRecord:
    """What a stage sees of a Faust event."""
    message = event.message
    headers = message.headers or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return LogRecord(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        key=message.key,
        value=message.value,
        headers=tuple((name, value) for name, value in pairs),
        timestamp_ms=round(message.timestamp * 1_000),
    )


async def drained(table: Sequence[Binding], windows: Sequence[InOrder], timeout_s: float) -> int:
    """What is in work is finished and acknowledged; what waits for its turn begins elsewhere. Returns how many are in
    work after all.
    """
    for binding in table:
        for stop in binding.at_stop:
            stop()
    await asyncio.gather(*(window.close(timeout_s) for window in windows))
    return sum(window.in_work for window in windows)


class AdmissionApp:
    """The Faust app of one admission worker.

    `on_failure` is called when an event could be neither finished nor refused: it must end the process. `wire` makes
    the pipeline around the app's publisher.
    """

    def __init__(
        self,
        settings: Settings,
        wire: Callable[[Publisher], Pipeline],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._on_failure = on_failure
        self._in_flight = settings.admission.in_flight
        self._windows: list[InOrder] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        directory = settings.data_dir / "admission"
        directory.mkdir(parents=True, exist_ok=True)
        self.faust = app = faust.App(
            f"{settings.region}.admission",
            broker=broker_urls(settings.kafka),
            broker_credentials=broker_credentials(settings.kafka),
            store="memory://",
            cache="memory://",
            datadir=str(directory),
            autodiscover=False,
            web_enabled=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            broker_session_timeout=settings.kafka.session_timeout_ms / 1_000,
            broker_heartbeat_interval=min(1.0, settings.kafka.session_timeout_ms / 3_000),
            broker_max_poll_interval=120.0,
            broker_commit_interval=0.5,
            broker_commit_every=10_000,
            broker_client_id=f"admission-{random.getrandbits(32):08x}",
            consumer_auto_offset_reset="earliest",
            broker_max_poll_records=POLL_RECORDS,
            stream_buffer_maxsize=buffer_records(settings.topics.counts),
            stream_wait_empty=False,
            worker_redirect_stdouts=False,
        )
        app.transport = CommittedTransport(app.conf.broker_consumer, app)
        # Uncompressed: see `streams.topics` on what Faust reads.
        self._publisher = LogPublisher(
            lambda: KafkaProducer(settings.kafka, "admission", compression="none"),
            lambda: KafkaProducer(settings.kafka, "admission-notes", linger_ms=NOTE_LINGER_MS),
        )
        self.pipeline = wire(self._publisher)
        self._table = bindings(
            settings.admission.placement, settings.topics, self.pipeline, settings.admission.batch_jobs_per_second,
            settings.admission.in_flight, settings.admission.catch_up_per_second,
        )  # fmt: skip
        for binding in self._table:
            self._bind(binding)
        app.task(self._publisher.open)
        app.on_partitions_assigned.connect(self._assigned)
        app.on_partitions_revoked.connect(self._revoked)
        app.on_before_shutdown.connect(self._drain)

    @property
    def group(self) -> str:
        return str(self.faust.conf.id)

    def _bind(self, binding: Binding) -> None:
        app = self.faust

        async def agent(stream: Any) -> None:
            window = binding.window(self._in_flight, self._on_failure)
            self._windows.append(window)
            handle = binding.paced()
            events: AsyncIterable[Any] = stream.noack().events()
            try:
                async for event in events:
                    await self._start(window, handle, event)
            except Exception as error:  # noqa: BLE001
                # Faust would start the agent again behind this event, and commit past it.
                self._on_failure(error)

        app.agent(raw_topic(app, binding.topic), name=binding.name, concurrency=1)(agent)

    async def _start(self, window: InOrder, handle: Handle, event: Any) -> None:
        message, generation = event.message, event.message.generation_id
        record = log_record(event)
        # The event lives until everything before it is done; its content is needed no longer than for its own work.
        event.value = message.value = None

        def acknowledge() -> None:
            # After a rebalance the offset is somebody else's to commit, or will be delivered to us again.
            if self.faust.consumer_generation_id == generation:
                event.ack()

        line = (message.topic, message.partition, generation)
        await window.start(line, partial(handle, record), acknowledge, len(record.value or b""))

    async def _assigned(self, _app: Any, assigned: Any, **_: Any) -> None:
        self.owned = frozenset(TopicPartition(tp.topic, tp.partition) for tp in assigned)

    async def _revoked(self, _app: Any, revoked: Any, **_: Any) -> None:
        self.owned -= {TopicPartition(tp.topic, tp.partition) for tp in revoked}

    async def _drain(self, _app: Any, **_: Any) -> None:
        if left := await drained(self._table, self._windows, DRAIN_TIMEOUT_S):
            _log.warning("stopped_with_work_left", left=left)
        try:
            await self._publisher.close(DRAIN_TIMEOUT_S)
        except PublishFailed as error:
            self._on_failure(error)
