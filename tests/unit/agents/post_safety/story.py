"""A small world for stories: the log in memory, the records that other processes write, and what came out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prometheus_client import CollectorRegistry

from agents.post_safety.metrics import Metrics
from agents.post_safety.process import GROUP, PostSafetyProcess
from schemas.base import Scope
from schemas.batch import BatchResult
from schemas.control import CONTROL, AttemptVoid, Cancel, Halt
from schemas.dead_letter import DeadLetter
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, FinishReason, Frame, Kind, Opened, StoppedBy
from schemas.logprobs import RowLogprobs, TokenLogprobs
from schemas.policy import DEFAULT_MODE, OutputMode, OutputPolicy
from schemas.request import Lane, ReplyTo
from schemas.responses import RESPONSES, Release, Started, Terminal
from schemas.usage import UsageEvent
from schemas.verdict import Verdict
from schemas.worker import WorkerState
from streams.directory import ApiKey, ProducerKey, Tenant
from streams.log.memory import Crashed, Fault, MemoryConsumer, MemoryLog, MemoryProducer
from streams.log.port import TopicPartition
from streams.safety_policy import SafetyPolicy
from streams.settings import PostSafetySettings
from streams.topics import Partitions, Topics
from streams.tracing.tracing import Tracing

TOPICS = Topics("local", ["sim"], Partitions(generated=2, responses=2, usage=1))
DENY = ["make a bomb", "secret sauce"]
START_MS = 1_700_000_000_000
DEADLINE_MS = START_MS + 600_000


class Tenants:
    """`acme` denies phrases, `open` denies none."""

    def __init__(self) -> None:
        self.by_id = {
            "acme": Tenant(tenant_id="acme", policy=SafetyPolicy(output_deny=DENY)),
            "open": Tenant(tenant_id="open"),
        }

    def tenant(self, tenant_id: str) -> Tenant | None:
        return self.by_id.get(tenant_id)

    def tenants(self) -> list[Tenant]:
        return list(self.by_id.values())

    def by_api_key(self, api_key: str) -> tuple[Tenant, ApiKey] | None:
        return None

    def producer_key(self, tenant_id: str, key_id: str) -> ProducerKey | None:
        return None


def scope_of(tenant_id: str = "acme") -> Scope:
    return Scope(tenant_id=tenant_id, traceparent="00-1-2-01")


def opened(
    response_id: str,
    *,
    tenant_id: str = "acme",
    reply_partition: int = 0,
    custom_id: str | None = None,
    choices: int = 1,
    deadline_ms: int = DEADLINE_MS,
    output_policy: str = "",
    content_is_json: bool = False,
    endpoint: str = "chat.completions",
) -> Opened:
    results_topic = TOPICS.results(tenant_id).name if custom_id is not None else None
    return Opened(
        response_id=response_id, scope=scope_of(tenant_id), model="tiny", requested_model="tiny-latest", pool="sim",
        lane=Lane.INTERACTIVE, lane_partition=0, choices=choices, prompt_tokens=10, max_tokens=100,
        reserved_tokens=110, accepted_at_ms=START_MS, admitted_at_ms=START_MS + 1, deadline_ms=deadline_ms,
        output_policy=output_policy, content_is_json=content_is_json, endpoint=endpoint,
        reply_to=ReplyTo(partition=reply_partition, results_topic=results_topic, custom_id=custom_id),
    )  # fmt: skip


def fence(response_id: str, attempt: str = "att_1", *, takeover: bool = False) -> Fence:
    return Fence(
        response_id=response_id, scope=scope_of(), attempt_id=attempt, worker_id=f"worker of {attempt}",
        kind="takeover" if takeover else "fresh",
    )  # fmt: skip


def ending(
    response_id: str,
    code: EndingCode,
    *,
    attempt: str | None = None,
    by: str = "worker",
    custom_id: str | None = None,
    **more: object,
) -> Ending:
    results_topic = TOPICS.results("acme").name if custom_id is not None else None
    return Ending.model_validate(
        {
            "response_id": response_id, "scope": scope_of(), "code": code, "written_by": by, "attempt_id": attempt,
            "requested_model": "tiny-latest", "accepted_at_ms": START_MS, "prompt_tokens": 7,
            "reply_to": ReplyTo(partition=0, results_topic=results_topic, custom_id=custom_id), **more,
        }
    )  # fmt: skip


@dataclass
class Row:
    response_id: str
    first_sequence: int
    tokens: Sequence[str]
    attempt: str = "att_1"
    finish: FinishReason = ""
    choice: int = 0
    kind: Kind = "content"
    cached: int = 4
    call: int = 0
    logprobs: RowLogprobs = None
    stopped_by: StoppedBy = None


def frame(*rows: Row, worker_id: str = "worker-1") -> Frame:
    ends: list[list[int]] = []
    for row in rows:
        ends.append([])
        for token in row.tokens:
            ends[-1].append((ends[-1][-1] if ends[-1] else 0) + len(token))
    return Frame(
        worker_id=worker_id, emitted_at_us=START_MS * 1_000, scopes=[Scope(tenant_id="acme")], scope=[0] * len(rows),
        response_id=[row.response_id for row in rows], attempt_id=[row.attempt for row in rows],
        choice=[row.choice for row in rows], first_sequence=[row.first_sequence for row in rows],
        kind=[row.kind for row in rows], token_ids=[list(range(len(row.tokens))) for row in rows],
        text=["".join(row.tokens) for row in rows], text_ends=ends, logprobs=[row.logprobs for row in rows],
        finish=[row.finish for row in rows], cached_tokens=[row.cached for row in rows],
        call=[row.call for row in rows] if any(row.kind.startswith("tool_") for row in rows) else None,
        stopped_by=[row.stopped_by for row in rows] if any(row.stopped_by is not None for row in rows) else None,
    )  # fmt: skip


@dataclass
class Answer:
    """What stands in the log about one response. Repetitions are kept apart only where they differ."""

    started: int = 0
    tokens: dict[tuple[int, int], str] = field(default_factory=dict)
    kinds: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Per token the kind and the call of its row."""
    likely: dict[tuple[int, int], TokenLogprobs | None] = field(default_factory=dict)
    terminals: set[bytes] = field(default_factory=set)
    usage: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    results: set[bytes] = field(default_factory=set)

    @property
    def text(self) -> str:
        return "".join(self.tokens[key] for key in sorted(self.tokens, key=lambda key: key[1]))

    def said(self, kind: str, call: int = 0, choice: int = 0) -> str:
        """What was shown of one kind and call, in order."""
        keys = sorted(key for key in self.tokens if key[0] == choice and self.kinds[key] == (kind, call))
        return "".join(self.tokens[key] for key in keys)

    @property
    def terminal(self) -> Terminal:
        [only] = self.terminals
        return Terminal.model_validate_json(only)

    @property
    def bills(self) -> list[UsageEvent]:
        assert all(len(values) == 1 for values in self.usage.values()), "one bill per response and choice"
        return [UsageEvent.model_validate_json(next(iter(self.usage[key]))) for key in sorted(self.usage)]

    @property
    def bill(self) -> UsageEvent:
        [only] = self.bills
        return only

    @property
    def result(self) -> BatchResult:
        [only] = self.results
        return BatchResult.model_validate_json(only)


