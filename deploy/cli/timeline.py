"""What happened to one response, step by step, told by its records. Nothing here shows a prompt or a text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from schemas.base import Record, Scope
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.generated import Ending, Fence, Frame, Opened
from schemas.request import AdmittedRequest, Request
from schemas.responses import Release, Started, Terminal, is_news
from schemas.usage import ComputeRecord, DeliveredCount, UsageEvent
from streams.log.port import LogRecord

LOG = "log"
ADMISSION_STAGES = ("intake", "admission", "validation", "quota", "pre-safety", "routing")
GATEWAY_STAGES = {
    "acknowledged": "the gateway knows that it is stored",
    "first_sent": "first text on its way to a viewer",
    "ended": "ending read by the gateway",
    "sent": "last viewer served",
}
"""Of `delivered`, which is written up to half a second after them."""


@dataclass(frozen=True, slots=True)
class Step:
    """`by` is whose clock says when: a process, or the log's broker. `where` is `topic-partition@offset`.

    `is_account`: written for the books, when nobody waits any more.
    """

    at_ms: int
    what: str
    by: str
    where: str = ""
    is_account: bool = False


@dataclass(slots=True)
class _Run:
    """The records in which tokens of one attempt, or of one response, stand: the first and the newest."""

    first: tuple[LogRecord, int]
    newest: tuple[LogRecord, int]
    """Each with when its oldest token was generated, in microseconds."""
    records: int = 0
    tokens: int = 0
    calls: set[tuple[int, int]] = field(default_factory=set)
    """Of tools: the choice and the number of each."""
    worker_id: str = ""
    finished: bool = False

    def take_call(self, kind: str, choice: int, call: int) -> None:
        if kind in ("tool_name", "tool_arguments"):
            self.calls.add((choice, call))

    @property
    def of_calls(self) -> str:
        """How many there are, to be said behind the number of tokens."""
        count = len(self.calls)
        return f", {count} tool call{'s' if count > 1 else ''}" if count else ""


@dataclass(slots=True)
class Timeline:
    """Give it the records of one response, of each topic in log order; then ask."""

    response_id: str
    request: Request | None = None
    opened: Opened | None = None
    work: AdmittedRequest | None = None
    started: Started | None = None
    terminal: Terminal | None = None
    refused: bool = False
    """By an ending of admission's: it was never opened."""
    bill: UsageEvent | None = None
    scope: Scope | None = None
    accepted_at_ms: int | None = None
    first_released_ms: int | None = None
    """When the first record of it stood on `responses`."""
    _before: list[Step] = field(default_factory=list)
    """Up to its lane."""
    _after: list[Step] = field(default_factory=list)
    _attempts: dict[str, _Run] = field(default_factory=dict)
    _released: _Run | None = None
    _fences: dict[str, Fence] = field(default_factory=dict)
    """By attempt, the first one."""

    def __len__(self) -> int:
        return len(self._before) + len(self._after) + len(self._attempts)

    def take(self, record: LogRecord, event: Record) -> None:
        """A record that speaks of the response, among others if it is a frame or a release."""
        scope: Scope | None = getattr(event, "scope", None) if not isinstance(event, Frame | Release) else None
        self.scope = self.scope or scope
        if isinstance(event, Started | Release | Terminal) and self.first_released_ms is None:
            self.first_released_ms = record.timestamp_ms
        match event:
            case Frame():
                self._take_frame(record, event)
            case Release():
                self._take_release(record, event)
            case Request() | Opened() | AdmittedRequest():
                self._before += self._up_to_its_lane(record, event)
            case Ending(written_by="admission"):
                self.refused = self.opened is None
                self._before += self._up_to_its_lane(record, event)
            case _:
                self._after += self._further(record, event)

    def steps(self) -> list[Step]:
        """In the order of time; of the same millisecond in that of cause and effect."""
        steps = list(self._before)
        if self.opened is None and not self.refused and self.bill is not None:
            # Its log is gone, the bill stays.
            steps += _stages(self.bill.stage_ms, ADMISSION_STAGES, "admission")
            steps += _stages(self.bill.stage_ms, ("worker", "prefill", "decode"), self.bill.worker_id)
            steps += _stages(self.bill.stage_ms, ("post-safety",), "post-safety")
        for number, run in enumerate(self._attempts.values(), 1):
            steps += _generated(run, f" (attempt {number})" if len(self._attempts) > 1 else "")
        steps += self._after
        if self._released is not None:
            steps += _released(self._released)
        if self.accepted_at_ms is not None:
            steps.insert(0, Step(self.accepted_at_ms, "accepted", "gateway" if self._is_request else "intake"))
        return sorted(steps, key=lambda step: step.at_ms)

    @property
    def state(self) -> str:
        """The code of its ending, or how far it has come."""
        if self.terminal is not None:
            return self.terminal.code.value
        if self.bill is not None:
            return self.bill.ending.value
        if self._attempts or self._fences:
            return "running"
        if self.opened is not None or self.started is not None:
            return "waiting for a worker"
        return "waiting for admission"

    @property
    def tokens(self) -> int:
        return sum(run.tokens for run in self._attempts.values())

    @property
    def attempts(self) -> int:
        return len(self._fences)

    @property
    def _is_request(self) -> bool:
        return self.opened is None or self.opened.reply_to.results_topic is None

    def _accepted(self, at_ms: int) -> None:
        self.accepted_at_ms = self.accepted_at_ms or at_ms

    def _up_to_its_lane(self, record: LogRecord, event: Request | Opened | AdmittedRequest | Ending) -> Iterator[Step]:
        self._accepted(event.accepted_at_ms)
        where = _where(record)
        match event:
            case Request():
                self.request = event
                yield Step(record.timestamp_ms, "request stored", LOG, where)
            case Opened():
                if self.opened is not None:
                    yield Step(record.timestamp_ms, "opened again", LOG, where)
                    return
                self.opened = event
                yield from _stages(event.stage_ms, ADMISSION_STAGES, "admission")
                told = "admitted"
                if event.fallback is not None:
                    told += f" for {event.model}, in the place of {event.fallback.asked} ({event.fallback.reason})"
                yield Step(event.admitted_at_ms, told, "admission")
                yield Step(record.timestamp_ms, "opened", LOG, where)
            case AdmittedRequest():
                self.work = event
                # Lanes have their writer's time.
                yield Step(record.timestamp_ms, f"put into its lane ({event.lane})", "admission", where)
            case Ending():
                if self.refused:
                    yield from _stages(event.stage_ms, ADMISSION_STAGES, "admission")
                yield Step(record.timestamp_ms, f"refused: {event.code}", LOG, where)

    def _further(self, record: LogRecord, event: Record) -> Iterator[Step]:
        at_ms, where = record.timestamp_ms, _where(record)
        match event:
            case Fence() if (first := self._fences.get(event.attempt_id)) is not None:
                number = [*self._fences].index(event.attempt_id) + 1
                enters = first.losses is not None and (event.losses or 0) > first.losses
                what = f"attempt {number} {'enters' if enters else 'leaves'} the engine"
                if "worker" in event.stage_ms:
                    yield Step(event.stage_ms["worker"], what, event.worker_id)
                yield Step(at_ms, "fence stored again", LOG, where)
            case Fence():
                self._fences[event.attempt_id] = event
                if "spilled" in event.stage_ms:
                    what = "given to another worker of its pool, before anybody had begun it"
                    yield Step(event.stage_ms["spilled"], what, "worker")
                if "taken" in event.stage_ms:
                    yield Step(event.stage_ms["taken"], "read from its lane", event.worker_id)
                if "worker" in event.stage_ms:
                    what = f"attempt {len(self._fences)} begun ({event.kind})"
                    yield Step(event.stage_ms["worker"], what, event.worker_id)
                yield Step(at_ms, "fence stored", LOG, where)
            case Ending(elsewhere=True):
                yield Step(at_ms, f"failed here, may go elsewhere: {event.code} (by {event.written_by})", LOG, where)
            case Ending():
                yield Step(at_ms, f"ending stored: {event.code} (by {event.written_by})", LOG, where)
            case Started():
                self.started = event if is_news(event, self.started) else self.started
                self._accepted(event.accepted_at_ms)
                yield Step(at_ms, "its client may know that it was admitted", LOG, where)
            case Terminal():
                self.terminal = self.terminal or event
                yield Step(at_ms, f"terminal stored: {event.code}", LOG, where)
            case Cancel():
                yield Step(event.requested_at_ms, f"cancel asked for ({event.reason})", "gateway")
                yield Step(at_ms, "cancel stored", LOG, where)
            case Halt():
                yield Step(at_ms, f"workers told to stop: {event.reason}", LOG, where)
            case AttemptVoid():
                yield Step(at_ms, f"an attempt of {event.worker_id} is void: {event.why}", LOG, where)
            case UsageEvent():
                self.bill = self.bill or event
                self._accepted(event.accepted_at_ms)
                tokens = event.output_tokens + event.reasoning_tokens
                yield Step(at_ms, f"bill stored: {tokens} tokens", LOG, where, is_account=True)
            case ComputeRecord():
                what = f"attempt accounted: {event.outcome}, {event.engine_ms} ms in the engine"
                yield Step(at_ms, what, LOG, where, is_account=True)
            case DeliveredCount():
                for stage, what in GATEWAY_STAGES.items():
                    if stage in event.stage_ms:
                        yield Step(event.stage_ms[stage], what, event.gateway_id)
                yield Step(at_ms, f"delivered tokens counted: {event.delivered_tokens}", LOG, where, is_account=True)

    def _take_frame(self, record: LogRecord, frame: Frame) -> None:
        for row, response_id in enumerate(frame.response_id):
            if response_id != self.response_id:
                continue
            at = (record, frame.emitted_at_us)
            run = self._attempts.setdefault(frame.attempt_id[row], _Run(at, at, worker_id=frame.worker_id))
            run.records += run.newest[0].offset != record.offset or not run.records
            run.newest = at
            run.tokens += len(frame.token_ids[row])
            run.take_call(frame.kind[row], frame.choice[row], 0 if frame.call is None else frame.call[row])
            run.finished = run.finished or bool(frame.finish[row])

    def _take_release(self, record: LogRecord, release: Release) -> None:
        for row, response_id in enumerate(release.response_id):
            if response_id != self.response_id:
                continue
            at = (record, release.emitted_at_us[row])
            run = self._released = self._released or _Run(at, at)
            run.records += run.newest[0].offset != record.offset or not run.records
            run.newest = at
            run.tokens += len(release.text_ends[row])
            run.take_call(release.kind[row], release.choice[row], 0 if release.call is None else release.call[row])


