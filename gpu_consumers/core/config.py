"""What a worker's core is told once: its settings, and who counts what it does."""

from dataclasses import dataclass
from typing import Literal, Protocol

from schemas.request import Lane
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

    @property
    def embeds(self) -> bool:
        """Vectors are numbered like tokens, counted nowhere as such, and never joined to others in a row."""
        return self.dimensions > 0


class Observer(Protocol):
    """Told what metrics count; decides nothing."""

    def started(self, lane: Lane, waited_ms: int) -> None: ...

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None: ...

    def tokens(self, count: int) -> None: ...

    def closed(self, outcome: str, tokens_each: float, first_token_ms: int, last_token_ms: int) -> None:
        """`tokens_each`: of its choices, on average."""

    def parser_failed(self, error: str) -> None: ...


class NoObserver:
    def started(self, lane: Lane, waited_ms: int) -> None: ...

    def first_token(self, lane: Lane, since_accepted_ms: int) -> None: ...

    def tokens(self, count: int) -> None: ...

    def closed(self, outcome: str, tokens_each: float, first_token_ms: int, last_token_ms: int) -> None: ...

    def parser_failed(self, error: str) -> None: ...
