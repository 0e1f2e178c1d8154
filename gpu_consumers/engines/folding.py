"""Answers of an engine that are read token by token (`gpu_consumers.parsing`), in turns beside everything else."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

import structlog

from gpu_consumers.engines.beyond import Beyond
from gpu_consumers.engines.port import Accepted, EngineDelta, EngineRequest
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.rows import Row
from schemas.generated import FinishReason
from schemas.logprobs import RowLogprobs

REPLAYED_AT_ONCE: Final = 16
"""Tokens of an answer that is continued: they are folded in turns like those that are new."""
TURN_S: Final = 0.004
"""How long the loop does nothing else at a time, and one token more: with long arguments some parsers take
milliseconds for one."""

_log = structlog.get_logger()


class Step(NamedTuple):
    """What an engine has generated for a choice of a request, and whether its last token made that end."""

    token_ids: Sequence[int]
    finish: FinishReason
    by_token: bool
    cached_tokens: int
    choice: int = 0
    logprobs: RowLogprobs = None


@dataclass(slots=True, eq=False)
class _Answers:
    """Those to one request: their folds, made as they begin, and the steps that wait; `beyond`, of choices that are
    continued, says what is news.

    `spent_s` is how long reading them has taken, and at least what the least has taken of those that waited meanwhile.
    """

    request_id: str
    new_fold: Callable[[], Fold]
    open_choices: set[int]
    beyond: dict[int, Beyond] = field(default_factory=dict)
    folds: dict[int, Fold] = field(default_factory=dict)
    steps: deque[Step] = field(default_factory=deque)
    spent_s: float = 0.0


class Folding:
    """The folds of an engine's requests, and the steps that wait for them. Requests share the time, whatever each of
    their steps takes and however many choices they have: one that is slow to read is late alone.
    """

    def __init__(self, names: ParserNames, clock: Callable[[], float] = time.perf_counter) -> None:
        self._names = names
        self._clock = clock
        self._logged_errors: set[str] = set()
        self._answers: dict[str, _Answers] = {}
        self._waiting: list[tuple[float, int, _Answers]] = []
        """A heap, by what was spent; also of what was dropped since, which has no steps."""
        self._order = count()
        self._least_spent_s = 0.0
        self._stopped: list[tuple[str, int | None]] = []

    @property
    def is_behind(self) -> bool:
        return bool(self._waiting)

    def begin(self, request: EngineRequest, new_fold: Callable[[], Fold]) -> None:
        """What is accepted of it is folded before anything that is put."""
        answers = _Answers(request.request_id, new_fold, set(request.open_choices))
        self._answers[request.request_id] = answers
        if request.accepted is not None:
            self._replay(answers, request.accepted, asks_logprobs=request.sampling.logprobs is not None)

    def _replay(self, answers: _Answers, accepted: Accepted, *, asks_logprobs: bool) -> None:
        for choice in answers.open_choices:
            token_ids = accepted.token_ids[choice]
            answers.beyond[choice] = Beyond(len(token_ids), accepted.chars[choice])
            for begin in range(0, len(token_ids), REPLAYED_AT_ONCE):
                tokens = token_ids[begin : begin + REPLAYED_AT_ONCE]
                nothing: RowLogprobs = [[("", 0.0)] for _ in tokens] if asks_logprobs else None
                self.put(answers.request_id, Step(tokens, "", False, 0, choice, nothing))

    def put(self, request_id: str, step: Step) -> None:
        """Of a request that was begun; nothing is said of one that is over."""
        answers = self._answers.get(request_id)
        if answers is None:
            return
        if not answers.steps:
            answers.spent_s = max(answers.spent_s, self._least_spent_s)
            self._wait(answers)
        answers.steps.append(step)

    def turn(self) -> list[EngineDelta]:
        """What comes of the steps that wait, of as many as there is time for. After the `finish` of its last choice, or
        an `error`, its request is over here.
        """
        began_s = now_s = self._clock()
        deltas: list[EngineDelta] = []
        while self._waiting and now_s - began_s < TURN_S:
            spent_s, _, answers = heappop(self._waiting)
            if not answers.steps:
                continue
            self._least_spent_s = spent_s
            deltas += self._folded(answers, answers.steps.popleft())
            then_s, now_s = now_s, self._clock()
            answers.spent_s += now_s - then_s
            if answers.steps:
                self._wait(answers)
        return deltas

    def take_stopped(self) -> list[tuple[str, int | None]]:
        """What ended here alone: a choice, by a stop string or too large a call, or (None) all of a request, because
        its parser failed.
        """
        stopped, self._stopped = self._stopped, []
        return stopped

    def drop(self, request_id: str) -> None:
        """Nothing more is to be read of it."""
        answers = self._answers.pop(request_id, None)
        if answers is not None:
            answers.folds.clear()
            answers.steps.clear()

    def clear(self) -> None:
        self._answers.clear()
        self._waiting.clear()

    def _wait(self, answers: _Answers) -> None:
        heappush(self._waiting, (answers.spent_s, next(self._order), answers))

    def _folded(self, answers: _Answers, step: Step) -> list[EngineDelta]:
        request_id = answers.request_id
        if step.choice not in answers.open_choices:
            return []
        try:
            fold = answers.folds.get(step.choice)
            if fold is None:
                fold = answers.folds[step.choice] = answers.new_fold()
            rows = fold.feed(step.token_ids, step.finish, by_token=step.by_token, logprobs=step.logprobs)
        # A parser may fail with anything at all on what a model says; it is told as this request's end.
        except Exception as error:  # noqa: BLE001
            self.drop(request_id)
            self._stopped.append((request_id, None))
            kind = type(error).__name__
            self._log_once(kind)
            return [
                EngineDelta(request_id, step.choice, [], "", [], error=f"its parser failed: {kind}", parser_error=kind)
            ]
        if fold.is_over:
            self._end(answers, step)
        deltas = as_deltas(request_id, step.choice, rows, step.cached_tokens)
        beyond = answers.beyond.get(step.choice)
        if beyond is None:
            return deltas
        news = beyond.among(deltas)
        if beyond.is_other:
            self.drop(request_id)
            self._stopped.append((request_id, None))
            return [EngineDelta.failure(request_id, "it was begun by other parsers", is_not_continued=True)]
        return news

    def _log_once(self, error: str) -> None:
        """Without its message, which may hold what the model said."""
        if error not in self._logged_errors:
            self._logged_errors.add(error)
            _log.error(
                "parser_failed", tool_parser=self._names.tool, reasoning_parser=self._names.reasoning, error=error
            )

    def _end(self, answers: _Answers, step: Step) -> None:
        """The choice of this step is over."""
        answers.open_choices.remove(step.choice)
        del answers.folds[step.choice]
        if not answers.open_choices:
            self.drop(answers.request_id)
        if not step.finish:
            self._stopped.append((answers.request_id, step.choice))


def as_deltas(request_id: str, choice: int, rows: Sequence[Row], cached_tokens: int) -> list[EngineDelta]:
    return [
        EngineDelta(
            request_id, choice, row.token_ids, row.text, row.text_ends, row.finish, cached_tokens,
            kind=row.kind, call=row.call, logprobs=row.logprobs, stopped_by=row.stopped_by,
        )
        for row in rows
    ]  # fmt: skip
