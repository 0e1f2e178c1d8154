"""The fence rule under thousands of random interleavings of crashes, zombies, lost claims, copies and late records.

A model of one response: its partition of `generated` is a list, every worker has an outbox whose records reach the list
later or never. Tokens are named after the attempt that generated them, so a reader can see who wrote what. Of claims
only the place is modelled from which a takeover reads back: they may be lost at any moment, so any worker may begin
afresh or take over at any time, with the place of any claim that ever was.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Ending, Fence, FinishReason
from schemas.request import ReplyTo
from streams.accepted_prefix import AcceptedPrefix, RowVerdict

SCOPE = Scope(tenant_id="acme")
REPLY_TO = ReplyTo(partition=0)
LONGEST = 12

Token = tuple[str, int]
"""The attempt that generated it, and its place in the response."""


@dataclass(frozen=True)
class Row:
    attempt_id: str
    first_sequence: int
    tokens: tuple[Token, ...]
    finish: FinishReason
    choice: int = 0


LogEntry = Fence | Row | Ending


@dataclass
class Reader:
    """What every reader does: fold, and keep the accepted tokens."""

    prefix: AcceptedPrefix = field(default_factory=AcceptedPrefix)
    text: list[Token] = field(default_factory=list)
    terminals: list[EndingCode] = field(default_factory=list)
    void_fences: list[Fence] = field(default_factory=list)

    def fold(self, entry: LogEntry, offset: int) -> None:
        ended = self.prefix.terminal is not None
        if isinstance(entry, Fence):
            if self.prefix.fence(entry, offset) != "current":
                self.void_fences.append(entry)
        elif isinstance(entry, Ending):
            self.prefix.ending(entry)
        else:
            verdict, known = self.prefix.row(
                entry.attempt_id, entry.choice, entry.first_sequence, len(entry.tokens), entry.finish
            )  # fmt: skip
            if verdict is RowVerdict.ACCEPTED:
                self.text += entry.tokens[known:]
        if not ended and self.prefix.terminal is not None:
            self.terminals.append(self.prefix.terminal)


@dataclass
class Attempt:
    attempt_id: str
    basis: tuple[Token, ...]
    """The accepted text that it continues."""
    open: list[int]
    """The choices that it has to finish."""
    outbox: deque[LogEntry] = field(default_factory=deque)
    generated: int = 0
    running: bool = True
    alive: bool = True


class Response:
    """One response's life. The moves are methods; who makes them, and when, is up to the test."""

    def __init__(self, continues: bool, choices: int = 1) -> None:
        """`continues`: a takeover goes on behind accepted tokens; otherwise it ends the response there."""
        self.continues = continues
        self.choices = choices
        self.log: list[LogEntry] = []
        self.reader = self.new_reader()
        self.attempts: dict[str, Attempt] = {}
        self.claimed_from: int | None = None

    def new_reader(self) -> Reader:
        return Reader(AcceptedPrefix(self.choices))

    def claim(self) -> int:
        """Where the log ended at the first claim that is still known."""
        if self.claimed_from is None:
            self.claimed_from = len(self.log)
        return self.claimed_from

    def lose_claim(self) -> None:
        self.claimed_from = None

    def begin_afresh(self) -> None:
        """The claim is new, or was lost: no read-back. The fence and the first rows may be on their way for long."""
        attempt = self._attempt()
        attempt.outbox.append(self._fence(attempt, "fresh"))

    def take_over(self, since: int = 0) -> None:
        """The claim shows an older attempt: the fence is acknowledged, then the log is read up to it, from `since`."""
        attempt = self._attempt()
        self._append(self._fence(attempt, "takeover", since))
        self._read_back(attempt, since)

    def generate(self, attempt: Attempt, tokens: int, finish: bool, choice: int = 0) -> None:
        """One engine step of one of its choices, published to the outbox; also by a zombie, whom nobody told."""
        if not attempt.running:
            return
        first = len(attempt.basis) + attempt.generated + 1
        row = tuple((attempt.attempt_id, first + step) for step in range(tokens))
        attempt.generated += tokens
        finish = finish or first + tokens > LONGEST
        choice = attempt.open[choice % len(attempt.open)]
        attempt.outbox.append(Row(attempt.attempt_id, first, row, "stop" if finish else "", choice))
        if finish:
            attempt.open.remove(choice)
        attempt.running = bool(attempt.open)

    def give_up(self, attempt: Attempt) -> None:
        """The worker ends the response: its engine failed."""
        if attempt.running:
            attempt.running = False
            attempt.outbox.append(_ending(EndingCode.ENGINE_FAILED, attempt.attempt_id))

    def deliver(self, attempt: Attempt) -> None:
        if attempt.outbox:
            self._append(attempt.outbox.popleft())

    def lose(self, attempt: Attempt) -> None:
        """A delivery fails for good, and a worker goes on although it should stop."""
        if attempt.outbox:
            attempt.outbox.popleft()

    def crash(self, attempt: Attempt) -> None:
        """What was not delivered never will be."""
        attempt.alive = attempt.running = False
        attempt.outbox.clear()

    def answer_void_fence(self, at: int) -> None:
        """Post-safety's answer arrives, maybe long after: that worker takes over, or stops."""
        fence = self.reader.void_fences[at]
        attempt = self.attempts[fence.attempt_id]
        if attempt.alive and attempt.running:
            attempt.running = False
            if self.reader.prefix.terminal is None:
                self.take_over(since=self.reader.prefix.begun_offset or 0)

    def repeat(self, at: int) -> None:
        """A copy of an older record arrives: a delivery that was thought lost."""
        self._append(self.log[at])

    def end_from_outside(self, code: EndingCode) -> None:
        """Post-safety writes a deadline, a cancel that nobody claimed, or a halt."""
        self._append(_ending(code, None))

    def check(self) -> None:
        """One order for all: no fork, no gap, at most one terminal."""
        again = self.new_reader()
        for offset, entry in enumerate(self.log):
            again.fold(entry, offset)
        assert again == self.reader, "a reader that starts over sees the same"
        text, prefix = self.reader.text, self.reader.prefix
        assert len(self.reader.terminals) == (prefix.terminal is not None)
        assert [place for _, place in text] == list(range(1, prefix.accepted_tokens + 1))
        written: set[str] = set()
        for place, (attempt_id, _) in enumerate(text):
            if place == 0 or text[place - 1][0] != attempt_id:
                assert attempt_id not in written, "an attempt's tokens stand together"
                assert self.attempts[attempt_id].basis == tuple(text[:place]), "and continue what it had read"
                written.add(attempt_id)

    def _attempt(self) -> Attempt:
        attempt = Attempt(f"att_{len(self.attempts) + 1}", (), [*range(self.choices)])
        self.attempts[attempt.attempt_id] = attempt
        return attempt

    def _read_back(self, attempt: Attempt, since: int) -> None:
        reader = self.new_reader()
        for offset, entry in enumerate(self.log[since:], start=since):
            reader.fold(entry, offset)
        if reader.prefix.terminal is not None:
            attempt.running = False
        elif self.continues or not (reader.text or reader.prefix.finished):
            attempt.basis = tuple(reader.text)
            attempt.open = [choice for choice in attempt.open if choice not in reader.prefix.finished]
        else:
            attempt.running = False
            attempt.outbox.append(_ending(EndingCode.GENERATION_INTERRUPTED, attempt.attempt_id))

    def _fence(self, attempt: Attempt, kind: Literal["fresh", "takeover"], since: int = 0) -> Fence:
        # Checked where it is decoded; here it would only take time.
        return Fence.model_construct(
            response_id="r", scope=SCOPE, attempt_id=attempt.attempt_id, worker_id="w", kind=kind,
            since_offset=since,
        )  # fmt: skip

    def _append(self, entry: LogEntry) -> None:
        self.log.append(entry)
        self.reader.fold(entry, len(self.log) - 1)


