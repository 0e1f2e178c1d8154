"""What the workers of a story share: the log, the claims, the clock.

A judge stands where post-safety stands: it folds `generated` with the accepted-prefix rule and answers void fences.
"""

from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Any, Literal

from gpu_consumers.core.claims import ClaimTable
from gpu_consumers.core.config import CoreConfig
from gpu_consumers.engines.port import EngineDelta, EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from schemas.base import Scope
from schemas.control import AttemptVoid, Cancel, Halt
from schemas.endings import EndingCode
from schemas.generated import GENERATED, Ending, Fence, FinishReason, Frame, Opened
from schemas.request import AdmittedRequest, Lane, ReplyTo, Sampling
from schemas.usage import USAGE, ComputeRecord
from streams.accepted_prefix import AcceptedPrefix
from streams.engine_args import SimulatedEngineSettings
from streams.log.memory import MemoryLog
from streams.topics import Partitions, Topics
from tests.unit.gpu_consumers.engines.simulated_runs import run

TOPICS = Topics("test", ["pool"], Partitions(lane=2, generated=2))
SCOPE = Scope(tenant_id="acme", traceparent="00-trace")
ENGINE = SimulatedEngineSettings(ttft_ms=20, prompt_token_us=0, inter_token_ms=20, step_ms=20, kv_blocks=1_000)
LEASE_MS = 4_000
NOW_MS = 1_000_000
COALESCE_MS = 50
"""Every story is told with rows that wait: up to three steps of this engine, also of a single stream."""
DIMENSIONS = 128
CONFIG = CoreConfig(
    worker_id="w", pool="pool", model="m", engine="simulated", topics=TOPICS, home_partitions=(0,), lease_ms=LEASE_MS,
    max_running=4, healthy_buffer=0, max_uncommitted_records=100, max_uncommitted_bytes=10**6, coalesce_ms=COALESCE_MS,
    coalesce_rows_per_s=1,
)  # fmt: skip


def delta(attempt_id: str, *texts: str, choice: int = 0, finish: FinishReason = "", **more: Any) -> EngineDelta:
    """What an engine adds to a choice: a token for each text."""
    ends = [*accumulate(map(len, texts))]
    return EngineDelta(attempt_id, choice, [7] * len(texts), "".join(texts), ends, finish, **more)


