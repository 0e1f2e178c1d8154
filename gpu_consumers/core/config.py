"""What a worker's core is told once: its settings, and who counts what it does."""

from dataclasses import dataclass
from typing import Literal, Protocol

from gpu_consumers.core.capacity import DEFAULT_MEMORY, MemoryPolicy
from gpu_consumers.core.engine_circuit import DEFAULT_CIRCUIT, CircuitPolicy
from gpu_consumers.core.scheduler import Sizes, Why
from schemas.request import Lane
from streams.brownout import DEFAULT_POLICY, BrownoutPolicy
from streams.lane_policy import LANE_POLICIES, LanePolicies
from streams.topics import Topics

EngineKind = Literal["vllm", "simulated"]


@dataclass(frozen=True, slots=True)
class CoreConfig:
    worker_id: str
    pool: str
    model: str
    engine: EngineKind
    topics: Topics
    home_partitions: tuple[int, ...]
    lease_ms: int
    max_running: int
    healthy_buffer: int
    max_uncommitted_records: int
    max_uncommitted_bytes: int
    coalesce_ms: int
    coalesce_rows_per_s: int
    dimensions: int = 0
    """How many numbers the vectors of its engine have; 0: it gives text."""
    headroom: float = 0.0
    """The part of `max_running` that is kept free for who holds little."""
    max_pauses: int = 3
    """Of one answer of a lane in which nobody waits for first tokens."""
    spills_per_s: int = 64
    """Unstarted requests that may go to other workers, at most; 0: none."""
    memory: MemoryPolicy = DEFAULT_MEMORY
    lanes: LanePolicies = LANE_POLICIES
    brownout: BrownoutPolicy = DEFAULT_POLICY
    """Says when a first token is late."""
    circuit: CircuitPolicy = DEFAULT_CIRCUIT

    @property
    def embeds(self) -> bool:
        """Vectors are numbered like tokens, counted nowhere as such, and never joined to others in a row."""
        return self.dimensions > 0

    @property
    def memory_policy(self) -> MemoryPolicy:
        """What is embedded grows by nothing, and is gone in milliseconds: there the engine's own order is as good."""
        return MemoryPolicy(foresight=0) if self.embeds else self.memory

    @property
    def sizes(self) -> Sizes:
        """A vector takes its place for milliseconds: for these nothing is kept free."""
        headroom = 0 if self.embeds else int(self.headroom * self.max_running)
        return Sizes(self.max_running, headroom, self.healthy_buffer)


class Observer(Protocol):
    """Told what metrics count; decides nothing."""

    def started(self, lane: Lane, why: Why, waited_ms: int) -> None: ...

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None: ...

    def prompt(self, tokens: int, cached: int) -> None:
        """Its answer has begun; so many of its tokens were in the prefix cache."""

    def tokens(self, count: int) -> None: ...

    def closed(self, outcome: str, tokens_each: float, first_token_ms: int, last_token_ms: int) -> None:
        """`tokens_each`: of its choices, on average."""

    def spilled(self, lane: Lane) -> None:
        """A request went to another worker, unstarted."""

    def parser_failed(self, error: str) -> None: ...


class NoObserver:
    def started(self, lane: Lane, why: Why, waited_ms: int) -> None: ...

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None: ...

    def prompt(self, tokens: int, cached: int) -> None: ...

    def tokens(self, count: int) -> None: ...

    def closed(self, outcome: str, tokens_each: float, first_token_ms: int, last_token_ms: int) -> None: ...

    def parser_failed(self, error: str) -> None: ...

    def spilled(self, lane: Lane) -> None: ...