def _ending(code: EndingCode, attempt_id: str | None) -> Ending:
    return Ending.model_construct(
        response_id="r", scope=SCOPE, code=code, attempt_id=attempt_id, reply_to=REPLY_TO, accepted_at_ms=0,
        written_by="post-safety" if attempt_id is None else "worker",
    )  # fmt: skip


def live(chance: random.Random, seed_moves: int, continues: bool, choices: int) -> Response:
    """A random life of `seed_moves` moves, then the deadline."""
    response = Response(continues, choices)
    for _ in range(seed_moves):
        alive = [attempt for attempt in response.attempts.values() if attempt.alive]
        move = chance.random()
        if not alive or move < 0.08:
            if chance.random() < 0.3:
                response.lose_claim()
            since = response.claim()
            if chance.random() < 0.5:
                response.begin_afresh()
            else:
                response.take_over(chance.choice([0, since]))
        elif move < 0.40:
            response.generate(
                chance.choice(alive), chance.randint(0, 3), chance.random() < 0.1 * choices, chance.randrange(choices)
            )
        elif move < 0.78:
            response.deliver(chance.choice(alive))
        elif move < 0.80:
            response.lose(chance.choice(alive))
        elif move < 0.86:
            response.crash(chance.choice(alive))
        elif move < 0.88:
            response.give_up(chance.choice(alive))
        elif move < 0.93 and response.log:
            response.repeat(chance.randrange(len(response.log)))
        elif move < 0.99 and response.reader.void_fences:
            response.answer_void_fence(chance.randrange(len(response.reader.void_fences)))
        elif move >= 0.995:
            response.end_from_outside(EndingCode.CANCELLED)
    response.check()
    response.end_from_outside(EndingCode.DEADLINE_EXCEEDED)
    for attempt in response.attempts.values():
        while attempt.outbox:
            response.deliver(attempt)
    response.check()
    return response


