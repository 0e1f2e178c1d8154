"""Collects the rows of one engine step for one partition of `generated`."""

from gpu_consumers.engine import EngineDelta
from schemas.base import Scope
from schemas.generated import FinishReason, Frame, Kind

MAX_FRAME_ROWS = 1_024
"""More rows make another record: 1,024 rows stay far below the topic's largest message."""


class FrameColumns:
    """Grows by row and encodes once. Scopes are told apart by identity: callers share equal ones."""

    def __init__(self) -> None:
        self._scopes: list[Scope] = []
        self._scope_index: dict[int, int] = {}
        self._scope: list[int] = []
        self._response_id: list[str] = []
        self.attempt_ids: list[str] = []
        self._choice: list[int] = []
        self._first_sequence: list[int] = []
        self._token_ids: list[list[int]] = []
        self._text: list[str] = []
        self._text_ends: list[list[int]] = []
        self._logprobs: list[list[float] | None] = []
        self._finish: list[FinishReason] = []
        self._cached_tokens: list[int] = []

    def __len__(self) -> int:
        return len(self._response_id)

    def add(self, scope: Scope, response_id: str, first_sequence: int, delta: EngineDelta) -> None:
        index = self._scope_index.get(id(scope))
        if index is None:
            index = self._scope_index[id(scope)] = len(self._scopes)
            self._scopes.append(scope)
        self._scope.append(index)
        self._response_id.append(response_id)
        self.attempt_ids.append(delta.request_id)
        self._choice.append(delta.choice)
        self._first_sequence.append(first_sequence)
        self._token_ids.append(delta.token_ids)
        self._text.append(delta.text)
        self._text_ends.append(delta.text_ends)
        self._logprobs.append(delta.logprobs)
        self._finish.append(delta.finish)
        self._cached_tokens.append(delta.cached_tokens)

    def encode(self, worker_id: str, emitted_at_us: int) -> bytes:
        """A `Frame`. Validation is left to its readers: on this path it would cost more than everything else."""
        kind: list[Kind] = ["content"] * len(self)
        return Frame.model_construct(
            worker_id=worker_id,
            emitted_at_us=emitted_at_us,
            scopes=self._scopes,
            scope=self._scope,
            response_id=self._response_id,
            attempt_id=self.attempt_ids,
            choice=self._choice,
            first_sequence=self._first_sequence,
            kind=kind,
            token_ids=self._token_ids,
            text=self._text,
            text_ends=self._text_ends,
            logprobs=self._logprobs,
            finish=self._finish,
            cached_tokens=self._cached_tokens,
        ).encode()
