"""Collects the rows of one engine step for one partition of `generated`."""

from gpu_consumers.engine import EngineDelta
from schemas.base import Scope
from schemas.generated import Frame, Kind

MAX_FRAME_ROWS = 1_024
"""More rows make another record: 1,024 rows stay far below the topic's largest message."""


class FrameColumns:
    """Grows by row and encodes once. Scopes are told apart by identity: callers share equal ones."""

    def __init__(self) -> None:
        self._scopes: list[Scope] = []
        self._scope_index: dict[int, int] = {}
        self._scope: list[int] = []
        self._response_id: list[str] = []
        self._first_sequence: list[int] = []
        self._deltas: list[EngineDelta] = []

    def __len__(self) -> int:
        return len(self._deltas)

    @property
    def attempt_ids(self) -> list[str]:
        return [delta.request_id for delta in self._deltas]

    def add(self, scope: Scope, response_id: str, first_sequence: int, delta: EngineDelta) -> None:
        index = self._scope_index.get(id(scope))
        if index is None:
            index = self._scope_index[id(scope)] = len(self._scopes)
            self._scopes.append(scope)
        self._scope.append(index)
        self._response_id.append(response_id)
        self._first_sequence.append(first_sequence)
        self._deltas.append(delta)

    def encode(self, worker_id: str, emitted_at_us: int) -> bytes:
        """A `Frame`. Validation is left to its readers: on this path it would cost more than everything else."""
        deltas = self._deltas
        kind: list[Kind] = ["content"] * len(deltas)
        return Frame.model_construct(
            worker_id=worker_id,
            emitted_at_us=emitted_at_us,
            scopes=self._scopes,
            scope=self._scope,
            response_id=self._response_id,
            attempt_id=self.attempt_ids,
            choice=[delta.choice for delta in deltas],
            first_sequence=self._first_sequence,
            kind=kind,
            token_ids=[delta.token_ids for delta in deltas],
            text=[delta.text for delta in deltas],
            text_ends=[delta.text_ends for delta in deltas],
            logprobs=[delta.logprobs for delta in deltas],
            finish=[delta.finish for delta in deltas],
            cached_tokens=[delta.cached_tokens for delta in deltas],
        ).encode()
