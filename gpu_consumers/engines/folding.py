"""Answers of an engine that are read token by token (`gpu_consumers.parsing`), in turns beside everything else."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from gpu_consumers.engines.port import EngineDelta
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.rows import Row
from schemas.generated import FinishReason

TURN_S: Final = 0.004
"""How long the loop does nothing else at a time, and one token more: with long arguments some parsers take
milliseconds for one."""

_log = structlog.get_logger()


class Step(NamedTuple):
    """What an engine has generated for a request, and whether its last token made it end."""

    token_ids: Sequence[int]
    finish: FinishReason
    by_token: bool
    cached_tokens: int


class Folding:
    """The folds of an engine's requests, and the steps that wait for them: each request is given one in its turn, so
    that an answer that is slow to read is late alone.
    """

    def __init__(self, names: ParserNames, clock: Callable[[], float] = time.perf_counter) -> None:
        self._names = names
        self._clock = clock
        self._logged_errors: set[str] = set()
        self._folds: dict[str, Fold] = {}
        self._waiting: OrderedDict[str, deque[Step]] = OrderedDict()
        self._stopped: list[str] = []

    @property
    def is_behind(self) -> bool:
        return bool(self._waiting)

    def begin(self, request_id: str, fold: Fold) -> None:
        self._folds[request_id] = fold

    def put(self, request_id: str, step: Step) -> None:
        """Of a request that was begun; nothing is said of one that is over."""
        if request_id in self._folds:
            self._waiting.setdefault(request_id, deque()).append(step)

    def turn(self) -> list[EngineDelta]:
        """What comes of the steps that wait, of as many as there is time for. After a delta with `finish` or `error`
        its request is over here.
        """
        until_s = self._clock() + TURN_S
        deltas: list[EngineDelta] = []
        while self._waiting:
            request_id, steps = self._waiting.popitem(last=False)
            step = steps.popleft()
            if steps:
                self._waiting[request_id] = steps
            deltas += self._folded(request_id, step)
            if self._clock() >= until_s:
                break
        return deltas

    def take_stopped(self) -> list[str]:
        """The requests that ended here alone: by a stop string, too large a call, or because their parser failed."""
        stopped, self._stopped = self._stopped, []
        return stopped

    def drop(self, request_id: str) -> None:
        """Nothing more is to be read of it."""
        self._folds.pop(request_id, None)
        self._waiting.pop(request_id, None)

    def clear(self) -> None:
        self._folds.clear()
        self._waiting.clear()

    def _folded(self, request_id: str, step: Step) -> list[EngineDelta]:
        fold = self._folds[request_id]
        try:
            rows = fold.feed(step.token_ids, step.finish, by_token=step.by_token)
        # A parser may fail with anything at all on what a model says; it is told as this request's end.
        except Exception as error:  # noqa: BLE001
            self._end(request_id, step)
            kind = type(error).__name__
            self._log_once(kind)
            return [EngineDelta(request_id, 0, [], "", [], error=f"its parser failed: {kind}", parser_error=kind)]
        if fold.is_over:
            self._end(request_id, step)
        return as_deltas(request_id, rows, step.cached_tokens)

    def _log_once(self, error: str) -> None:
        """Without its message, which may hold what the model said."""
        if error not in self._logged_errors:
            self._logged_errors.add(error)
            _log.error(
                "parser_failed", tool_parser=self._names.tool, reasoning_parser=self._names.reasoning, error=error
            )

    def _end(self, request_id: str, step: Step) -> None:
        self.drop(request_id)
        if not step.finish:
            self._stopped.append(request_id)


def as_deltas(request_id: str, rows: Sequence[Row], cached_tokens: int) -> list[EngineDelta]:
    return [
        EngineDelta(
            request_id, 0, row.token_ids, row.text, row.text_ends, row.finish, cached_tokens,
            kind=row.kind, call=row.call,
        )
        for row in rows
    ]  # fmt: skip