class World:
    def __init__(self, faults: Iterable[Fault] = (), settings: PostSafetySettings | None = None) -> None:
        self.now_ms = START_MS + 100
        self.log = MemoryLog(lambda: self.now_ms, faults)
        self.tenants = Tenants()
        self.settings = settings or PostSafetySettings()
        for topic in TOPICS.all(["acme"]):
            self.log.create_topic(topic.name, topic.partitions)
        self.restarts = 0
        self.keeps_order = True
        """The terminal follows the last token; not so when the delivery of one record failed."""

    def write(self, *records: Opened | Fence | Frame | Ending, partition: int = 0) -> None:
        for record in records:
            self.now_ms += 1
            self.log.append(TOPICS.generated.name, record.encode(), partition=partition)

    def write_raw(self, value: bytes, partition: int = 0, key: str | None = None) -> None:
        self.log.append(TOPICS.generated.name, value, partition=partition, key=key)

    def keep_policy(self, output_deny: list[str], tenant_id: str = "acme", mode: OutputMode = DEFAULT_MODE) -> str:
        """What admission does before it opens a response under these phrases."""
        policy = OutputPolicy.of(tenant_id, output_deny, mode)
        self.log.append(TOPICS.policies.name, policy.encode(), key=policy.key)
        return policy.digest

    def edit_policy(self, output_deny: list[str], tenant_id: str = "acme") -> None:
        """The operator changes the tenants file."""
        self.tenants.by_id[tenant_id] = Tenant(tenant_id=tenant_id, policy=SafetyPolicy(output_deny=output_deny))

    def cancel(self, response_id: str, reason: Literal["client", "budget"] = "client") -> None:
        cancel = Cancel(response_id=response_id, scope=scope_of(), reason=reason, requested_at_ms=self.now_ms)
        self.log.append(TOPICS.control.name, cancel.encode())

    def beat(self, worker_id: str, pool: str, state: str = "ready", **more: object) -> None:
        """A worker says that it lives."""
        said = WorkerState.model_validate({
            "worker_id": worker_id, "pool": pool, "model": "tiny", "engine": "simulated", "state": state,
            "beat_at_ms": self.now_ms, "lease_ms": 4_000, **more,
        })  # fmt: skip
        self.log.append(TOPICS.workers.name, said.encode(), key=worker_id)

    def committed(self, partition: int = 0) -> int | None:
        return self.log.committed(GROUP, TopicPartition(TOPICS.generated.name, partition)).offset

    def answers(self) -> dict[str, Answer]:
        answers: dict[str, Answer] = defaultdict(Answer)
        for record in self.log.records(TOPICS.responses.name):
            assert record.value is not None
            event = RESPONSES.validate_json(record.value)
            if isinstance(event, Release):
                self._take_release(answers, event)
                continue
            answer = answers[event.response_id]
            if isinstance(event, Started):
                answer.started += 1
            else:
                assert not self.keeps_order or event.sequence_number == len(answer.tokens) + 1
                answer.terminals.add(record.value)
        for record in self.log.records(TOPICS.usage.name):
            assert record.value is not None
            usage = UsageEvent.model_validate_json(record.value)
            answers[usage.response_id].usage[usage.usage_id].add(record.value)
        for record in self.log.records(TOPICS.results("acme").name):
            assert record.value is not None
            answers[BatchResult.model_validate_json(record.value).id].results.add(record.value)
        for answer in answers.values():
            assert not answer.terminals or answer.terminal.sequence_number == len(answer.tokens) + 1
        return answers

    def _take_release(self, answers: dict[str, Answer], release: Release) -> None:
        none: list[RowLogprobs] = [None] * len(release)
        for response_id, choice, first, text, ends, kind, call, logprobs in zip(
            release.response_id, release.choice, release.first_sequence, release.text, release.text_ends, release.kind,
            release.calls, release.logprobs or none, strict=True,
        ):  # fmt: skip
            answer, begin = answers[response_id], 0
            for index, end in enumerate(ends):
                key = (choice, first + index)
                assert answer.tokens.setdefault(key, text[begin:end]) == text[begin:end], "a replay says the same"
                assert answer.kinds.setdefault(key, (kind, call)) == (kind, call)
                told = None if logprobs is None else logprobs[index]
                assert answer.likely.setdefault(key, told) == told
                begin = end
            assert sorted(sequence for _, sequence in answer.tokens) == list(range(1, len(answer.tokens) + 1))

    def answer(self, response_id: str) -> Answer:
        return self.answers()[response_id]

    def responses(self) -> list[Started | Release | Terminal]:
        return [RESPONSES.validate_json(record.value or b"") for record in self.log.records(TOPICS.responses.name)]

    def control(self) -> list[Cancel | Halt | AttemptVoid]:
        return [CONTROL.validate_json(record.value or b"") for record in self.log.records(TOPICS.control.name)]

    def endings(self) -> list[Ending]:
        records = [
            GENERATED.validate_json(record.value)
            for record in self.log.records(TOPICS.generated.name)
            if record.value is not None and b'"written_by":"post-safety"' in record.value
        ]
        return [record for record in records if isinstance(record, Ending)]

    def verdicts(self) -> list[Verdict]:
        return [Verdict.model_validate_json(r.value or b"") for r in self.log.records(TOPICS.verdicts.name)]

    def dead_letters(self) -> list[DeadLetter]:
        return [DeadLetter.model_validate_json(r.value or b"") for r in self.log.records(TOPICS.dead_letters.name)]