@dataclass
class Region:
    """The log, the claims and the clock that all workers share."""

    now_ms: int = NOW_MS
    claims: ClaimTable = field(default_factory=lambda: ClaimTable(LEASE_MS))
    claims_up: bool = True
    claims_lost: bool = False
    requests: dict[str, AdmittedRequest] = field(default_factory=dict)
    poison: dict[int, bool] = field(default_factory=dict)
    poison_after: int = 0
    """So many tokens of an answer are harmless."""
    """First tokens of prompts that kill the engine, before they get a token; True: and its worker."""
    voids_are_late: bool = False
    """Until `say_voids`, as when post-safety is away."""
    moves_are_late: bool = False
    """Until `place`, as when admission is away."""
    halted: set[str] = field(default_factory=set)
    """What ends in any case: whatever becomes of its worker, post-safety writes so."""
    commits_checked: int = 0

    def __post_init__(self) -> None:
        self.log = MemoryLog(lambda: self.now_ms)
        for topic in TOPICS.all([]):
            self.log.create_topic(topic.name, topic.partitions)
        self.ids = count(1)
        self._judged = [0] * TOPICS.generated.partitions
        self._workers: dict[str, str] = {}
        self._late_voids: list[AttemptVoid] = []
        self._unplaced: list[AdmittedRequest] = []
        self.records_of: dict[str, list[AdmittedRequest]] = {}
        """By response: its record for each place that it was put to."""
        self.prefixes: dict[str, AcceptedPrefix] = {}
        self.text: dict[str, list[str]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.of_choice: dict[tuple[str, int], list[int]] = {}

    def request(
        self,
        lane: Lane = Lane.STANDARD,
        *,
        max_tokens: int = 12,
        deadline_ms: int = 10**9,
        partition: int = 0,
        choices: int = 1,
        inputs: int = 0,
        prompt: int = 4,
        tenant_id: str = SCOPE.tenant_id,
        weight: int = 1,
        begins: int | None = None,
        moved: bool = False,
        further: int = 0,
        losses: int = 0,
        cache_id: str = "",
        spills: int = 0,
        continuation: bool = True,
        **sampling: Any,
    ) -> str:
        """`moved`: it failed in another pool, where so many workers were lost with it: `losses`. It has so many
        `further` places, all of them this pool again.

        With `inputs` so many texts of three tokens, to be embedded, else with a prompt of so many, of which the
        first is `begins`; none begins as another one does where that is left out.
        """
        number = len(self.requests)
        response_id, generated_partition = f"resp_test-0_{number:032x}", number % 2
        token_ids = [*range(10, 10 + 3 * inputs)] if inputs else [begins or 1_000 + number, *range(7, 6 + prompt)]
        common: dict[str, Any] = {
            "response_id": response_id, "scope": SCOPE.model_copy(update={"tenant_id": tenant_id}),
            "endpoint": "embeddings" if inputs else "chat.completions",
            "model": "m", "requested_model": "m", "pool": "pool", "lane": lane, "reply_to": ReplyTo(partition=0),
            "max_tokens": 0 if inputs else max_tokens, "choices": choices, "accepted_at_ms": self.now_ms,
            "admitted_at_ms": self.now_ms, "deadline_ms": deadline_ms,
        }  # fmt: skip
        opened = Opened(
            **common, lane_partition=partition, prompt_tokens=len(token_ids), reserved_tokens=0,
            further=["pool"] * (moved + further),
        )  # fmt: skip
        offset = self.log.append(TOPICS.generated.name, opened.encode(), partition=generated_partition)
        if moved:
            ending = self._elsewhere(response_id, None, 0)
            offset = 1 + self.log.append(TOPICS.generated.name, ending.encode(), partition=generated_partition)
        admitted = self.requests[response_id] = AdmittedRequest(
            **common, prompt_token_ids=token_ids, input_ends=[*range(3, 3 * inputs + 1, 3)],
            sampling=Sampling.model_validate({"ignore_eos": True, **sampling}),
            generated_partition=generated_partition, opened_offset=offset, weight=weight, move=int(moved),
            losses=losses, cache_id=cache_id, spills=spills, continuation=continuation,
        )  # fmt: skip
        self.records_of[response_id] = [admitted]
        self.put(admitted, partition)
        return response_id

    def put(self, request: AdmittedRequest, partition: int) -> None:
        """Once more, where it was put before: admission may do so."""
        topic = TOPICS.lane("pool", request.lane).name
        self.log.append(topic, request.encode(), key=request.response_id, partition=partition)

    def desert(self, response_id: str) -> None:
        """Post-safety finds that nobody works where it is, as far as it knows: it is moved, unless it has begun."""
        self.judge()
        prefix = self.prefixes[response_id]
        if prefix.moves == prefix.most_moves:
            return
        ending = self._elsewhere(response_id, prefix.attempt_id or "", prefix.moves)
        partition = self.requests[response_id].generated_partition
        self.log.append(TOPICS.generated.name, ending.encode(), partition=partition)
        self.judge()

    def _elsewhere(self, response_id: str, attempt_id: str | None, move: int) -> Ending:
        return Ending(
            response_id=response_id, scope=SCOPE, code=EndingCode.ENGINE_FAILED, written_by="post-safety",
            attempt_id=attempt_id, move=move, elsewhere=True, reply_to=ReplyTo(partition=0),
            accepted_at_ms=self.now_ms,
        )  # fmt: skip

    def place(self) -> None:
        """What was moved, from now on at once."""
        self.moves_are_late = False
        while self._unplaced:
            request = self._unplaced.pop(0)
            self.put(request, request.move % TOPICS.counts.lane)

    def control(self, record: Cancel | Halt | AttemptVoid) -> None:
        if isinstance(record, Halt):
            self.halted.add(record.response_id)
        self.log.append(TOPICS.control.name, record.encode())

    def cancel(self, response_id: str, reason: Literal["client", "budget"] = "client") -> None:
        self.control(Cancel(response_id=response_id, scope=SCOPE, reason=reason, requested_at_ms=self.now_ms))

    def judge(self) -> None:
        """Folds what is new on `generated`, and answers fences that do not count."""
        for partition in range(TOPICS.generated.partitions):
            records = self.log.records(TOPICS.generated.name, partition)[self._judged[partition] :]
            self._judged[partition] += len(records)
            for record in records:
                self._fold(GENERATED.validate_json(record.value or b""), record.offset)

    def _fold(self, record: Opened | Fence | Frame | Ending, offset: int) -> None:
        if isinstance(record, Opened):
            self.prefixes[record.response_id] = AcceptedPrefix(record.choices, most_moves=len(record.further))
            self.text[record.response_id] = []
            self.tokens[record.response_id] = []
            for choice in range(record.choices):
                self.of_choice[record.response_id, choice] = []
        elif isinstance(record, Fence):
            prefix = self.prefixes[record.response_id]
            self._workers[record.attempt_id] = record.worker_id
            displaced = prefix.attempt_id
            verdict = prefix.fence(record, offset)
            if verdict != "current":
                self._say_void(record.response_id, record.attempt_id, verdict)
            elif displaced not in (None, record.attempt_id):
                self._say_void(record.response_id, displaced, "superseded")
        elif isinstance(record, Ending):
            if self.prefixes[record.response_id].ending(record) == "moved":
                self._moved(record.response_id, offset)
        else:
            for row, response_id in enumerate(record.response_id):
                tokens = record.token_ids[row]
                prefix = self.prefixes[response_id]
                before = prefix.accepted_tokens
                _, known = prefix.row(
                    record.attempt_id[row], record.choice[row], record.first_sequence[row], len(tokens),
                    record.finish[row],
                )  # fmt: skip
                if prefix.accepted_tokens > before:
                    cut = record.text_ends[row][known - 1] if known else 0
                    self.text[response_id].append(record.text[row][cut:])
                    self.tokens[response_id].extend(tokens[known:])
                    self.of_choice[response_id, record.choice[row]].extend(tokens[known:])

    def _moved(self, response_id: str, offset: int) -> None:
        move, before = self.prefixes[response_id].moves, self.requests[response_id]
        if before.move >= move:
            return
        losses = self.prefixes[response_id].losses
        request = before.model_copy(update={"move": move, "opened_offset": offset + 1, "losses": losses})
        self.requests[response_id] = request
        self.records_of[response_id].append(request)
        self._unplaced.append(request)
        if not self.moves_are_late:
            self.place()

    def _say_void(
        self, response_id: str, attempt_id: str, why: Literal["tokens_precede", "superseded", "ended"]
    ) -> None:
        void = AttemptVoid(
            response_id=response_id, scope=SCOPE, attempt_id=attempt_id, worker_id=self._workers[attempt_id], why=why,
            begun_offset=self.prefixes[response_id].begun_offset,
        )  # fmt: skip
        if self.voids_are_late:
            self._late_voids.append(void)
        else:
            self.control(void)

    def say_voids(self) -> None:
        """From now on at once."""
        self.voids_are_late = False
        while self._late_voids:
            self.control(self._late_voids.pop(0))

    def terminal(self, response_id: str) -> EndingCode | None:
        self.judge()
        return self.prefixes[response_id].terminal

    def open_responses(self) -> list[str]:
        return [response_id for response_id in self.requests if self.terminal(response_id) is None]

    def records(self, topic: str, kind: type[Any], adapter: Any) -> list[Any]:
        found = (adapter.validate_json(record.value or b"") for record in self.log.records(topic))
        return [record for record in found if isinstance(record, kind)]

    def fences(self) -> list[Fence]:
        return self.records(TOPICS.generated.name, Fence, GENERATED)

    def frames(self) -> list[Frame]:
        return self.records(TOPICS.generated.name, Frame, GENERATED)

    def endings(self) -> list[Ending]:
        return self.records(TOPICS.generated.name, Ending, GENERATED)

    def computed(self) -> list[ComputeRecord]:
        return self.records(TOPICS.usage.name, ComputeRecord, USAGE)

    def answers_to(self, response_id: str) -> list[list[int]]:
        """What the engine says, undisturbed: of each choice."""
        engine = SimulatedCore(ENGINE)
        request = self.requests[response_id]
        asked = EngineRequest("r", list(request.prompt_token_ids), request.sampling, request.max_tokens)
        engine.submit(replace(asked, choices=request.choices), 0.0)
        answers: list[list[int]] = [[] for _ in range(request.choices)]
        for delta in run(engine):
            answers[delta.choice] += delta.token_ids
        return answers