def _where(record: LogRecord) -> str:
    return f"{record.topic}-{record.partition}@{record.offset}"


def _stages(stage_ms: Mapping[str, int], names: tuple[str, ...], by: str) -> Iterator[Step]:
    """A stage's time is when it had finished; that of `admission` is when it had read the request."""
    for stage in names:
        if stage in stage_ms:
            yield Step(stage_ms[stage], "read by admission" if stage == "admission" else f"{stage} done", by)


def _generated(run: _Run, which: str) -> Iterator[Step]:
    record, emitted_at_us = run.first
    yield Step(emitted_at_us // 1_000, f"first token generated{which}", run.worker_id)
    of_calls = run.of_calls if run.records == 1 else ""
    yield Step(record.timestamp_ms, f"first token stored{which}{of_calls}", LOG, _where(record))
    if run.records > 1:
        record, emitted_at_us = run.newest
        which_one = "last" if run.finished else "newest"
        yield Step(emitted_at_us // 1_000, f"{which_one} token generated{which}", run.worker_id)
        yield Step(record.timestamp_ms, f"{which_one} token stored{which}: {run.tokens} in {run.records} frames"
                   f"{run.of_calls}", LOG, _where(record))  # fmt: skip


def _released(run: _Run) -> Iterator[Step]:
    record, _ = run.first
    of_calls = run.of_calls if run.records == 1 else ""
    yield Step(record.timestamp_ms, f"first text released{of_calls}", LOG, _where(record))
    if run.records > 1:
        record, _ = run.newest
        yield Step(record.timestamp_ms, f"newest text released: {run.tokens} tokens in {run.records} records"
                   f"{run.of_calls}", LOG, _where(record))  # fmt: skip