def plain_answer(world: World, response_id: str = "r1", **about: object) -> None:
    world.write(
        opened(response_id, **about),  # type: ignore[arg-type]
        fence(response_id),
        frame(Row(response_id, 1, ["Hello", " there"])),
        frame(Row(response_id, 3, [" friend"])),
        frame(Row(response_id, 4, [], finish="stop")),
    )


class Member:
    """One post-safety process, restarted when a fault kills it."""

    def __init__(self, world: World, name: str = "ps", tracing: Tracing | None = None) -> None:
        self.world = world
        self.tracing = tracing
        self.name = name
        self._start()

    def _start(self) -> None:
        log = self.world.log
        self.registry = CollectorRegistry()
        self.generated: MemoryConsumer = log.consumer(GROUP, f"{self.name}.generated")
        self.control: MemoryConsumer = log.consumer(None, f"{self.name}.control")
        self.policies: MemoryConsumer = log.consumer(None, f"{self.name}.policies")
        self.parked: MemoryConsumer = log.consumer(None, f"{self.name}.parked")
        self.workers: MemoryConsumer = log.consumer(None, f"{self.name}.workers")
        self.producer: MemoryProducer = log.producer(f"{self.name}.producer")
        self.process = PostSafetyProcess(
            topics=TOPICS, settings=self.world.settings, directory=self.world.tenants, generated=self.generated,
            control=self.control, policies=self.policies, parked=self.parked, workers=self.workers,
            producer=self.producer, metrics=Metrics(self.registry), tracing=self.tracing,
            clock_ms=lambda: self.world.now_ms, monotonic_s=lambda: self.world.now_ms / 1_000,
        )  # fmt: skip
        self.process.start()

    def kill(self) -> None:
        """SIGKILL, and the runner starts it again."""
        self.producer.crash()
        self.generated.crash()
        self.control.crash()
        self.policies.crash()
        self.parked.crash()
        self.workers.crash()
        self.world.restarts += 1
        self._start()

    @property
    def distrusted(self) -> int:
        """Partitions whose parked responses were not used since it was last started."""
        return int(self.registry.get_sample_value("sluice_post_safety_parked_distrusted_total") or 0)

    @property
    def records_read(self) -> int:
        """Of `generated`, folded since it was last started."""
        return int(self.registry.get_sample_value("sluice_post_safety_records_read_total") or 0)

    def run(self, ms: int = 1_500, step_ms: int = 10) -> None:
        """Runs for so long, restarted after every crash."""
        until_ms = self.world.now_ms + ms
        while self.world.now_ms < until_ms:
            self.world.now_ms += step_ms
            try:
                self.process.step()
            except Crashed:
                self.kill()


def told(*said: Row | Fence | Frame | Ending, **about: Any) -> Answer:
    """What comes of `r1`, opened so, where this is said of it: a frame for each row."""
    world = World()
    world.write(opened("r1", **about), fence("r1"), *(frame(each) if isinstance(each, Row) else each for each in said))
    Member(world).run()
    return world.answer("r1")
