"""Collects the rows of one engine step for one partition of `generated`, and joins steps while there are many rows."""

from gpu_consumers.engines.port import EngineDelta
from schemas.base import Scope
from schemas.generated import Frame, Kind

MAX_FRAME_ROWS = 1_024
"""More rows make another record: 1,024 rows stay far below the topic's largest message. A long row counts as many as it
is long.
"""
_ROW_BYTES = 1_024
_TOKEN_BYTES, _ALTERNATIVE_BYTES, _CHAR_BYTES = 24, 30, 6
"""At most, in JSON: of a token and where its text ends, of one and its probability, and of each character of a text."""
_SHORT_CHARS, _SHORT_TOKENS = 96, 16
"""Up to here a row is no longer than itself, which costs no call to find out: this runs once per token."""
_OF_TOOLS = frozenset[Kind]({"tool_name", "tool_arguments"})


class FrameColumns:
    """Grows by row and encodes once. Scopes are told apart by identity: callers share equal ones."""

    def __init__(self) -> None:
        self._scopes: list[Scope] = []
        self._scope_index: dict[int, int] = {}
        self._scope: list[int] = []
        self._response_id: list[str] = []
        self._first_sequence: list[int] = []
        self._deltas: list[EngineDelta] = []
        self._room = MAX_FRAME_ROWS
        self._has_logprobs = False
        self.finished_ids: list[str] = []
        """The attempts that end here."""

    @property
    def attempt_ids(self) -> list[str]:
        return [delta.request_id for delta in self._deltas]

    def add(self, scope: Scope, response_id: str, first_sequence: int, delta: EngineDelta) -> bool:
        """Whether there was room for it; if not, nothing has changed. The first row always has room."""
        length = 1
        if len(delta.text) > _SHORT_CHARS or len(delta.token_ids) > _SHORT_TOKENS or delta.logprobs is not None:
            length += _rows_beyond(delta)
        if length > self._room and self._deltas:
            return False
        self._room -= length
        index = self._scope_index.get(id(scope))
        if index is None:
            index = self._scope_index[id(scope)] = len(self._scopes)
            self._scopes.append(scope)
        self._scope.append(index)
        self._response_id.append(response_id)
        self._first_sequence.append(first_sequence)
        self._deltas.append(delta)
        if delta.logprobs is not None:
            self._has_logprobs = True
        return True

    def encode(self, worker_id: str, emitted_at_us: int) -> bytes:
        """A `Frame`. Validation is left to its readers: on this path it would cost more than everything else."""
        deltas = self._deltas
        kind = [delta.kind for delta in deltas]
        finish = [delta.finish for delta in deltas]
        stopped_by = [delta.stopped_by for delta in deltas] if any(finish) else []
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
            logprobs=[delta.logprobs for delta in deltas] if self._has_logprobs else [None] * len(deltas),
            finish=finish,
            cached_tokens=[delta.cached_tokens for delta in deltas],
            call=None if _OF_TOOLS.isdisjoint(kind) else [delta.call for delta in deltas],
            stopped_by=None if stopped_by.count(None) == len(stopped_by) else stopped_by,
        ).encode()


def joined(first: EngineDelta, then: EngineDelta) -> EngineDelta:
    """Two deltas of one choice, kind and call, both with probabilities or neither, in their order, as one; neither is
    changed.
    """
    length = len(first.text)
    return EngineDelta(
        then.request_id,
        then.choice,
        first.token_ids + then.token_ids,
        first.text + then.text,
        first.text_ends + [length + end for end in then.text_ends],
        then.finish,
        first.cached_tokens,
        kind=then.kind,
        call=then.call,
        logprobs=None if first.logprobs is None else first.logprobs + (then.logprobs or []),
        stopped_by=then.stopped_by,
    )


def _rows_beyond(delta: EngineDelta) -> int:
    """That are as long as this one is, beside itself."""
    # A vector stands there as base64, of which nothing is escaped.
    size_bytes = (1 if delta.kind == "embedding" else _CHAR_BYTES) * len(delta.text)
    size_bytes += _TOKEN_BYTES * len(delta.token_ids)
    if delta.logprobs is not None:
        alternatives = [text for token in delta.logprobs for text, _ in token]
        size_bytes += _ALTERNATIVE_BYTES * len(alternatives) + _CHAR_BYTES * sum(map(len, alternatives))
    return size_bytes // _ROW_BYTES


class HeldRows:
    """Rows that wait to leave with those of the next steps: every row costs the same downstream, whatever it holds. Of
    each choice of an attempt one; all of an attempt are as old as the oldest, so that they leave in their order.

    They wait under pressure alone, and no longer than `hold_us` if steps keep their pace: while what left before is not
    acknowledged (as in Nagle's algorithm, RFC 896), and where more than `rows_per_s` would leave.
    """

    def __init__(self, hold_us: int, rows_per_s: int) -> None:
        self._hold_us = hold_us
        self._rows_per_s = rows_per_s
        self.rows: dict[str, tuple[dict[int, EngineDelta], int]] = {}
        """By attempt: those of its choices, and their time. A row that has grown is put in its own place."""
        self._last_step_us = 0
        self._left_us = 0
        self._since_us = 0

    def __len__(self) -> int:
        return len(self.rows)

    def may_wait(self, rows: int, now_us: int, *, is_behind: bool) -> bool:
        """Whether the rows of this step, which has so many, may wait for the next one. Call it once for each step.

        `is_behind`: something that left before is not acknowledged yet.
        """
        step_us, self._last_step_us = now_us - self._last_step_us, now_us
        age_us = now_us - self._since_us if self.rows else 0
        are_too_many = rows * 1_000_000 > self._rows_per_s * (now_us - self._left_us)
        waits = (is_behind or are_too_many) and age_us + step_us <= self._hold_us
        if not waits:
            self._left_us = now_us
        return waits

    def put(self, row: EngineDelta, row_us: int) -> None:
        """The first of its attempt that waits. `row_us`: when the oldest token in it was generated."""
        self._since_us = min(self._since_us, row_us) if self.rows else row_us
        self.rows[row.request_id] = {row.choice: row}, row_us

    def remove(self, attempt_id: str, choice: int) -> None:
        """That of this choice, which waits."""
        rows, _ = self.rows[attempt_id]
        del rows[choice]
        if not rows:
            del self.rows[attempt_id]

    def drop(self, attempt_id: str) -> None:
        self.rows.pop(attempt_id, None)

    def pop_all(self) -> list[tuple[EngineDelta, int]]:
        waiting, self.rows = self.rows.values(), {}
        return [(row, since_us) for rows, since_us in waiting for row in rows.values()]

    def overdue(self, now_us: int) -> bool:
        return bool(self.rows) and abs(now_us - self._since_us) >= self._hold_us

    def are_ahead_of(self, now_us: int) -> bool:
        """The clock was set back since the last step: a row of now would pass for an older one than those here."""
        return bool(self.rows) and now_us < self._last_step_us