@pytest.mark.parametrize("continues", [False, True])
def test_no_fork_and_nothing_unfinished_in_a_thousand_lives(continues: bool) -> None:
    lives = [live(random.Random(seed), 10 + seed % 90, continues, 1 + seed % 3) for seed in range(1_000)]

    assert all(response.reader.prefix.terminal is not None for response in lives)
    # The lives were worth living: all that the rule is for did happen, often.
    ends = [response.reader.terminals[0] for response in lives]
    assert ends.count(EndingCode.COMPLETED) > 100
    assert ends.count(EndingCode.GENERATION_INTERRUPTED) > 50 or continues
    assert sum(len(response.reader.void_fences) > 0 for response in lives) > 100
    spliced = sum(len({attempt_id for attempt_id, _ in response.reader.text}) > 1 for response in lives)
    assert spliced > 50 if continues else spliced == 0


class Interleaving(RuleBasedStateMachine):
    """The same moves, chosen by Hypothesis, so that a failure comes back as the shortest life that shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.response = Response(continues=True)

    @initialize(choices=st.integers(1, 3))
    def begin(self, choices: int) -> None:
        self.response = Response(continues=True, choices=choices)

    def _attempts(self) -> list[Attempt]:
        return [attempt for attempt in self.response.attempts.values() if attempt.alive]

    @rule(is_claimed=st.booleans())
    def begin_afresh(self, is_claimed: bool) -> None:
        if is_claimed:
            self.response.claim()
        self.response.begin_afresh()

    @rule(is_whole=st.booleans(), is_lost=st.booleans())
    def take_over(self, is_whole: bool, is_lost: bool) -> None:
        if is_lost:
            self.response.lose_claim()
        since = self.response.claim()
        self.response.take_over(0 if is_whole else since)

    @precondition(lambda self: self._attempts())
    @rule(data=st.data(), tokens=st.integers(0, 3), finish=st.booleans(), choice=st.integers(0, 2))
    def generate(self, data: st.DataObject, tokens: int, finish: bool, choice: int) -> None:
        self.response.generate(data.draw(st.sampled_from(self._attempts())), tokens, finish, choice)

    @precondition(lambda self: self._attempts())
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.response.deliver(data.draw(st.sampled_from(self._attempts())))

    @precondition(lambda self: self._attempts())
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.response.lose(data.draw(st.sampled_from(self._attempts())))

    @precondition(lambda self: self._attempts())
    @rule(data=st.data(), violently=st.booleans())
    def stop(self, data: st.DataObject, violently: bool) -> None:
        attempt = data.draw(st.sampled_from(self._attempts()))
        (self.response.crash if violently else self.response.give_up)(attempt)

    @precondition(lambda self: self.response.log)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.response.repeat(data.draw(st.integers(0, len(self.response.log) - 1)))

    @precondition(lambda self: self.response.reader.void_fences)
    @rule(data=st.data())
    def answer_void_fence(self, data: st.DataObject) -> None:
        self.response.answer_void_fence(data.draw(st.integers(0, len(self.response.reader.void_fences) - 1)))

    @invariant()
    def all_readers_agree(self) -> None:
        self.response.check()

    def teardown(self) -> None:
        self.response.end_from_outside(EndingCode.DEADLINE_EXCEEDED)
        self.response.check()
        assert len(self.response.reader.terminals) == 1


TestInterleaving = Interleaving.TestCase
TestInterleaving.settings = settings(max_examples=100, stateful_step_count=40)
