"""What a worker does with responses that other attempts may have begun. Pure."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gpu_consumers.core.effects import AskReadBack
from gpu_consumers.engines.port import Accepted
from schemas.codec import Undecodable, decode
from schemas.generated import GENERATED, Ending, Fence, Frame, Opened
from streams.accepted_prefix import AcceptedPrefix, fold_frame

Finding = Literal["ended", "superseded", "generate", "interrupted"]

FEW_ASKS = 8
"""For so many, looking for their ids in a record costs a fraction of parsing it."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The answer to an ask. `attempts` counts those that the log holds, its own included; `silent_attempts` those
    before its own of which nothing was accepted, since something last was.

    `ended`: there is a terminal, or it was moved to another pool. `superseded`: the own fence was not found, or does
    not count. `generate`: nothing was accepted, the fenced attempt may begin. `interrupted`: tokens were `accepted`, or
    the end of a choice. `is_foreign`: a worker of another model has said some of it, so its tokens mean nothing to the
    model of the own fence.
    """

    ask: AskReadBack
    finding: Finding
    attempts: int = 0
    silent_attempts: int = 0
    accepted: Accepted | None = None
    is_foreign: bool = False


class _Response:
    """What the log has of one response so far."""

    def __init__(self, choices: int, move: int) -> None:
        # Where it goes on from here is others' to say: what ends it here, or moves it, ends the work here.
        self.prefix = AcceptedPrefix(choices, moves=move, most_moves=move + 1)
        self.token_ids = [array("I") for _ in range(choices)]
        self.chars = [0] * choices
        self._model = ""
        self._said_by: set[str] = set()
        self.attempts_before = 0
        """Those until something was last accepted, with the one that said it."""

    def fence(self, fence: Fence, offset: int) -> None:
        if self.prefix.fence(fence, offset) == "current":
            self._model = fence.model

    def accept(self, frame: Frame, row: int, known: int) -> None:
        choice, ends = frame.choice[row], frame.text_ends[row]
        self.token_ids[choice].extend(frame.token_ids[row][known:])
        self.chars[choice] += len(frame.text[row]) - (ends[known - 1] if known else 0)
        self.attempts_before = self.prefix.attempts
        self._said_by.add(self._model)

    def answer(self, ask: AskReadBack) -> ReadBack:
        prefix = self.prefix
        if prefix.terminal is not None or prefix.moves != ask.move:
            return ReadBack(ask, "ended", prefix.attempts)
        if prefix.attempt_id != ask.attempt_id:
            return ReadBack(ask, "superseded", prefix.attempts)
        silent = prefix.attempts - 1 - self.attempts_before
        if not prefix.accepted_tokens and not prefix.finished:
            return ReadBack(ask, "generate", prefix.attempts, silent)
        accepted = Accepted(self.token_ids, self.chars, frozenset(prefix.finished))
        # Fences of older releases name no model.
        is_foreign = bool(self._said_by - {"", self._model})
        return ReadBack(ask, "interrupted", prefix.attempts, silent, accepted, is_foreign)


class PartitionReadBack:
    """Folds one partition of `generated` for many asks in one pass: each row is looked at once, however many they are.

    Each ask is folded from its `first_offset` up to its own fence. `next_offset` is where to read on, also after an
    interruption; at `end` every ask has been answered.
    """

    def __init__(self, asks: Iterable[AskReadBack]) -> None:
        """Of several asks for one response the last one counts: the others are of attempts before it."""
        latest = {ask.response_id: ask for ask in asks}
        self._later = deque(sorted(latest.values(), key=lambda ask: ask.first_offset))
        self._asks: dict[str, AskReadBack] = {}
        self._responses: dict[str, _Response] = {}
        self._prefixes: dict[str, AcceptedPrefix] = {}
        self.next_offset = self._later[0].first_offset
        self.rows_folded = 0

    @property
    def end(self) -> int:
        """0 when nothing is asked any more."""
        return max((ask.fence_offset + 1 for ask in (*self._asks.values(), *self._later)), default=0)

    def keep(self, is_wanted: Callable[[AskReadBack], bool]) -> None:
        """Forgets the asks that nobody waits for any more."""
        self._later = deque(ask for ask in self._later if is_wanted(ask))
        for response_id in [each for each, ask in self._asks.items() if not is_wanted(ask)]:
            self._forget(response_id)

    def fold(self, offset: int, value: bytes | None) -> list[ReadBack]:
        """Takes the next record; returns what is answered by it."""
        answers = self.pass_by(offset)
        while self._later and self._later[0].first_offset <= offset:
            ask = self._later.popleft()
            self._asks[ask.response_id] = ask
            response = self._responses[ask.response_id] = _Response(ask.choices, ask.move)
            self._prefixes[ask.response_id] = response.prefix
        self.next_offset = offset + 1
        if not self._asks or value is None:
            return answers
        if len(self._asks) <= FEW_ASKS and not any(response_id.encode() in value for response_id in self._asks):
            return answers
        try:
            record = decode(GENERATED, value)
        except Undecodable:
            return answers  # every reader of `generated` passes over it alike
        self._fold(record, offset)
        if isinstance(record, Fence):
            asked = self._asks.get(record.response_id)
            if asked is not None and asked.attempt_id == record.attempt_id:
                answers.append(self._responses[record.response_id].answer(asked))
                self._forget(record.response_id)
        return answers

    def pass_by(self, offset: int) -> list[ReadBack]:
        """Nothing more is to come below `offset`: whose fence should have stood there was superseded."""
        self.next_offset = max(self.next_offset, offset)
        missed = [ask for ask in (*self._asks.values(), *self._later) if ask.fence_offset < offset]
        self._later = deque(ask for ask in self._later if ask.fence_offset >= offset)
        for ask in missed:
            if ask.response_id in self._asks:
                self._forget(ask.response_id)
        return [ReadBack(ask, "superseded") for ask in missed]

    def _fold(self, record: Opened | Fence | Frame | Ending, offset: int) -> None:
        if isinstance(record, Frame):
            self.rows_folded += len(record)
            for row, known in fold_frame(self._prefixes, record):
                self._responses[record.response_id[row]].accept(record, row, known)
            return
        self.rows_folded += 1
        response = self._responses.get(record.response_id)
        if response is None:
            return
        if isinstance(record, Fence):
            response.fence(record, offset)
        elif isinstance(record, Ending):
            response.prefix.ending(record)

    def _forget(self, response_id: str) -> None:
        del self._asks[response_id], self._responses[response_id], self._prefixes[response_id]
